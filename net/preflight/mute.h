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
  // `measured` is of one rail. A node is mute when two rounds or more have brought no connection with it. A network is mute to another
  // one when four measurements or more have brought no connection between them; such measurements make no node mute.
  Mute(const Layout& layout, const std::vector<Measured>& measured);

  [[nodiscard]] bool Has(uint32_t from, uint32_t to) const;

 private:
  const Layout& layout_;
  std::vector<bool> nodes_;
  std::set<std::pair<uint32_t, uint32_t>> networks_;
};

}  // namespace muster::preflight
