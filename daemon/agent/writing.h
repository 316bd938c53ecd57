// A member's save that the engine writes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "ceph/engine/engine.h"
#include "ceph/engine/staged_memory.h"

namespace muster {

struct Writing {
  std::shared_ptr<ShardWrite> write;
  std::shared_ptr<StagedMemory> memory;
  bool given_up = false;
  std::string delay;  // why the store does not take the shard now
  int64_t held_ns = 0;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

}  // namespace muster
