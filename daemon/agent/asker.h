// Who asks for a checkpoint and waits for it.
#pragma once

#include <cstdint>
#include <memory>

namespace muster {

// A connection of a member's program. After a break the program asks again over a new connection, so the answer to a question of the
// old connection is dropped.
struct Asker {
  uint32_t rank = 0;
  uint64_t generation = 0;
  std::weak_ptr<const int> connection;  // gone with it
};

}  // namespace muster
