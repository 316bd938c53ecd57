// What measurements between pairs of nodes say about links. Pure.
//
// A node's link has two directions: out, from the node to its switch, and in. A measurement of a pair goes over one's out and the
// other's in. What is bad is laid on the smallest number of links that explain it: a link whose measurements are nearly all bad
// explains them, and a pair of which no link does is itself the finding. Where all between two networks is bad, though their
// nodes' measurements elsewhere are not, no link explains it either: those networks are the finding.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::preflight {

// One direction of one pair.
struct Measured {
  uint32_t from = 0;
  uint32_t to = 0;
  double mbit_s = 0;         // payload; 0: nothing has arrived
  double latency_us = 0;     // half of the shortest round trip; 0: unknown
  double other_out = 0;      // Mbit/s that the sender's link carried besides, out
  double other_in = 0;       // and the receiver's, in
  uint64_t packets = 0;      // sent, of that payload
  uint64_t lost = 0;         // of these, sent again
  bool connected = false;    // TCP has found the way, both of them
  bool verbs = false;        // measured with RDMA
  uint32_t small_heard = 0;  // datagrams of a few bytes
  uint32_t large_heard = 0;  // those that fill the sender's MTU
  std::string error;         // why there is no rate; "": there is one
};

enum class Trouble {
  kUnreachable,  // nothing arrives
  kBlocked,      // datagrams arrive, connections are refused or vanish: a firewall
  kMtu,          // small packets arrive, large ones do not
  kNoRdma,       // TCP connects, RDMA writes nothing
  kSlow,
  kLossy,
};
const char* Name(Trouble trouble);  // "unreachable", "blocked", "mtu", "no-rdma", "slow", "lossy"

enum class Direction { kOut, kIn, kBoth };
const char* Name(Direction direction);  // "out", "in", "both"

// Where the cause is.
struct Suspect {
  enum class Scope { kNode, kSwitch, kPair, kNetwork };
  Trouble trouble = Trouble::kSlow;
  Scope scope = Scope::kNode;
  uint32_t node = 0;   // kNode: its link; kSwitch, kNetwork: its number; kPair: from this node
  uint32_t other = 0;  // kPair, kNetwork: to this one
  Direction direction = Direction::kOut;
  uint32_t bad = 0;   // measurements over it that are bad
  uint32_t all = 0;   // and all of them
  double is = 0;      // of the bad ones the median: Mbit/s, or the part that was lost
  double should = 0;  // Mbit/s that are expected where that was measured
  std::string why;    // what one of them has said

  bool operator==(const Suspect& other_one) const {
    return trouble == other_one.trouble && scope == other_one.scope && node == other_one.node &&
           other == other_one.other && direction == other_one.direction;
  }
};

struct Expected {
  std::array<double, 2> mbit_s{};  // over TCP, and with RDMA, which may be much faster
  double slow_below = 0.75;        // of that
  double lossy_above = 0;          // the part of the packets that may be lost
  double shared_above = 0.1;  // of what a link carries: other traffic that makes packets wait, and be lost
  [[nodiscard]] double Rate(const Measured& one) const { return mbit_s[one.verbs ? 1 : 0]; }
  [[nodiscard]] double Most() const { return std::max(mbit_s[0], mbit_s[1]); }
  // Whether a link that carries this besides, in Mbit/s, is shared with other traffic.
  [[nodiscard]] bool IsShared(double other) const { return other > shared_above * Most(); }
  // A quarter of that is suspicious: few packets have told so far.
  [[nodiscard]] double SuspiciousAbove() const { return lossy_above / 4; }
};

// Where nodes are.
struct Layout {
  uint32_t nodes = 0;
  std::vector<uint32_t> switches;  // of each node the number of its leaf; empty: nobody knows
  std::vector<uint32_t> networks;  // of each node the number of its rack's network; empty: all have the same
  [[nodiscard]] bool BetweenNetworks(const Measured& one) const {
    return !networks.empty() && networks[one.from] != networks[one.to];
  }
};

// Whether one end's link carried so much other traffic that lost packets say nothing.
bool Shared(const Measured& one, const Expected& expected);

// Slow is what carries too little with its other traffic. Of kLossy: whether any packet was lost. `all` has the pair's other direction.
bool Is(Trouble trouble, const Measured& one, const std::vector<Measured>& all, const Expected& expected);

// Makes one suspect of those of the same trouble in the same place: out and in are both.
void Join(std::vector<Suspect>& suspects);

// What is bad; joined.
std::vector<Suspect> Judge(const Layout& layout, const std::vector<Measured>& measured,
                           const Expected& expected);

}  // namespace muster::preflight
