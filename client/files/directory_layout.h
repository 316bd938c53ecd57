// A shard that was a directory becomes one again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster::files {

// An entry of a shard, as muster_restore_entry gives it.
struct ShardEntry {
  std::string name;
  std::string meta;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Writes the entries as a directory in `top` and gives it its name at the end, so that it is there whole or not at all.
// Returns the name. kInvalid: they are not of a directory of this step.
Result<std::string> LayOut(int top, uint64_t step, const std::vector<ShardEntry>& entries);

}  // namespace muster::files
