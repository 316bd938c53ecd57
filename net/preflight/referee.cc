#include "net/preflight/referee.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "net/preflight/blame.h"
#include "net/preflight/confirm.h"
#include "net/preflight/link_findings.h"
#include "net/preflight/plan.h"
#include "net/preflight/tcp_probe.h"
#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kMaxRails = 16;
constexpr milliseconds kQuick{100};
// What is suspected is measured three times as long.
constexpr int kAgain = 3;
// Losses are counted in more packets.
constexpr int kAgainLossy = 10;
// Above it packets are lost for a reason; the part that a test of that length can see.
constexpr double kLossyQuick = 0.004;
constexpr double kLossyFull = 0.0004;
constexpr double kPacketsFull = 4'600;  // over each link and direction
// Both sides give up on each other before.
constexpr milliseconds kLate{6'000};
constexpr milliseconds kOrderSent{5'000};
constexpr milliseconds kHello{500};

struct RailOf {
  std::string interface;
  std::string address;
  uint16_t port = 0;
  int64_t mtu = 0;
  bool verbs = false;
};

struct Node {
  uint32_t number = 0;
  std::string name;
  std::string switches;
  std::vector<RailOf> rails;
  std::unique_ptr<LineStream> stream;
  bool gone = false;
};

// One direction of a pair on a rail; nodes by their place in `nodes_`.
struct Leg {
  uint32_t rail = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};

struct MeasuredLeg {
  Leg leg;
  Measured measured;
};

std::optional<Node> ParseHello(const json& message, const std::string& run, std::string& refused) {
  try {
    Node node;
    node.number = message.at("node").get<uint32_t>();
    node.name = message.at("name").get<std::string>().substr(0, 255);
    node.switches = message.value("switches", "").substr(0, 1'024);
    if (message.at("hello").get<std::string>() != run) {
      refused = "this node belongs to another test";
      return std::nullopt;
    }
    for (const json& one : message.at("rails")) {
      node.rails.push_back(
          {one.value("interface", "").substr(0, 64), one.at("address").get<std::string>().substr(0, 64),
           one.at("port").get<uint16_t>(), one.value("mtu", int64_t{0}), one.value("verbs", false)});
    }
    if (node.rails.empty() || node.rails.size() > kMaxRails) {
      refused = "a node has one rail to sixteen";
      return std::nullopt;
    }
    return node;
  } catch (const json::exception& error) {
    refused = fmt::format("what this node says is not understood: {}", error.what());
    return std::nullopt;
  }
}

class Test {
 public:
  explicit Test(const TestOptions& options) : options_(options) {}

  Status Gather(const UniqueFd& listening);
  json Run();
  void Tell(const json& verdict);

 private:
  // A phase: legs in which no link has two measurements of one direction.
  std::vector<MeasuredLeg> Measure(const std::vector<Leg>& legs, milliseconds duration);
  void Order(const Leg& leg, uint64_t id, milliseconds duration, bool sends);
  void Hear(Node& node, std::map<uint64_t, MeasuredLeg>& open, std::map<uint64_t, int>& answers);

  void GiveOwnAddress();
  [[nodiscard]] uint32_t Rails() const;
  [[nodiscard]] bool Takes(const Leg& leg) const;
  [[nodiscard]] bool Verbs(const Leg& leg) const;
  void NumberSwitches();
  [[nodiscard]] milliseconds Duration() const;
  [[nodiscard]] bool Mute(uint32_t node, uint32_t rail) const;
  std::vector<std::vector<Measured>> MeasureAgain(const std::vector<Suspect>& suspects, uint32_t rail);
  // Into `findings` what was seen again, into `passing` what was not.
  void Find(uint32_t rail, json& findings, json& passing);
  [[nodiscard]] Places PlacesOf(uint32_t rail) const;

  TestOptions options_;
  std::vector<Node> nodes_;  // those that came, by their number
  json missing_ = json::array();
  std::vector<MeasuredLeg> measured_;
  std::vector<uint32_t> switches_;  // of each node its leaf's number; empty when one does not know its own
  std::vector<std::string> switch_names_;
  uint64_t next_id_ = 1;
};

Status Test::Gather(const UniqueFd& listening) {
  std::vector<std::unique_ptr<LineStream>> guests;  // have not said who they are
  while (nodes_.size() < options_.nodes && Clock::now() < options_.come) {
    std::vector<pollfd> entries{{listening.get(), POLLIN, 0}};
    for (const auto& guest : guests) entries.push_back({guest->fd(), POLLIN, 0});
    const auto left = std::chrono::ceil<milliseconds>(options_.come - Clock::now());
    if (::poll(entries.data(), entries.size(),
               static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000))) <= 0)
      continue;
    for (size_t i = guests.size(); i-- > 0;) {
      if (entries[i + 1].revents == 0) continue;
      // Who sends half a line holds up the others for a moment.
      const auto hello = guests[i]->Receive(std::min(options_.come, Clock::now() + kHello));
      auto stream = std::move(guests[i]);
      guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
      if (!hello) continue;
      std::string refused;
      auto node = ParseHello(*hello, options_.run, refused);
      const bool twice = node && std::ranges::any_of(
                                     nodes_, [&](const Node& other) { return other.number == node->number; });
      if (twice) refused = fmt::format("node {} is here already", node->number);
      if (node && node->number >= options_.nodes)
        refused = fmt::format("this test has {} nodes", options_.nodes);
      if (!refused.empty()) {
        (void)stream->Send({{"refused", refused}}, Clock::now() + kOrderSent);
        continue;
      }
      node->stream = std::move(stream);
      nodes_.push_back(std::move(*node));
    }
    if (entries[0].revents != 0) {
      UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid() && guests.size() < size_t{2} * options_.nodes + 16)
        guests.push_back(std::make_unique<LineStream>(std::move(fd)));
    }
  }
  std::ranges::sort(nodes_, {}, &Node::number);
  GiveOwnAddress();
  std::set<uint32_t> here;
  for (const Node& node : nodes_) here.insert(node.number);
  for (uint32_t i = 0; i < options_.nodes; ++i) {
    if (!here.contains(i)) missing_.push_back(i);
  }
  if (nodes_.size() < 2)
    return Error{Errc::kUnavailable,
                 fmt::format("{} of {} nodes came to the test: it needs two", nodes_.size(), options_.nodes)};
  return {};
}

