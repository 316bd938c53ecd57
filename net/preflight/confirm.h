// A second look at what is suspected: who measures it again, and whether it stands. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "net/preflight/blame.h"

namespace muster::preflight {

// One direction of a pair.
struct Way {
  uint32_t from = 0;
  uint32_t to = 0;

  auto operator<=>(const Way&) const = default;
};

// Two ways over what is suspected in each of its directions, each with another node that nobody suspects; those whose links are `shared`
// come last. Of many `suspects`, `suspect` among them, each has other witnesses than its neighbours in the list, so that many can measure at
// the same time. A pair has no others: it measures three times, or five for what a busy host looks like. Of networks, two pairs of nodes
// that nobody suspects measure. `able`: the nodes that can measure this trouble.
// Fewer, or none, where there are no such nodes.
std::vector<Way> Witnesses(const Suspect& suspect, const Layout& layout, const std::set<uint32_t>& able,
                           const std::set<uint32_t>& shared, const std::vector<Suspect>& suspects);

struct Remeasurement {
  size_t suspect = 0;  // its place in the list of suspects
  Way way;
};

// Who can measure on a rail.
struct Able {
  std::set<uint32_t> all;
  std::set<uint32_t> rdma;    // of these
  std::set<uint32_t> shared;  // whose links others use
};

// What is to be measured again: of each suspect its witnesses' ways. A router that lets nothing through makes a suspect of each pair of
// racks, and a test has little time: of many networks with the same trouble three suspects measure, for all.
std::vector<Remeasurement> Remeasurements(const std::vector<Suspect>& suspects, const Layout& layout,
                                          const Able& able);

// Takes from `todo`, in its order, those that can go on at once: a node measures one way at a time. Never empty unless `todo` is.
std::vector<Remeasurement> TakeRound(std::vector<Remeasurement>& todo);

// What stands of a suspect: itself, when all of `again`, which measured those ways, show the same trouble; of losses their sum does. A link
// that has gone down meanwhile has a worse one: that one, when all show it. Nothing measured: nothing stands.
std::optional<Suspect> Confirmed(Suspect suspect, const std::vector<Measured>& again,
                                 const Expected& expected);

// What stands of the suspect at `place`, by what its own witnesses measured. A network for which others measured stands when all that
// could measure stand. `again` has each suspect's measurements.
std::optional<Suspect> Standing(const std::vector<Suspect>& suspects, size_t place,
                                const std::vector<std::vector<Measured>>& again, const Expected& expected);

}  // namespace muster::preflight
