// What the coordinator of a gang may conclude from beats. Pure: no I/O, no clock, no thread; one caller at a time.
//
// It keeps, for each node, a bound (by this clock) for the end of that node's right to run; a node is silent when the
// bound has passed by silence - lease, and it is certain that the node has not got its right elsewhere:
//   - a majority of the witnesses has sent beats after the bound: none of them had given its word to anybody by then,
//     and two majorities share a witness; or
//   - so many that the rest is no majority, and the store said after the bound that this term is still the newest: so
//     no claim had succeeded by then.
// That a beat was sent after a time is proved by the stamp of this coordinator that it carries. The bound of a node
// that an earlier term's coordinator may have acked is explained at LeadSettings. The proof: docs/architecture.md, Leases.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "daemon/lease/types.h"

namespace muster::lease {

struct LeadSettings {
  Times times;
  uint64_t gang = 0;
  uint64_t term = 1;
  NodeIndex self = 0;
  size_t nodes = 1;
  WitnessSet witnesses;
  uint64_t first_sequence = 1;
  uint64_t stop_generation = 0;
  // Members may run from an earlier term. Then all of `watched` are watched from the start; the bound of a node that
  // has not beaten in this term is one lease after so many witnesses of each of `former` have that the rest is no
  // majority (they no longer carry an old coordinator or each other), plus one more lease for what the old
  // coordinator acked last, or, with `promised`, one after the take-over.
  bool inherited = false;
  // This node's agent had ordered kTakeOver or kClaim for the term before: the old coordinator has no majority.
  bool promised = false;
  // The coordinator before went without a successor, as when all musterds are restarted at once: whose musterd went since, and
  // whose members therefore run for `reconnect`, nobody has seen. A node that has not beaten in this term is given that time.
  bool returned = false;
  // When the compare-and-swap for this term was asked for, which counts as a confirmation, and when it had succeeded.
  Nanos asked_at = 0;
  Nanos taken_at = 0;
  std::vector<WitnessSet> former;  // witness sets of the earlier terms whose nodes may run; usually one
  std::vector<NodeIndex> watched;  // nodes that may run members
  WitnessSet closed;               // of those, nodes whose musterd had gone under the earlier coordinator
  // Nodes that have beaten in an earlier term of this coordinator, and how many terms the coordinator has begun since. Such a node has got
  // no right to run since its last beat but votes. Votes of each of these terms' predecessors carry the node for `reconnect` at most, one
  // after the other: its bound is the term's begin + `lease` + that many times `reconnect`, whoever of `former` is heard.
  std::map<NodeIndex, uint32_t> heard_before;
};

class CoordinatorLease {
 public:
  explicit CoordinatorLease(LeadSettings settings, Nanos now);

  // The node's link is up: it is watched from now on, and was not before or its musterd is a new one. Also needed
  // after kSilent: orders for that node may be on their way, from before it was known that it had fenced; it gets no
  // right to carry them out until it has been attached again. So its link must be closed at kSilent.
  void NodeAttached(NodeIndex node, Nanos now);
  // Its link has ended properly: the host lives, its musterd does not; supervisors run on for `reconnect`.
  void NodeClosed(NodeIndex node, Nanos now);
  // Not watched and not acked any more.
  void NodeRemoved(NodeIndex node);
  // Nothing of this generation or an earlier one may run; goes out with every ack.
  void SetStop(uint64_t generation) { stop_ = generation > stop_ ? generation : stop_; }
  // The store said, when asked at `at` or later, that this term is the newest.
  void StoreConfirmed(Nanos at, Nanos now, Output* out);
  void Depose(uint64_t term, Output* out);

  void Receive(const Datagram& datagram, Nanos now, Output* out);
  void Tick(Nanos now, Output* out);
  // When it is due. An earlier one, from SoonestTick() on, does no harm: whoever is awake anyway may save a wake-up.
  [[nodiscard]] Nanos NextTick() const { return next_tick_; }
  [[nodiscard]] Nanos SoonestTick() const { return last_tick_ + settings_.times.beat / 4; }

  [[nodiscard]] bool HasQuorum(Nanos now) const;
  [[nodiscard]] bool deposed() const { return deposed_; }
  [[nodiscard]] uint64_t term() const { return settings_.term; }
  // Every watched node has beaten in this term or is silent: the next term may name other witnesses and forget
  // `former`.
  [[nodiscard]] bool Settled() const;

 private:
  struct Node {
    bool watched = false;
    bool removed = false;
    bool silent = false;
    bool barred =
        false;  // was silent, and has not been attached since: it is heard, and not granted anything
    bool beaten = false;  // in this term
    bool closed = false;
    bool proved = true;  // since it closed: only beats sent after the new attachment count
    Nanos attached = 0;
    Nanos heard = 0;
    Nanos echo = 0;   // the newest stamp of this coordinator that it has shown
    Nanos bound = 0;  // its right to run ends before; kNever: not known yet
    uint64_t sequence = 0;
    uint64_t stopped = 0;
  };

  void OnBeat(const Datagram& beat, Nanos now, Output* out);
  void NoticePause(Nanos now);
  void SettleFormer(Nanos now);
  void SettleHeardBefore(Nanos now);
  void UpdateQuorum(Nanos now, Output* out);
  void FindSilent(Nanos now, Output* out);
  void Announce(Nanos now, Output* out);
  void WantStore(Nanos now, Output* out);
  [[nodiscard]] bool Calm(Nanos now) const;
  [[nodiscard]] size_t SentSince(Nanos time) const;
  [[nodiscard]] Datagram Make(Type type, NodeIndex to, Nanos now);

  LeadSettings settings_;
  std::vector<Node> nodes_;
  uint64_t sequence_;
  uint64_t stop_;
  Nanos store_confirmed_ = 0;
  Nanos asked_store_ = 0;
  Nanos last_tick_;
  Nanos awake_since_;
  Nanos next_tick_;
  Nanos began_;
  Nanos next_announce_ = 0;
  Nanos last_beat_ = 0;
  Nanos next_spent_ = 0;
  bool former_settled_ = false;
  bool quorum_ = false;
  bool had_quorum_ = false;
  bool deposed_ = false;
  WitnessSet closed_now_;
};

}  // namespace muster::lease