// Who has come over the loopback interface is on this host, and the others reach it where they have reached the referee.
void Test::GiveOwnAddress() {
  std::string own;
  for (const Node& node : nodes_) {
    const auto address = rendezvous::LocalAddress(node.stream->fd());
    const std::string text = !address ? "" : address->starts_with("::ffff:") ? address->substr(7) : *address;
    if (!text.empty() && !rendezvous::IsLoopback(text)) own = text;
  }
  if (own.empty()) return;
  for (Node& node : nodes_) {
    for (RailOf& rail : node.rails) {
      if (rendezvous::IsLoopback(rail.address)) rail.address = own;
    }
  }
}

uint32_t Test::Rails() const {
  size_t rails = 0;
  for (const Node& node : nodes_) rails = std::max(rails, node.rails.size());
  return static_cast<uint32_t>(rails);
}

bool Test::Takes(const Leg& leg) const {
  const auto has = [&](uint32_t node) { return !nodes_[node].gone && leg.rail < nodes_[node].rails.size(); };
  return has(leg.from) && has(leg.to);
}

// Whether both ends can measure it with RDMA.
bool Test::Verbs(const Leg& leg) const {
  return nodes_[leg.from].rails[leg.rail].verbs && nodes_[leg.to].rails[leg.rail].verbs;
}

void Test::NumberSwitches() {
  if (std::ranges::any_of(nodes_, [](const Node& node) { return node.switches.empty(); })) return;
  for (const Node& node : nodes_) {
    const auto known = std::ranges::find(switch_names_, node.switches);
    switches_.push_back(static_cast<uint32_t>(known - switch_names_.begin()));
    if (known == switch_names_.end()) switch_names_.push_back(node.switches);
  }
}

