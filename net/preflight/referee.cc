#include "net/preflight/referee.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "net/preflight/blame.h"
#include "net/preflight/conductor.h"
#include "net/preflight/confirm.h"
#include "net/preflight/link_findings.h"
#include "net/preflight/mute.h"
#include "net/preflight/plan.h"
#include "net/preflight/rails.h"
#include "net/preflight/roll.h"
#include "net/preflight/summary.h"

namespace muster::preflight {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kQuick{100};
// What is suspected is measured three times as long.
constexpr int kAgain = 3;
constexpr int kRateAgain = 3;
// Losses are counted in more packets.
constexpr int kAgainLossy = 10;
// Above it packets are lost for a reason; the part that a test of that length can see.
constexpr double kLossyQuick = 0.004;
constexpr double kLossyFull = 0.0004;
constexpr double kPacketsFull = 4'600;  // over each link and direction
// Both sides of a measurement give up on each other before.
constexpr milliseconds kLate{12'000};
constexpr milliseconds kVerdictSent{5'000};

struct Found {
  json findings = json::array();
  json passing = json::array();  // what was not seen again
  std::set<uint32_t> shared;     // nodes whose links carried much besides
};

class Test {
 public:
  Test(const TestOptions& options, std::vector<Node> nodes)
      : options_(options), nodes_(std::move(nodes)), rails_(AlignRails(nodes_)), conductor_(nodes_, kLate) {}

  json Run();
  void Tell(const json& verdict);

 private:
  [[nodiscard]] uint32_t Rails() const { return static_cast<uint32_t>(rails_.size()); }
  [[nodiscard]] int64_t RateOf(uint32_t rail) const;
  [[nodiscard]] uint64_t FewestPacketsOfRails() const;
  [[nodiscard]] json Missing() const;
  void NumberSwitches();
  void NumberNetworks();
  [[nodiscard]] std::vector<Measured> MeasuredOf(uint32_t rail) const;
  [[nodiscard]] milliseconds Duration() const;
  void MeasureRound(const Round& round, const std::vector<uint32_t>& rails, bool back);
  void MeasureAtHome(const std::vector<Round>& rounds, const std::vector<std::vector<uint32_t>>& groups);
  std::vector<std::vector<Measured>> MeasureAgain(const std::vector<Suspect>& suspects,
                                                  const std::set<uint32_t>& shared, uint32_t rail);
  void Find(uint32_t rail, Found& found);
  void FindRate(uint32_t rail, const std::vector<Measured>& measured, Found& found);
  [[nodiscard]] Places PlacesOf(uint32_t rail) const;

  TestOptions options_;
  std::vector<Node> nodes_;  // those that came, by their number
  std::vector<RailName> rails_;
  Conductor conductor_;
  std::vector<MeasuredLeg> measured_;
  std::vector<uint32_t> switches_;  // of each node its leaf's number; empty when one does not know its own
  std::vector<std::string> switch_names_;
  std::vector<std::string> network_names_;
  std::vector<Layout> layouts_;  // of each rail
};

std::vector<Measured> Test::MeasuredOf(uint32_t rail) const {
  std::vector<Measured> measured;
  for (const MeasuredLeg& one : measured_) {
    if (one.leg.rail == rail) measured.push_back(one.measured);
  }
  return measured;
}

// What the fastest link of the rail carries; 0: nobody knows.
int64_t Test::RateOf(uint32_t rail) const {
  int64_t rate = 0;
  for (const Node& node : nodes_) rate = std::max(rate, node.rails[rail].rate_mbit_s);
  return rate;
}

uint64_t Test::FewestPacketsOfRails() const {
  std::optional<uint64_t> fewest;
  for (uint32_t rail = 0; rail < Rails(); ++rail) {
    const std::vector<Measured> measured = MeasuredOf(rail);
    if (!measured.empty()) fewest = std::min(fewest.value_or(~uint64_t{0}), FewestPackets(measured));
  }
  return fewest.value_or(0);
}

json Test::Missing() const {
  json missing = json::array();
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    if (!std::ranges::binary_search(nodes_, i, {}, &Node::number)) missing.push_back(i);
  }
  return missing;
}

void Test::NumberSwitches() {
  if (std::ranges::any_of(nodes_, [](const Node& node) { return node.switches.empty(); })) return;
  for (const Node& node : nodes_) {
    const auto known = std::ranges::find(switch_names_, node.switches);
    switches_.push_back(static_cast<uint32_t>(known - switch_names_.begin()));
    if (known == switch_names_.end()) switch_names_.push_back(node.switches);
  }
}

void Test::NumberNetworks() {
  for (uint32_t rail = 0; rail < Rails(); ++rail) {
    Layout& layout = layouts_.emplace_back(Layout{static_cast<uint32_t>(nodes_.size()), switches_, {}});
    for (const Node& node : nodes_) {
      const std::string& own = node.rails[rail].own_network;
      const auto known = std::ranges::find(network_names_, own);
      layout.networks.push_back(static_cast<uint32_t>(known - network_names_.begin()));
      if (known == network_names_.end()) network_names_.push_back(own);
    }
  }
}

milliseconds Test::Duration() const {
  if (!options_.full) return kQuick;
  // A packet of 1,500 bytes is the smallest that a link may have for its payload.
  int64_t slowest = 0;
  for (uint32_t rail = 0; rail < Rails(); ++rail) {
    const int64_t own = RateOf(rail);
    if (own > 0 && (slowest == 0 || own < slowest)) slowest = own;
  }
  const double rate = slowest > 0 ? static_cast<double>(slowest) : 1'000;
  const double packets_a_second = rate * 1e6 / 8 / 1'500;
  const double others = std::max<double>(1, static_cast<double>(nodes_.size()) - 1);
  const auto needed = static_cast<int64_t>(1000 * 1.2 * kPacketsFull / others / packets_a_second);
  return std::clamp(milliseconds(needed), kQuick, milliseconds(10'000));
}

Places Test::PlacesOf(uint32_t rail) const {
  Places places;
  places.switches = switch_names_;
  places.networks = network_names_;
  for (const Node& node : nodes_) {
    const RailOf& own = node.rails[rail];
    places.nodes.push_back({node.name, own.interface, own.mtu, own.verbs, own.device, own.no_verbs});
  }
  return places;
}

// What is suspected alone: the ways of one suspect must not disturb another's.
std::vector<std::vector<Measured>> Test::MeasureAgain(const std::vector<Suspect>& suspects,
                                                      const std::set<uint32_t>& shared, uint32_t rail) {
  Able able;
  able.shared = shared;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].gone || !nodes_[i].rails[rail].Here()) continue;
    able.all.insert(i);
    if (nodes_[i].rails[rail].verbs) able.rdma.insert(i);
  }
  std::vector<Remeasurement> todo = Remeasurements(suspects, layouts_[rail], able);
  std::vector<std::vector<Measured>> again(suspects.size());
  while (!todo.empty()) {
    std::map<Way, size_t> now;
    std::vector<Leg> legs;
    for (const Remeasurement& one : TakeRound(todo)) {
      now[one.way] = one.suspect;
      legs.push_back({rail, one.way.from, one.way.to});
    }
    const bool lossy = std::ranges::any_of(
        now, [&](const auto& one) { return suspects[one.second].trouble == Trouble::kLossy; });
    for (const MeasuredLeg& one : conductor_.Measure(legs, Duration() * (lossy ? kAgainLossy : kAgain)))
      again[now.at({one.leg.from, one.leg.to})].push_back(one.measured);
  }
  return again;
}

void Test::Find(uint32_t rail, Found& found) {
  const std::vector<Measured> measured = MeasuredOf(rail);
  const Expected expected = ExpectedOf(measured, RateOf(rail), options_.full ? kLossyFull : kLossyQuick);
  const std::set<uint32_t> shared = SharedLinks(measured, nodes_.size(), expected);
  for (const uint32_t node : shared) found.shared.insert(node);
  const Places places = PlacesOf(rail);
  std::set<std::string> other_mtu;
  for (json& finding : MtuFindings(places)) {
    other_mtu.insert(finding.at("node"));
    found.findings.push_back(std::move(finding));
  }
  for (json& finding : VerbsFindings(places)) found.findings.push_back(std::move(finding));
  auto suspects = Judge(layouts_[rail], measured, expected);
  // Why large packets are lost there is known.
  const auto known = [&](uint32_t node) { return other_mtu.contains(nodes_[node].name); };
  const auto all_known = [&](uint32_t network) {
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      if (layouts_[rail].networks[node] == network && !known(node)) return false;
    }
    return true;
  };
  std::erase_if(suspects, [&](const Suspect& suspect) {
    if (suspect.trouble != Trouble::kMtu) return false;
    if (suspect.scope == Suspect::Scope::kNetwork) return all_known(suspect.node) || all_known(suspect.other);
    return suspect.scope == Suspect::Scope::kNode && known(suspect.node);
  });
  const auto again = MeasureAgain(suspects, shared, rail);
  std::vector<Suspect> stand;
  for (size_t i = 0; i < suspects.size(); ++i) {
    if (const auto standing = Standing(suspects, i, again, expected)) {
      stand.push_back(*standing);
    } else {
      found.passing.push_back(FindingOf(suspects[i], places));
    }
  }
  Join(stand);
  for (const Suspect& suspect : stand) found.findings.push_back(FindingOf(suspect, places));
  FindRate(rail, measured, found);
}

