#include "net/preflight/blame.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace muster::preflight {
namespace {

using Scope = Suspect::Scope;

// So many of a link's measurements must be bad: others may have been lucky, as with few lost packets.
constexpr double kNearlyAll = 0.75;
double LostPart(uint64_t lost, uint64_t packets) {
  return packets == 0 ? 0 : static_cast<double>(lost) / static_cast<double>(packets);
}

double PartOf(double is, double should) {
  return should <= 0 ? 0 : is / should;
}

bool Over(const Suspect& suspect, const Layout& layout, const Measured& one) {
  const bool out = suspect.direction == Direction::kOut;
  switch (suspect.scope) {
    case Scope::kNode:
      return (out ? one.from : one.to) == suspect.node;
    case Scope::kSwitch:
      return layout.switches[one.from] != layout.switches[one.to] &&
             layout.switches[out ? one.from : one.to] == suspect.node;
    case Scope::kPair:
      return one.from == suspect.node && one.to == suspect.other;
    case Scope::kNetwork:
      return layout.networks[one.from] == suspect.node && layout.networks[one.to] == suspect.other;
  }
  return false;
}

bool Arrives(const Measured& one) {
  return one.connected || one.small_heard > 0;
}

// Whether a network's nodes are those of one leaf switch.
bool IsOneSwitch(const Layout& layout, uint32_t network) {
  if (layout.switches.empty()) return false;
  const auto first = std::find(layout.networks.begin(), layout.networks.end(), network);
  const uint32_t leaf = layout.switches[static_cast<size_t>(first - layout.networks.begin())];
  for (uint32_t node = 0; node < layout.nodes; ++node) {
    if ((layout.networks[node] == network) != (layout.switches[node] == leaf)) return false;
  }
  return true;
}

// From each network those to which all measurements are `bad`, though they were of nodes whose measurements elsewhere are not: two nodes or
// more at each end, for one node's bad link, or lost route, is not all of its network's. Of a small network few meet those of another one.
// So it is enough when two nodes or more of it tell so of all other networks together.
std::vector<Suspect> Apart(Trouble trouble, const Layout& layout,
                           const std::vector<const Measured*>& measured,
                           const std::function<bool(const Measured&)>& bad) {
  constexpr size_t kTelling = 2;
  std::vector<bool> good_out(layout.nodes);
  std::vector<bool> good_in(layout.nodes);
  for (const Measured* one : measured) {
    if (!Arrives(*one) || bad(*one)) continue;
    good_out[one->from] = true;
    good_in[one->to] = true;
  }
  struct Count {
    uint32_t all = 0;
    std::set<uint32_t> from;  // that tell
    std::set<uint32_t> to;
    bool good = false;
    [[nodiscard]] bool Tells() const { return !good && from.size() >= kTelling && to.size() >= kTelling; }
  };
  std::map<std::pair<uint32_t, uint32_t>, Count> counts;
  std::map<uint32_t, Count> out;  // of a network, to all others
  std::map<uint32_t, Count> in;
  for (const Measured* one : measured) {
    if (!layout.BetweenNetworks(*one)) continue;
    const uint32_t from = layout.networks[one->from];
    const uint32_t to = layout.networks[one->to];
    for (Count* count : {&counts[{from, to}], &out[from], &in[to]}) {
      ++count->all;
      if (good_out[one->from] && good_in[one->to]) {
        count->from.insert(one->from);
        count->to.insert(one->to);
      }
      count->good |= !bad(*one);
    }
  }
  // A rack that alone is so to others, or others to it: its leaf switch explains that.
  const auto alone = [&](uint32_t network, bool outwards) {
    if (!IsOneSwitch(layout, network)) return false;
    bool others_are_good = false;
    for (const auto& [networks, count] : counts) {
      const bool own = (outwards ? networks.first : networks.second) == network;
      if (own && count.good) return false;
      others_are_good |= !own && count.good && networks.first != network && networks.second != network;
    }
    return others_are_good;
  };
  std::vector<Suspect> apart;
  for (const auto& [networks, count] : counts) {
    if (count.good || count.from.empty()) continue;
    if (!count.Tells() && !out[networks.first].Tells() && !in[networks.second].Tells()) continue;
    if (alone(networks.first, true) || alone(networks.second, false)) continue;
    Suspect suspect{trouble, Scope::kNetwork, networks.first, networks.second};
    suspect.bad = suspect.all = count.all;
    apart.push_back(suspect);
  }
  return apart;
}

// What an end's link carried besides.
double Other(const Measured& one) {
  return std::max(one.other_out, one.other_in);
}

double SlowBelow(const Measured& one, const Expected& expected) {
  return expected.slow_below * expected.Rate(one);
}

// Whether a measurement can tell. Other traffic may be why a rate is low and packets are lost. A way over TCP says nothing of RDMA, nor
// one where nothing arrives of large packets.
bool Tells(Trouble trouble, const Measured& one, const Expected& expected) {
  switch (trouble) {
    case Trouble::kMtu:
      return one.small_heard > 0;
    case Trouble::kNoRdma:
      return one.verbs && one.connected;
    case Trouble::kSlow:
      return one.mbit_s >= SlowBelow(one, expected) || one.mbit_s + Other(one) < SlowBelow(one, expected);
    case Trouble::kLossy:
      return !Shared(one, expected);
    default:
      return true;
  }
}

// Lays what is bad on links, one after another, each time on the one that explains most: a node's before its switch's when both
// explain the same.
class Blame {
 public:
  Blame(Trouble trouble, const Layout& layout, const Expected& expected, std::vector<const Measured*> all,
        std::vector<const Measured*> bad)
      : trouble_(trouble), layout_(layout), expected_(expected), all_(std::move(all)), bad_(std::move(bad)) {}

