// What the lease machines share: times, and what they order.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/lease/datagram.h"

namespace muster::lease {

// Nanoseconds of a clock that goes on while the machine sleeps (CLOCK_BOOTTIME). Clocks of two nodes are never
// compared; they must only run at the same rate.
using Nanos = int64_t;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kNever = INT64_MAX;

// The same on all nodes of a cluster. Good when beat < lease/2 and lease + 2*beat <= silence.
struct Times {
  Nanos beat = 200 * kMillisecond;          // an agent's beats, and the coordinator's announcements
  Nanos lease = 800 * kMillisecond;         // how long members run after the send time of the last acked beat
  Nanos silence = 1'200 * kMillisecond;     // from the last beat heard to the node's replacement
  Nanos reconnect = 30'000 * kMillisecond;  // members without musterd; agents without a successor
  Nanos succession = 500 * kMillisecond;    // between one candidate's turn and the next one's

  // How old the authority to run may be when a supervisor is beaten, so that supervisors whose musterd stops
  // right afterwards have fenced (they wait for one lease) before the coordinator calls the node silent.
  [[nodiscard]] Nanos Freshness() const { return silence - lease - beat / 2; }
};

enum class EventKind : uint8_t {
  // of an agent
  kAttended,   // term: its coordinator has acknowledged this node, for the first time or after a fence
  kFence,      // kill the node's members; once for each time that the authority to run ends
  kAbandoned,  // term: a majority finds its coordinator dead; members run on
  kClaim,      // term: no majority is possible, the store must decide: compare-and-swap the record
  kTakeOver,   // term: this node is next in line: compare-and-swap the record; comes again while nobody does
  kSuccessor,  // term, node: a higher term's coordinator has announced itself
  kStopOrdered,  // term, generation: nothing of it or an earlier one may run
  // of a coordinator
  kHeard,           // node: its first beat, or the first after it was silent
  kSilent,          // node: its members are certainly fenced
  kStopped,         // node, generation: nothing of it or an earlier one runs there
  kLostQuorum,      // nobody is acknowledged any more, this node's own agent included
  kQuorum,          // acknowledging (again)
  kConfirmInStore,  // read the record; StoreConfirmed(time before the read) if the term is still this one
  kTermSpent,  // a node has promised others never to beat in this term: only a new term gets it back; comes again
  kDeposed,  // term: a higher term exists; this coordinator acknowledges nobody any more
};

struct Event {
  EventKind kind = EventKind::kFence;
  NodeIndex node = kNoNode;
  uint64_t term = 0;
  uint64_t generation = 0;
};

// A datagram to be sent. `back`: also to where the datagram that is being answered came from, if that is
// another address than the node's. `forward`: the received bytes as they are, with their author's code.
struct Send {
  NodeIndex to = kNoNode;
  bool back = false;
  bool forward = false;
  Datagram datagram;
};

// Machines append, the caller takes and clears; with capacity reserved nothing allocates.
struct Output {
  std::vector<Send> sends;
  std::vector<Event> events;
  void Clear() {
    sends.clear();
    events.clear();
  }
};

}  // namespace muster::lease