// As for any finding, a host that was busy for a moment must not look like a slow link: the pair measures again.
void Test::FindRate(uint32_t rail, const std::vector<Measured>& measured, Found& found) {
  int64_t rate = 0;
  for (const Node& node : nodes_) rate = std::max(rate, node.rate_mbit_s);
  const auto below = rate > 0 ? BelowRate(measured, rate) : std::nullopt;
  if (!below) return;
  std::vector<Measured> again;
  for (int i = 0; i < kRateAgain; ++i) {
    for (const MeasuredLeg& one : conductor_.Measure({{rail, below->from, below->to}}, Duration() * kAgain))
      again.push_back(one.measured);
  }
  if (again.empty() ||
      std::ranges::any_of(again, [&](const Measured& one) { return !BelowRate({one}, rate); }))
    return;
  found.findings.push_back(RateFinding(rails_[rail].interface, below->mbit_s, rate));
}

void Test::MeasureRound(const Round& round, const std::vector<uint32_t>& rails, bool back) {
  std::vector<Leg> legs;
  for (const uint32_t rail : rails) {
    const Mute mute(layouts_[rail], MeasuredOf(rail));
    for (const Pair& pair : round) {
      const Leg leg{rail, back ? pair.other : pair.one, back ? pair.one : pair.other};
      if (!mute.Has(leg.from, leg.to)) legs.push_back(leg);
    }
  }
  for (MeasuredLeg& one : conductor_.Measure(legs, Duration())) measured_.push_back(std::move(one));
}