milliseconds Test::Duration() const {
  if (!options_.full) return kQuick;
  // A packet of 1,500 bytes is the smallest that a link may have for its payload.
  const double rate = options_.rate_mbit_s > 0 ? static_cast<double>(options_.rate_mbit_s) : 1'000;
  const double packets_a_second = rate * 1e6 / 8 / 1'500;
  const double others = std::max<double>(1, static_cast<double>(nodes_.size()) - 1);
  const auto needed = static_cast<int64_t>(1000 * 1.2 * kPacketsFull / others / packets_a_second);
  return std::clamp(milliseconds(needed), kQuick, milliseconds(10'000));
}

void Test::Order(const Leg& leg, uint64_t id, milliseconds duration, bool sends) {
  Node& node = nodes_[sends ? leg.from : leg.to];
  const RailOf& peer = nodes_[sends ? leg.to : leg.from].rails[leg.rail];
  json order{{"id", id},
             {"ms", duration.count()},
             {"rate", options_.rate_mbit_s},
             {"verbs", Verbs(leg)},
             {"address", peer.address},
             {"port", peer.port}};
  if (!node.stream->Send({{sends ? "send" : "receive", order}, {"rail", leg.rail}},
                         Clock::now() + kOrderSent))
    node.gone = true;
}

void Test::Hear(Node& node, std::map<uint64_t, MeasuredLeg>& open, std::map<uint64_t, int>& answers) {
  const auto message = node.stream->Receive(Clock::now() + kOrderSent);
  if (!message) {
    node.gone = true;
    return;
  }
  try {
    const auto id = message->at("id").get<uint64_t>();
    const auto found = open.find(id);
    if (found == open.end()) return;  // of a phase whose time was over
    Measured& measured = found->second.measured;
    std::string error;
    if (message->contains("sent")) {
      const json& sent = message->at("sent");
      measured.packets = sent.at("packets").get<uint64_t>();
      measured.lost = sent.at("lost").get<uint64_t>();
      measured.connected = sent.at("connected").get<bool>();
      measured.latency_us = sent.at("latency_us").get<double>();
      if (measured.verbs) measured.mbit_s = sent.at("mbit_s").get<double>();
      error = sent.at("error").get<std::string>();
    } else {
      const json& received = message->at("received");
      if (!measured.verbs) measured.mbit_s = received.at("mbit_s").get<double>();
      measured.small_heard = received.at("small").get<uint32_t>();
      measured.large_heard = received.at("large").get<uint32_t>();
      error = received.at("error").get<std::string>();
    }
    if (measured.error.empty()) measured.error = error;
    ++answers[id];
  } catch (const json::exception&) {
    node.gone = true;
  }
}

std::vector<MeasuredLeg> Test::Measure(const std::vector<Leg>& legs, milliseconds duration) {
  std::map<uint64_t, MeasuredLeg> open;
  std::map<uint64_t, int> answers;
  for (const Leg& leg : legs) {
    if (!Takes(leg)) continue;
    Measured measured;
    measured.from = leg.from;
    measured.to = leg.to;
    measured.verbs = Verbs(leg);
    open[next_id_++] = {leg, measured};
  }
  for (const bool sends : {false, true}) {
    for (const auto& [id, one] : open) Order(one.leg, id, duration, sends);
  }
  const auto until = Clock::now() + duration + kLate;
  const auto done = [&] {
    return std::ranges::all_of(open, [&](const auto& one) {
      const Leg& leg = one.second.leg;
      const int expected = (nodes_[leg.from].gone ? 0 : 1) + (nodes_[leg.to].gone ? 0 : 1);
      const auto found = answers.find(one.first);
      return (found == answers.end() ? 0 : found->second) >= expected;
    });
  };
  while (!done() && Clock::now() < until) {
    std::vector<pollfd> entries;
    std::vector<Node*> of;
    for (Node& node : nodes_) {
      if (node.gone) continue;
      entries.push_back({node.stream->fd(), POLLIN, 0});
      of.push_back(&node);
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    if (::poll(entries.data(), entries.size(), static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0)
      continue;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents != 0) Hear(*of[i], open, answers);
    }
  }
  std::vector<MeasuredLeg> measured;
  for (auto& [id, one] : open) {
    // What a node that has ended meanwhile did not say is no fault of its links.
    if (answers[id] == 2) measured.push_back(std::move(one));
  }
  return measured;
}

Places Test::PlacesOf(uint32_t rail) const {
  Places places;
  places.switches = switch_names_;
  for (const Node& node : nodes_) {
    const bool has = rail < node.rails.size();
    places.nodes.push_back(
        {node.name, has ? node.rails[rail].interface : "", has ? node.rails[rail].mtu : 0});
  }
  return places;
}

// Whether no connection of this node's has come to pass, in two rounds or more: there is no need to wait for more of them.
bool Test::Mute(uint32_t node, uint32_t rail) const {
  size_t tried = 0;
  for (const MeasuredLeg& one : measured_) {
    if (one.leg.rail != rail || (one.leg.from != node && one.leg.to != node)) continue;
    if (one.measured.connected) return false;
    ++tried;
  }
  return tried >= 4;
}

// What is suspected alone: the ways of one suspect must not disturb another's.
std::vector<std::vector<Measured>> Test::MeasureAgain(const std::vector<Suspect>& suspects, uint32_t rail) {
  std::set<uint32_t> able;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].gone && rail < nodes_[i].rails.size()) able.insert(i);
  }
  std::vector<std::pair<size_t, Leg>> todo;
  for (size_t i = 0; i < suspects.size(); ++i) {
    for (const Way& way : Witnesses(suspects[i], switches_, able, suspects))
      todo.emplace_back(i, Leg{rail, way.from, way.to});
  }
  std::vector<std::vector<Measured>> again(suspects.size());
  while (!todo.empty()) {
    std::set<uint32_t> busy;
    std::map<Way, size_t> now;
    std::vector<Leg> legs;
    std::erase_if(todo, [&](const auto& one) {
      const Leg& leg = one.second;
      if (busy.contains(leg.from) || busy.contains(leg.to)) return false;
      busy.insert({leg.from, leg.to});
      now[{leg.from, leg.to}] = one.first;
      legs.push_back(leg);
      return true;
    });
    const bool lossy = std::ranges::any_of(
        now, [&](const auto& one) { return suspects[one.second].trouble == Trouble::kLossy; });
    for (const MeasuredLeg& one : Measure(legs, Duration() * (lossy ? kAgainLossy : kAgain)))
      again[now.at({one.leg.from, one.leg.to})].push_back(one.measured);
  }
  return again;
}

