// What was tried in vain: nobody waits for it again. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "net/preflight/blame.h"

namespace muster::preflight {

class Mute {
 public:
  // Of one rail. A node is mute when no connection of its own has come to pass in two rounds or more; a network to another one, when none
  // has in four measurements or more. What was tried between networks that no connection has joined makes no node mute.
  Mute(const Layout& layout, const std::vector<Measured>& measured);

  [[nodiscard]] bool Has(uint32_t from, uint32_t to) const;

 private:
  const Layout& layout_;
  std::vector<bool> nodes_;
  std::set<std::pair<uint32_t, uint32_t>> networks_;
};

}  // namespace muster::preflight