// Rails on which the nodes are in the same racks are measured at the same time.
void Test::MeasureAtHome(const std::vector<Round>& rounds, const std::vector<std::vector<uint32_t>>& groups) {
  for (const auto& group : groups) {
    std::vector<std::pair<std::vector<Round>, std::vector<uint32_t>>> homes;
    for (const uint32_t rail : group) {
      std::vector<Round> home = HomeRounds(layouts_[rail].networks, rounds);
      const auto same = std::ranges::find(homes, home, [](const auto& one) { return one.first; });
      if (same != homes.end()) {
        same->second.push_back(rail);
      } else {
        homes.emplace_back(std::move(home), std::vector{rail});
      }
    }
    for (const auto& [home, rails] : homes) {
      for (const Round& round : home) {
        for (const bool back : {false, true}) MeasureRound(round, rails, back);
      }
    }
  }
}

json Test::Run() {
  const auto began = Clock::now();
  NumberSwitches();
  NumberNetworks();
  const auto count = static_cast<uint32_t>(nodes_.size());
  const auto groups = RailGroups(nodes_, rails_.size());
  const std::vector<Round> rounds = options_.full ? AllPairs(count) : QuickPairs(count);
  for (const Round& round : rounds) {
    for (const auto& group : groups) {
      // One direction after the other: answers of a slow one must not wait behind the other's data.
      for (const bool back : {false, true}) MeasureRound(round, group, back);
    }
  }
  MeasureAtHome(rounds, groups);
  std::vector<Measured> all;
  for (const MeasuredLeg& one : measured_) all.push_back(one.measured);
  const Latency latency = LatencyOf(all);
  json longest = json::array();
  if (latency.longest_us > 0) longest = {nodes_[latency.one].name, nodes_[latency.other].name};
  Found found;
  std::vector<Places> places;
  for (uint32_t rail = 0; rail < Rails(); ++rail) {
    Find(rail, found);
    places.push_back(PlacesOf(rail));
  }
  // Behind what was measured: whoever shows the findings shows the first ones.
  for (json& finding : RailFindings(nodes_, rails_)) found.findings.push_back(std::move(finding));
  json gone = json::array();
  for (const Node& node : nodes_) {
    if (node.gone) gone.push_back(node.name);
  }
  json shared = json::array();
  for (const uint32_t node : found.shared) shared.push_back(nodes_[node].name);
  json missing = Missing();
  const bool ok = missing.empty() && gone.empty() && found.findings.empty();
  return {{"ok", ok},
          {"nodes", nodes_.size()},
          {"rails", Rails()},
          {"mode", options_.full ? "full" : "quick"},
          {"transport", std::ranges::none_of(all, &Measured::verbs)  ? "tcp"
                        : std::ranges::all_of(all, &Measured::verbs) ? "rdma"
                                                                     : "rdma and tcp"},
          {"seconds", std::chrono::duration<double>(Clock::now() - began).count()},
          {"mbit_s", ExpectedOf(all, 0, 0).Most()},
          {"latency_us", latency.usual_us},
          {"longest_latency_us", latency.longest_us},
          {"longest_pair", longest},
          {"measurements", measured_.size()},
          {"packets", FewestPacketsOfRails()},
          {"over_tcp", OverTcp(places)},
          {"findings", found.findings},
          {"passing", found.passing},
          {"shared", shared},
          {"gone", gone},
          {"missing", missing}};
}

void Test::Tell(const json& verdict) {
  for (Node& node : nodes_) {
    if (!node.gone)
      (void)node.stream->Send({{"verdict", {{"ok", verdict.at("ok")}}}}, Clock::now() + kVerdictSent);
  }
}

}  // namespace

Result<json> RunTest(const UniqueFd& listening, const TestOptions& options) {
  auto nodes = CallRoll(listening, options.run, options.nodes, options.come);
  if (nodes.size() < 2)
    return Error{Errc::kUnavailable,
                 fmt::format("{} of {} nodes came to the test: it needs two", nodes.size(), options.nodes)};
  Test test(options, std::move(nodes));
  const json verdict = test.Run();
  test.Tell(verdict);
  return verdict;
}

}  // namespace muster::preflight
