// Which names a store takes. Muster builds all names itself; the check is the second wall, so that nothing
// can leave a space or the store's directory.
#pragma once

#include <string_view>

#include "base/result.h"
#include "ceph/store/store.h"

namespace muster {

inline constexpr size_t kMaxObjectName = 1024;    // bytes of a whole name
inline constexpr size_t kMaxNameComponent = 255;  // bytes between two '/'

// Letters, digits, '.', '_', '-' in components divided by '/'. No component is empty or begins with '.'.
Status CheckObjectName(const ObjectName& object);
// A space is one such component.
Status CheckSpace(std::string_view space);
// The beginning of a name: "" and "data/KEY/" too.
Status CheckPrefix(std::string_view prefix);

}  // namespace muster
