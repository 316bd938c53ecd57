// What each term of a coordinator is made of: its witnesses, what its lease knows of the terms before, and when the next term is to
// begin. Pure: no I/O, clock or thread. Why: docs/architecture.md, Leases.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "daemon/gang/gang.h"
#include "daemon/lease/coordinator_lease.h"

namespace muster {

class Terms {
 public:
  // How this coordinator has come to the record: see lease::LeadSettings.
  struct Origin {
    bool promised = false;
    lease::WitnessSet closed;
    lease::Nanos asked_at = 0;
    lease::Nanos taken_at = 0;
  };
  // What a record says of its term.
  struct Sets {
    std::vector<uint32_t> witnesses;
    std::vector<std::vector<uint32_t>> former;  // of earlier terms that nodes may still follow
  };
  // The record that this coordinator has found, under which members may run.
  struct Found {
    Sets sets;
    std::vector<uint32_t> away;  // gang::Memory::away
  };

  // How long the term stays as it is, though other nodes should be witnesses.
  struct Patience {
    // Since a node was lost: others that have died with it are found sooner in this term than in the next.
    lease::Nanos after_loss = 0;
    // Since the set has grown: a node may come and go.
    lease::Nanos to_grow = 0;
  };

  // `candidates`: in the order in which nodes would take over.
  Terms(lease::NodeIndex self, std::vector<uint32_t> candidates, Patience patience);

  // The record is this coordinator's. `found`: none: nothing has run. `here`: the nodes that have a link.
  void Take(const Origin& origin, const std::optional<Found>& found, const gang::Gang& gang,
            const std::set<uint32_t>& here);
  // For the record that begins the term after this one.
  Sets Next(const gang::Gang& gang);
  // That record is in the store.
  void Raised(lease::Nanos asked_at, lease::Nanos taken_at, const gang::Gang& gang);
  // The lease of the term begins. What the caller fills in: times, gang, nodes, first_sequence.
  const lease::LeadSettings& Lead(uint64_t term, const gang::Gang& gang);

  // A node has beaten in this term. When all have, nodes of older witness sets need not be asked any more.
  void Heard(uint32_t node, const gang::Gang& gang);
  // A node is silent or has left for good, or the term could not be raised: for a while nothing is raised.
  void Wait(lease::Nanos now) { waits_since_ = now; }
  void SetQuorum(bool quorum) { quorum_ = quorum; }
  void SetStop(uint64_t generation);
  // A node of an earlier term lives, and its musterd does not.
  void Refuses(lease::NodeIndex node) { refusing_.insert(node); }

  // When the term is to be raised, because a witness is gone, or a candidate has come for which there is room; none: it is not, as
  // things are.
  [[nodiscard]] std::optional<lease::Nanos> RaiseAt(const gang::Gang& gang) const;
  // Nodes of an earlier term that have not been heard, or have no link yet: whether they have a musterd is to be found out.
  [[nodiscard]] std::vector<lease::NodeIndex> Unheard(const gang::Gang& gang) const;
  // Nodes that have joined, have no link now, and are not lost.
  [[nodiscard]] static std::vector<lease::NodeIndex> Away(const gang::Gang& gang);
  [[nodiscard]] Sets sets() const;
  [[nodiscard]] const lease::LeadSettings& lead() const { return lead_; }
  // Most witnesses are heard.
  [[nodiscard]] bool quorum() const { return quorum_; }

 private:
  [[nodiscard]] lease::WitnessSet Pick(const gang::Gang& gang, const std::set<uint32_t>& here = {}) const;
  [[nodiscard]] bool AllHeard(const gang::Gang& gang) const;

  std::vector<uint32_t> candidates_;
  Patience patience_;
  std::optional<lease::Nanos> waits_since_;  // Wait, the last time
  std::optional<lease::Nanos> grown_at_;     // the set, the last time
  lease::WitnessSet next_;                   // of the term that is being raised
  lease::LeadSettings lead_;                 // of this term
  std::set<uint32_t> heard_;                 // nodes that have beaten in this term
  std::set<lease::NodeIndex> refusing_;
  bool quorum_ = false;
};

}  // namespace muster
