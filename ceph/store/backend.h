// What a kind of store gives to OpenStore. A backend that is not linked in is not known.
#pragma once

#include <memory>
#include <string>

#include "ceph/store/store.h"

namespace muster {

using OpenBackend = Result<std::unique_ptr<Store>> (*)(const StoreOptions& options, const std::string& place);

// `scheme` is what stands before the ':' of a url, `place` (for open) what stands after it. Called during
// static initialisation; gives true.
bool RegisterBackend(const std::string& scheme, OpenBackend open);

Result<std::unique_ptr<Store>> OpenDirectoryStore(const StoreOptions& options, const std::string& place);

}  // namespace muster