  std::vector<Suspect> Run() {
    std::vector<Suspect> suspects;
    while (!bad_.empty()) {
      const auto best = Best();
      if (!best) break;
      suspects.push_back(Take(*best));
    }
    // No link explains these. Of packets a few are lost on a good way too.
    for (const Measured* one : std::vector(bad_)) {
      if (trouble_ == Trouble::kLossy && !Explains({one->lost, one->packets})) continue;
      suspects.push_back(Take({trouble_, Scope::kPair, one->from, one->to, Direction::kOut}));
    }
    return suspects;
  }

 private:
  // Measurements over a link, or packets.
  struct Count {
    uint64_t bad = 0;
    uint64_t all = 0;
  };

  // A measurement is bad or it is not, but one that has lost nothing may have been lucky: losses are counted over all of a link's.
  [[nodiscard]] bool Explains(const Count& count) const {
    if (trouble_ == Trouble::kLossy) return LostPart(count.bad, count.all) > expected_.SuspiciousAbove();
    return count.bad >= 2 && static_cast<double>(count.bad) >= kNearlyAll * static_cast<double>(count.all);
  }

  [[nodiscard]] std::optional<Suspect> Best() const {
    const uint32_t nodes = layout_.nodes;
    const std::vector<uint32_t>& switches = layout_.switches;
    const uint32_t groups = switches.empty() ? 0 : 1 + *std::ranges::max_element(switches);
    // Of each direction: nodes, then switches.
    std::array<std::vector<Count>, 2> counts{std::vector<Count>(nodes + groups),
                                             std::vector<Count>(nodes + groups)};
    const auto count = [&](const Measured& one, uint64_t Count::*field, uint64_t amount) {
      counts[0][one.from].*field += amount;
      counts[1][one.to].*field += amount;
      if (groups == 0 || switches[one.from] == switches[one.to]) return;
      counts[0][nodes + switches[one.from]].*field += amount;
      counts[1][nodes + switches[one.to]].*field += amount;
    };
    const bool packets = trouble_ == Trouble::kLossy;
    for (const Measured* one : all_) count(*one, &Count::all, packets ? one->packets : 1);
    for (const Measured* one : bad_) count(*one, &Count::bad, packets ? one->lost : 1);
    std::optional<Suspect> best;
    uint64_t most = 0;
    for (size_t direction = 0; direction < 2; ++direction) {
      for (uint32_t i = 0; i < nodes + groups; ++i) {
        const Count& here = counts[direction][i];
        if (here.bad <= most || !Explains(here)) continue;
        most = here.bad;
        const bool node = i < nodes;
        best = Suspect{trouble_, node ? Scope::kNode : Scope::kSwitch, node ? i : i - nodes, 0,
                       direction == 0 ? Direction::kOut : Direction::kIn};
      }
    }
    return best;
  }

  Suspect Take(Suspect suspect) {
    std::vector<const Measured*> bad;
    Count packets;
    std::erase_if(bad_, [&](const Measured* one) {
      if (!Over(suspect, layout_, *one)) return false;
      bad.push_back(one);
      if (suspect.why.empty()) suspect.why = one->error;
      return true;
    });
    // What is explained says nothing of the other link that it went over.
    std::erase_if(all_, [&](const Measured* one) {
      if (!Over(suspect, layout_, *one)) return false;
      ++suspect.all;
      packets.bad += one->lost;
      packets.all += one->packets;
      return true;
    });
    suspect.bad = static_cast<uint32_t>(bad.size());
    if (trouble_ == Trouble::kLossy) {
      suspect.is = LostPart(packets.bad, packets.all);
    } else if (!bad.empty()) {
      const auto median = bad.begin() + static_cast<std::ptrdiff_t>(bad.size() / 2);
      std::ranges::nth_element(
          bad, median, {}, [&](const Measured* one) { return PartOf(one->mbit_s, expected_.Rate(*one)); });
      suspect.is = (*median)->mbit_s;
      suspect.should = expected_.Rate(**median);
    }
    return suspect;
  }

