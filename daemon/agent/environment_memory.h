// An environment as wire::Start carries it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace muster {

// A sealed memfd of NUL-terminated strings, `*bytes` long. Not valid where there is no memory.
UniqueFd EnvironmentMemory(const std::vector<std::string>& environment, uint32_t* bytes);

}  // namespace muster
