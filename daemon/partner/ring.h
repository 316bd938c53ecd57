// Which node of a gang keeps a second copy of a node's shards. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster {

// The nodes of one generation, in the order of their ranks.
struct Roster {
  struct Node {
    std::string name;
    bool saves = true;  // its members have shards in checkpoints
    std::vector<uint32_t> ranks;
    std::string domain = {};  // what fails as one: a rack, a switch; "": not known
  };
  std::vector<Node> nodes;

  // How many members have shards: their ranks are those below.
  [[nodiscard]] uint32_t Savers() const;
  // The node that has this rank.
  [[nodiscard]] std::optional<size_t> PlaceOf(uint32_t rank) const;
};

// The places of those that save, in the order of their failure domains and in these of their ranks.
std::vector<size_t> SavingPlaces(const Roster& roster);

// The partner of the node at `place`; none: it saves nothing, or is alone. Of those that save, in the order above,
// the one that is half of them further: each has one partner and is one's. It is in
// another domain, unless one domain has more than half of them: then for as many as can be. Where domains are not known,
// neighbours in the list, which mostly share a switch, a rack or a power supply, are no partners either. When only one node
// saves, another one keeps its copies, of another domain if there is one.
std::optional<size_t> PartnerOf(const Roster& roster, size_t place);

// The ranks whose shards are copied to the node at `place`.
std::vector<uint32_t> RanksKeptBy(const Roster& roster, size_t place);

}  // namespace muster
