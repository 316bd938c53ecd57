#include "net/preflight/mute.h"

#include <map>

namespace muster::preflight {
namespace {

constexpr uint32_t kInVain = 4;  // two rounds, each in both directions

struct Tried {
  uint32_t count = 0;
  bool connected = false;

  void Add(const Measured& one) {
    ++count;
    connected |= one.connected;
  }
  [[nodiscard]] bool InVain() const { return count >= kInVain && !connected; }
};

}  // namespace

Mute::Mute(const Layout& layout, const std::vector<Measured>& measured)
    : layout_(layout), nodes_(layout.nodes) {
  std::map<std::pair<uint32_t, uint32_t>, Tried> networks;
  const auto between = [&](const Measured& one) -> Tried& {
    return networks[{layout.networks[one.from], layout.networks[one.to]}];
  };
  for (const Measured& one : measured) {
    if (layout.BetweenNetworks(one)) between(one).Add(one);
  }
  std::vector<Tried> nodes(layout.nodes);
  for (const Measured& one : measured) {
    if (layout.BetweenNetworks(one) && !between(one).connected) continue;
    nodes[one.from].Add(one);
    nodes[one.to].Add(one);
  }
  for (uint32_t node = 0; node < layout.nodes; ++node) nodes_[node] = nodes[node].InVain();
  for (const auto& [pair, tried] : networks) {
    if (tried.InVain()) networks_.insert(pair);
  }
}

bool Mute::Has(uint32_t from, uint32_t to) const {
  return nodes_[from] || nodes_[to] ||
         (!networks_.empty() && networks_.contains({layout_.networks[from], layout_.networks[to]}));
}

}  // namespace muster::preflight