void Test::Find(uint32_t rail, json& findings, json& passing) {
  std::vector<Measured> measured;
  for (const MeasuredLeg& one : measured_) {
    if (one.leg.rail == rail) measured.push_back(one.measured);
  }
  Expected expected;
  // What is faster than a link need be is no measure for others.
  expected.mbit_s = UsualRate(measured);
  if (options_.rate_mbit_s > 0)
    expected.mbit_s = std::min(expected.mbit_s, static_cast<double>(options_.rate_mbit_s));
  expected.lossy_above = options_.full ? kLossyFull : kLossyQuick;
  const Places places = PlacesOf(rail);
  std::set<std::string> other_mtu;
  for (json& finding : MtuFindings(places)) {
    other_mtu.insert(finding.at("node"));
    findings.push_back(std::move(finding));
  }
  auto suspects = Judge(static_cast<uint32_t>(nodes_.size()), switches_, measured, expected);
  // Why its large packets are lost is known.
  std::erase_if(suspects, [&](const Suspect& suspect) {
    return suspect.trouble == Trouble::kMtu && suspect.scope == Suspect::Scope::kNode &&
           other_mtu.contains(nodes_[suspect.node].name);
  });
  const auto again = MeasureAgain(suspects, rail);
  for (size_t i = 0; i < suspects.size(); ++i)
    (Stands(suspects[i], again[i], expected) ? findings : passing)
        .push_back(FindingOf(suspects[i], places, expected));
}

json Test::Run() {
  const auto began = Clock::now();
  NumberSwitches();
  const auto count = static_cast<uint32_t>(nodes_.size());
  for (const Round& round : options_.full ? AllPairs(count) : QuickPairs(count)) {
    // One direction after the other: answers of a slow one must not wait behind the other's data.
    for (const bool back : {false, true}) {
      std::vector<Leg> legs;
      for (uint32_t rail = 0; rail < Rails(); ++rail) {
        for (const Pair& pair : round) {
          if (!Mute(pair.one, rail) && !Mute(pair.other, rail))
            legs.push_back({rail, back ? pair.other : pair.one, back ? pair.one : pair.other});
        }
      }
      for (MeasuredLeg& one : Measure(legs, Duration())) measured_.push_back(std::move(one));
    }
  }
  std::vector<Measured> all;
  for (const MeasuredLeg& one : measured_) all.push_back(one.measured);
  const Latency latency = LatencyOf(all);
  json findings = json::array();
  json passing = json::array();
  for (uint32_t rail = 0; rail < Rails(); ++rail) Find(rail, findings, passing);
  json gone = json::array();
  for (const Node& node : nodes_) {
    if (node.gone) gone.push_back(node.name);
  }
  const bool ok = missing_.empty() && gone.empty() && findings.empty();
  return {{"ok", ok},
          {"nodes", nodes_.size()},
          {"rails", Rails()},
          {"mode", options_.full ? "full" : "quick"},
          {"transport", std::ranges::all_of(all, &Measured::verbs)    ? "rdma"
                        : std::ranges::none_of(all, &Measured::verbs) ? "tcp"
                                                                      : "rdma and tcp"},
          {"seconds", std::chrono::duration<double>(Clock::now() - began).count()},
          {"mbit_s", UsualRate(all)},
          {"latency_us", latency.usual_us},
          {"longest_latency_us", latency.longest_us},
          {"longest_pair", json::array({nodes_[latency.one].name, nodes_[latency.other].name})},
          {"measurements", measured_.size()},
          {"findings", findings},
          {"passing", passing},
          {"gone", gone},
          {"missing", missing_}};
}

void Test::Tell(const json& verdict) {
  for (Node& node : nodes_) {
    if (!node.gone)
      (void)node.stream->Send({{"verdict", {{"ok", verdict.at("ok")}}}}, Clock::now() + kOrderSent);
  }
}

}  // namespace

Result<json> RunTest(const UniqueFd& listening, const TestOptions& options) {
  Test test(options);
  if (Status came = test.Gather(listening); !came) return came.error();
  const json verdict = test.Run();
  test.Tell(verdict);
  return verdict;
}

}  // namespace muster::preflight