  Trouble trouble_;
  const Layout& layout_;
  const Expected& expected_;
  std::vector<const Measured*> all_;
  std::vector<const Measured*> bad_;
};

bool SmallHeard(const std::vector<Measured>& all, uint32_t from, uint32_t to) {
  return std::ranges::any_of(
      all, [&](const Measured& one) { return one.from == from && one.to == to && Arrives(one); });
}

bool SamePlace(const Suspect& a, const Suspect& b) {
  if (a.trouble != b.trouble || a.scope != b.scope) return false;
  if (a.scope == Scope::kNode || a.scope == Scope::kSwitch) return a.node == b.node;
  return std::minmax(a.node, a.other) == std::minmax(b.node, b.other);
}

}  // namespace

const char* Name(Trouble trouble) {
  constexpr std::array kNames{"unreachable", "blocked", "mtu", "no-rdma", "slow", "lossy"};
  return kNames[static_cast<size_t>(trouble)];
}

const char* Name(Direction direction) {
  constexpr std::array kNames{"out", "in", "both"};
  return kNames[static_cast<size_t>(direction)];
}

bool Shared(const Measured& one, const Expected& expected) {
  return expected.IsShared(Other(one));
}

bool Is(Trouble trouble, const Measured& one, const std::vector<Measured>& all, const Expected& expected) {
  if (!Tells(trouble, one, expected)) return false;
  switch (trouble) {
    case Trouble::kUnreachable:
      return !Arrives(one);
    case Trouble::kBlocked:
      return !one.connected && one.small_heard > 0 && SmallHeard(all, one.to, one.from);
    case Trouble::kMtu:
      return one.large_heard == 0;
    case Trouble::kNoRdma:
      return one.mbit_s == 0;
    case Trouble::kSlow:
      return one.connected && one.mbit_s < SlowBelow(one, expected);
    case Trouble::kLossy:
      return one.connected && one.lost > 0;
  }
  return false;
}

void Join(std::vector<Suspect>& suspects) {
  for (size_t i = 0; i < suspects.size(); ++i) {
    for (size_t j = suspects.size(); --j > i;) {
      Suspect& a = suspects[i];
      const Suspect& b = suspects[j];
      if (!SamePlace(a, b)) continue;
      if (a.direction != b.direction || a.node != b.node) {
        a.direction = Direction::kBoth;
        if (a.other < a.node && (a.scope == Scope::kPair || a.scope == Scope::kNetwork))
          std::swap(a.node, a.other);
        a.bad += b.bad;
        a.all += b.all;
        if (a.trouble == Trouble::kLossy) {
          a.is = std::max(a.is, b.is);
        } else if (PartOf(b.is, b.should) < PartOf(a.is, a.should)) {
          a.is = b.is;
          a.should = b.should;
        }
      }
      suspects.erase(suspects.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

std::vector<Suspect> Judge(const Layout& layout, const std::vector<Measured>& measured,
                           const Expected& expected) {
  std::vector<Suspect> suspects;
  std::vector<const Measured*> left;
  left.reserve(measured.size());
  for (const Measured& one : measured) left.push_back(&one);
  const auto take = [&](const Suspect& suspect) {
    std::erase_if(left, [&](const Measured* one) { return Over(suspect, layout, *one); });
    suspects.push_back(suspect);
  };
  // The worst first: who does not answer is not slow too.
  for (const Trouble trouble : {Trouble::kUnreachable, Trouble::kBlocked, Trouble::kMtu, Trouble::kNoRdma,
                                Trouble::kSlow, Trouble::kLossy}) {
    const auto is_bad = [&](const Measured& one) { return Is(trouble, one, measured, expected); };
    const auto telling = [&] {
      std::vector<const Measured*> tell;
      std::ranges::copy_if(left, std::back_inserter(tell),
                           [&](const Measured* one) { return Tells(trouble, *one, expected); });
      return tell;
    };
    // What a router carries, or loses, depends on who else sends at the time.
    if (trouble != Trouble::kSlow && trouble != Trouble::kLossy) {
      for (const Suspect& suspect : Apart(trouble, layout, telling(), is_bad)) take(suspect);
    }
    std::vector<const Measured*> bad;
    std::ranges::copy_if(left, std::back_inserter(bad), [&](const Measured* one) { return is_bad(*one); });
    if (bad.empty()) continue;
    for (const Suspect& suspect : Blame(trouble, layout, expected, telling(), bad).Run()) take(suspect);
  }
  Join(suspects);
  return suspects;
}

}  // namespace muster::preflight
