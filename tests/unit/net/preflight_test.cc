// The plan of a test of the fabric, and what its measurements say, over simulated fabrics.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <utility>

#include "net/preflight/blame.h"
#include "net/preflight/confirm.h"
#include "net/preflight/link_findings.h"
#include "net/preflight/mute.h"
#include "net/preflight/plan.h"
#include "net/preflight/rails.h"
#include "net/preflight/summary.h"
#include "net/roce/settings.h"
#include "tests/support/test_seed.h"

namespace muster::preflight {
namespace {

using Scope = Suspect::Scope;

// Whether every pair is there once, and no node twice in a round. Without the test's macros: there are 180 million pairs.
bool EachPairOnce(uint32_t nodes, const std::vector<Round>& rounds) {
  std::vector<uint8_t> met(size_t{nodes} * nodes);
  std::vector<size_t> busy(nodes);  // in which round at last
  size_t pairs = 0;
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (rounds[i].size() != nodes / 2) return false;
    for (const Pair& pair : rounds[i]) {
      if (pair.one >= pair.other || pair.other >= nodes) return false;
      if (std::exchange(busy[pair.one], i + 1) == i + 1 || std::exchange(busy[pair.other], i + 1) == i + 1)
        return false;
      const size_t at = size_t{pair.one} * nodes + pair.other;
      if (met[at] != 0) return false;
      met[at] = 1;
      ++pairs;
    }
  }
  return pairs == size_t{nodes} * (std::max(nodes, 1U) - 1) / 2;
}

TEST(Plan, EveryPairMeasuresOnceAndNoNodeTwiceInARound) {
  for (uint32_t nodes = 0; nodes <= 1'024; ++nodes) {
    const auto rounds = AllPairs(nodes);
    ASSERT_EQ(rounds.size(), nodes < 2 ? 0 : nodes + nodes % 2 - 1) << nodes;
    ASSERT_TRUE(EachPairOnce(nodes, rounds)) << nodes;
  }
}

TEST(Plan, EveryNodeMeetsOneOfItsOwnNetworkAndNoNodeTwiceInARound) {
  for (uint32_t nodes = 2; nodes <= 200; ++nodes) {
    for (const uint32_t rack : {1U, 2U, 3U, 5U, 8U}) {
      std::vector<uint32_t> networks;
      for (uint32_t node = 0; node < nodes; ++node) networks.push_back(node / rack);
      const auto quick = QuickPairs(nodes);
      const auto home = HomeRounds(networks, quick);
      EXPECT_LE(home.size(), 2U);
      std::vector<bool> met(nodes);
      for (const Round& round : quick) {
        for (const Pair& pair : round)
          if (networks[pair.one] == networks[pair.other]) met[pair.one] = met[pair.other] = true;
      }
      for (const Round& round : home) {
        std::set<uint32_t> busy;
        for (const Pair& pair : round) {
          EXPECT_LT(pair.one, pair.other);
          EXPECT_EQ(networks[pair.one], networks[pair.other]);
          EXPECT_FALSE(met[pair.one] && met[pair.other]) << "it tells nothing new";
          EXPECT_TRUE(busy.insert(pair.one).second && busy.insert(pair.other).second);
        }
        for (const Pair& pair : round) met[pair.one] = met[pair.other] = true;
      }
      for (uint32_t node = 0; node < nodes; ++node) {
        const bool alone = std::ranges::count(networks, networks[node]) == 1;
        EXPECT_EQ(met[node], !alone) << node << " of " << nodes << " in racks of " << rack;
      }
    }
  }
}

TEST(Plan, WithOneNetworkThereAreNoRoundsAtHome) {
  for (const uint32_t nodes : {2U, 3U, 64U})
    EXPECT_TRUE(HomeRounds(std::vector<uint32_t>(nodes), QuickPairs(nodes)).empty());
}

TEST(Plan, WhoMeetsNoneOfItsOwnRackElsewhereMeetsItsNeighbour) {
  const std::vector<uint32_t> rack(4);
  EXPECT_EQ(HomeRounds(rack, {{{0, 1}}, {{1, 2}}}), (std::vector<Round>{{{2, 3}}}));
  EXPECT_EQ(HomeRounds(rack, {{{1, 2}}, {{2, 3}}}), (std::vector<Round>{{{0, 3}}}));
}

// How soon is the benchmark's to say.
TEST(Plan, IsMadeSoon) {
  const auto began = std::chrono::steady_clock::now();
  const auto rounds = AllPairs(1'024);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  std::printf("plan_ms_1024 %.3f\n", took.count());
  EXPECT_EQ(rounds.size(), 1'023U);
}

TEST(Plan, QuickRoundsAreSomeOfAllAndGiveEachNodeThreePeersWhereThereAreSoMany) {
  for (uint32_t nodes = 2; nodes <= 1'024; ++nodes) {
    const auto rounds = QuickPairs(nodes);
    ASSERT_LE(rounds.size(), std::min<size_t>(nodes + nodes % 2 - 1, 13)) << nodes;
    std::vector<std::set<uint32_t>> peers(nodes);
    for (const Round& round : rounds) {
      for (const Pair& pair : round) {
        ASSERT_TRUE(peers[pair.one].insert(pair.other).second) << nodes;
        ASSERT_TRUE(peers[pair.other].insert(pair.one).second) << nodes;
      }
    }
    for (const auto& others : peers) ASSERT_GE(others.size(), std::min<uint32_t>(3, nodes - 1)) << nodes;
  }
}

// What a fabric's links do, and what a test of it hears.
class SimulatedFabric {
 public:
  SimulatedFabric(uint32_t nodes, uint32_t leaves, uint64_t seed) : layout_{nodes}, random_(seed) {
    for (uint32_t i = 0; i < nodes; ++i) layout_.switches.push_back(i * leaves / nodes);
  }

  void Plant(const Suspect& suspect) { planted_.push_back(suspect); }

  Measured Measure(uint32_t from, uint32_t to, uint64_t packets) {
    Measured one;
    one.from = from;
    one.to = to;
    one.packets = packets;
    one.connected = true;
    one.verbs = true;
    one.small_heard = one.large_heard = 4;
    std::uniform_real_distribution<double> part(0, 1);
    one.mbit_s = kRate * (0.95 + 0.05 * part(random_));
    // A node that does something else for a moment.
    if (part(random_) < kHiccup) one.mbit_s *= part(random_);
    for (const Suspect& suspect : planted_) {
      if (!Over(suspect, from, to)) continue;
      switch (suspect.trouble) {
        case Trouble::kUnreachable:
          one.connected = false;
          one.small_heard = one.large_heard = 0;
          break;
        case Trouble::kBlocked:
          one.connected = false;
          break;
        case Trouble::kMtu:
          one.large_heard = 0;
          break;
        case Trouble::kNoRdma:
          one.mbit_s = 0;
          break;
        case Trouble::kSlow:
          one.mbit_s /= 2;
          break;
        case Trouble::kLossy:
          one.lost = std::binomial_distribution<uint64_t>(packets, 0.01)(random_);
      }
    }
    if (!one.connected) one.mbit_s = 0, one.packets = 0, one.lost = 0;
    return one;
  }

  // What the whole test names.
  std::vector<Suspect> Test() {
    std::vector<Measured> measured;
    for (const Round& round : QuickPairs(layout_.nodes)) {
      for (const Pair& pair : round) {
        measured.push_back(Measure(pair.one, pair.other, kPackets));
        measured.push_back(Measure(pair.other, pair.one, kPackets));
      }
    }
    const Expected expected = ExpectedOf(measured, 0, 0.004);
    const auto suspects = Judge(layout_, measured, expected);
    std::set<uint32_t> able;
    for (uint32_t i = 0; i < layout_.nodes; ++i) able.insert(i);
    std::vector<Suspect> named;
    for (const Suspect& suspect : suspects) {
      std::vector<Measured> again;
      for (const Way& way : Witnesses(suspect, layout_, able, {}, suspects))
        again.push_back(Measure(way.from, way.to, 10 * kPackets));
      if (const auto confirmed = Confirmed(suspect, again, expected)) named.push_back(*confirmed);
    }
    Join(named);
    return named;
  }

  [[nodiscard]] const std::vector<uint32_t>& switches() const { return layout_.switches; }

 private:
  static constexpr double kRate = 400'000;
  static constexpr double kHiccup = 0.01;
  static constexpr uint64_t kPackets = 500;

  [[nodiscard]] bool Over(const Suspect& suspect, uint32_t from, uint32_t to) const {
    const bool out = suspect.direction != Direction::kIn;
    const bool in = suspect.direction != Direction::kOut;
    if (suspect.scope == Scope::kNode) return (out && from == suspect.node) || (in && to == suspect.node);
    if (suspect.scope == Scope::kPair) return from == suspect.node && to == suspect.other;
    if (layout_.switches[from] == layout_.switches[to]) return false;
    return (out && layout_.switches[from] == suspect.node) || (in && layout_.switches[to] == suspect.node);
  }

  Layout layout_;
  std::vector<Suspect> planted_;
  std::mt19937_64 random_;
};

std::string Text(const std::vector<Suspect>& suspects) {
  std::string text;
  for (const Suspect& one : suspects) {
    text += std::string(Name(one.trouble)) + " " + Name(one.direction) + " scope " +
            std::to_string(static_cast<int>(one.scope)) + " " + std::to_string(one.node) + "; ";
  }
  return text;
}

std::vector<Suspect> Sorted(std::vector<Suspect> suspects) {
  std::ranges::sort(suspects, {},
                    [](const Suspect& one) { return std::tuple(one.scope, one.node, one.trouble); });
  return suspects;
}

// 200 fabrics: a bad link, a bad node, a bad leaf switch, or two bad links of different nodes at once.
TEST(Judge, NamesWhatIsBadInSimulatedFabricsAndNothingElse) {
  constexpr std::array kTroubles{Trouble::kUnreachable, Trouble::kBlocked, Trouble::kMtu,
                                 Trouble::kNoRdma,      Trouble::kSlow,    Trouble::kLossy};
  constexpr std::array kDirections{Direction::kOut, Direction::kIn};
  std::mt19937_64 random(TestSeed());
  int named = 0;
  int other = 0;
  constexpr int kFabrics = 200;
  for (int i = 0; i < kFabrics; ++i) {
    const uint32_t leaves = 4 + random() % 4;
    const uint32_t nodes = leaves * (8 + random() % 8);
    SimulatedFabric fabric(nodes, leaves, random());
    std::vector<Suspect> planted;
    const auto plant = [&](Scope scope, uint32_t node, Direction direction) {
      Trouble trouble = kTroubles[random() % kTroubles.size()];
      // What has no connection at all has none in either direction.
      if (trouble == Trouble::kUnreachable || trouble == Trouble::kBlocked) direction = Direction::kBoth;
      planted.push_back({trouble, scope, node, 0, direction});
      fabric.Plant(planted.back());
    };
    const auto direction = [&] { return kDirections[random() % kDirections.size()]; };
    const uint32_t node = random() % nodes;
    switch (i % 4) {
      case 0:
        plant(Scope::kNode, node, direction());
        break;
      case 1:
        plant(Scope::kNode, node, Direction::kBoth);
        break;
      case 2:
        plant(Scope::kSwitch, fabric.switches()[node], direction());
        break;
      default:
        plant(Scope::kNode, node, direction());
        plant(Scope::kNode, (node + nodes / 2) % nodes, direction());
    }
    const auto found = Sorted(fabric.Test());
    const bool right = found == Sorted(planted);
    named += right ? 1 : 0;
    other += static_cast<int>(std::ranges::count_if(
        found, [&](const Suspect& one) { return std::ranges::find(planted, one) == planted.end(); }));
    if (!right) {
      RecordProperty("fabric_" + std::to_string(i), "planted " + Text(planted) + " found " + Text(found));
      std::printf("fabric %d: planted %s found %s\n", i, Text(planted).c_str(), Text(found).c_str());
    }
  }
  // For the benchmark.
  std::printf("bad_links_named %.3f\nfalse_findings %d\n", named / static_cast<double>(kFabrics), other);
  EXPECT_GE(named, kFabrics * 99 / 100);
  EXPECT_LE(other, kFabrics / 100);
}

TEST(Judge, AGoodFabricHasNoFindingThoughNodesAreBusyNowAndThen) {
  std::mt19937_64 random(TestSeed());
  int findings = 0;
  for (int i = 0; i < 200; ++i) {
    SimulatedFabric fabric(2 + random() % 127, 1 + random() % 4, random());
    findings += static_cast<int>(fabric.Test().size());
  }
  EXPECT_LE(findings, 2);
}

Measured Good(uint32_t from, uint32_t to, double mbit_s) {
  Measured one;
  one.from = from;
  one.to = to;
  one.mbit_s = mbit_s;
  one.packets = 100;
  one.connected = true;
  one.small_heard = one.large_heard = 4;
  return one;
}

TEST(Judge, OfTwoNodesOnlyTheDirectionIsKnown) {
  const auto found = Judge({2}, {Good(0, 1, 100), Good(1, 0, 40)}, {{100, 100}, 0.75, 0.004});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0], (Suspect{Trouble::kSlow, Scope::kPair, 1, 0, Direction::kOut}));
}

TEST(Judge, NothingMeasuredSaysNothing) {
  EXPECT_TRUE(Judge({4}, {}, {{0, 0}, 0.75, 0.004}).empty());
  EXPECT_TRUE(Judge({0}, {}, {{0, 0}, 0.75, 0.004}).empty());
  EXPECT_EQ(UsualRate({}), 0);
}

TEST(Latency, OfAPairIsItsShorterMeasurementAndWhatIsUnknownIsNoLatency) {
  const auto with = [](uint32_t from, uint32_t to, double us) {
    Measured one = Good(from, to, 100);
    one.latency_us = us;
    return one;
  };
  const auto latency =
      LatencyOf({with(0, 1, 5), with(1, 0, 4), with(2, 0, 90), with(0, 2, 9), with(1, 2, 6), with(3, 0, 0)});
  EXPECT_EQ(latency.usual_us, 6);
  EXPECT_EQ(latency.longest_us, 9);
  EXPECT_EQ(std::pair(latency.one, latency.other), std::pair(0U, 2U));
  EXPECT_EQ(LatencyOf({Good(0, 1, 100)}).usual_us, 0);
}

TEST(Shared, IsALinkThatOthersUseInMostMeasurementsOfADirection) {
  std::vector<Measured> measured;
  for (uint32_t peer = 1; peer < 4; ++peer) {
    measured.push_back(Good(0, peer, 100));
    measured.push_back(Good(peer, 0, 100));
    measured.back().other_in = 50;
  }
  measured[0].other_out = measured[2].other_in = 50;  // once only
  measured.push_back(Good(1, 2, 100));
  measured.push_back(Good(3, 2, 100));
  EXPECT_EQ(SharedLinks(measured, 4, {{100, 100}, 0.75, 0.004}), (std::set<uint32_t>{0}));
  measured[0].packets = 7;
  EXPECT_EQ(FewestPackets(measured), 7U);
  // What a link carries that others use is no measure.
  for (Measured& one : measured) one.mbit_s = one.other_in + one.other_out > 0 ? 300 : 100;
  EXPECT_EQ(UsualRate(measured), 100);
  std::erase_if(measured, [](const Measured& one) { return one.mbit_s == 100; });
  EXPECT_EQ(UsualRate(measured), 300) << "there are no others";
}

TEST(BelowRate, IsWhereMostLinksCarryLessThanTheSettingsSay) {
  const auto fabric = [](double mbit_s, bool verbs) {
    std::vector<Measured> measured{Good(0, 1, mbit_s), Good(1, 0, mbit_s), Good(2, 3, mbit_s),
                                   Good(3, 2, 50)};
    for (Measured& one : measured) one.verbs = verbs;
    return measured;
  };
  // The slow link alone is no reason: Judge names that.
  EXPECT_FALSE(BelowRate(fabric(360'000, true), 400'000));
  ASSERT_TRUE(BelowRate(fabric(90'000, true), 400'000));
  EXPECT_EQ(BelowRate(fabric(90'000, true), 400'000)->mbit_s, 90'000);
  // One connection of TCP carries no more on many hosts.
  EXPECT_FALSE(BelowRate(fabric(9'000, false), 400'000));
  EXPECT_TRUE(BelowRate(fabric(5'000, false), 400'000));
  EXPECT_TRUE(BelowRate({Good(0, 1, 10), Good(1, 0, 10)}, 20));
  // Others had their part of it.
  auto shared = fabric(90'000, true);
  for (Measured& one : shared) one.other_in = 200'000;
  EXPECT_FALSE(BelowRate(shared, 400'000));
  EXPECT_FALSE(BelowRate({}, 400'000));
}

TEST(Judge, AFewLostPacketsOnManyLinksAreNobodys) {
  std::vector<Measured> measured;
  for (uint32_t from = 0; from < 8; ++from) {
    for (uint32_t to = 0; to < 8; ++to) {
      if (from == to) continue;
      measured.push_back(Good(from, to, 100));
      measured.back().packets = 1'000;
      measured.back().lost = (from + to) % 3 == 0 ? 1 : 0;
    }
  }
  EXPECT_TRUE(Judge({8}, measured, {{100, 100}, 0.75, 0.004}).empty());
}

TEST(Witnesses, AreOthersThanWhoIsSuspected) {
  const Suspect slow{Trouble::kSlow, Scope::kNode, 1, 0, Direction::kOut};
  const Suspect other{Trouble::kMtu, Scope::kNode, 2, 0, Direction::kIn};
  const auto ways = Witnesses(slow, {}, {0, 1, 2, 3, 4}, {}, {slow, other});
  ASSERT_EQ(ways.size(), 2U);
  for (const Way& way : ways) {
    EXPECT_EQ(way.from, 1U);
    EXPECT_NE(way.to, 2U);
  }
  EXPECT_NE(ways[0].to, ways[1].to);
  EXPECT_TRUE(Witnesses(slow, {}, {0, 2}, {}, {slow}).empty());
  EXPECT_FALSE(Confirmed(slow, {}, {{100, 100}, 0.75, 0.004}));
  // Those whose links others use come last.
  EXPECT_EQ(Witnesses(slow, {}, {0, 1, 2, 3, 4}, {3, 4}, {slow}), (std::vector<Way>{{1, 0}, {1, 2}}));
}

// A node measures one way at a time: a round takes a time, of which a test has little.
TEST(Witnesses, OfManySuspectsMeasureInAFewRounds) {
  std::set<uint32_t> able;
  std::vector<Suspect> suspects;
  for (uint32_t node = 0; node < 64; ++node) {
    able.insert(node);
    if (node < 32) suspects.push_back({Trouble::kUnreachable, Scope::kNode, node, 0, Direction::kBoth});
  }
  std::vector<Remeasurement> todo;
  for (size_t i = 0; i < suspects.size(); ++i) {
    const auto ways = Witnesses(suspects[i], {}, able, {}, suspects);
    EXPECT_EQ(ways.size(), 4U);
    for (const Way& way : ways) {
      EXPECT_GE(std::max(way.from, way.to), 32U) << "the other node is suspected too";
      todo.push_back({i, way});
    }
  }
  std::set<std::pair<size_t, Way>> measured;
  size_t rounds = 0;
  while (!todo.empty()) {
    std::set<uint32_t> busy;
    ++rounds;
    for (const Remeasurement& one : TakeRound(todo)) {
      measured.emplace(one.suspect, one.way);
      EXPECT_TRUE(busy.insert(one.way.from).second && busy.insert(one.way.to).second)
          << "in round " << rounds;
    }
    ASSERT_FALSE(busy.empty());
  }
  EXPECT_EQ(measured.size(), 4 * suspects.size());
  // Each node has four ways. Two witnesses for all suspects would have needed 64 rounds.
  EXPECT_LE(rounds, 7U);
}

TEST(Judge, OtherTrafficExplainsALowRateAndLostPackets) {
  const Expected expected{{100, 100}, 0.75, 0.004};
  Measured shared = Good(0, 1, 50);
  shared.lost = 5;
  shared.other_in = 45;
  EXPECT_TRUE(Judge({2}, {shared, Good(1, 0, 100)}, expected).empty());
  shared.other_in = 5;
  const auto found = Judge({2}, {shared, Good(1, 0, 100)}, expected);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].trouble, Trouble::kSlow) << "it carries little in all";
  // A node with a slow link is named though most of its peers' links are shared: theirs say nothing.
  std::vector<Measured> measured;
  for (uint32_t peer = 1; peer < 6; ++peer) {
    measured.push_back(Good(0, peer, 50));
    measured.back().other_in = peer > 2 ? 50 : 0;
    measured.push_back(Good(peer, 0, 100));
  }
  EXPECT_EQ(Judge({6}, measured, expected),
            (std::vector<Suspect>{{Trouble::kSlow, Scope::kNode, 0, 0, Direction::kOut}}));
}

TEST(Judge, ANodeThatMeasuresOverTcpIsNotSlowBesideNodesWithRdma) {
  std::vector<Measured> measured;
  for (uint32_t from = 0; from < 6; ++from) {
    for (uint32_t to = 0; to < 6; ++to) {
      if (from == to) continue;
      measured.push_back(Good(from, to, from == 5 || to == 5 ? 20'000 : 390'000));
      measured.back().verbs = from != 5 && to != 5;
    }
  }
  const Expected expected = ExpectedOf(measured, 0, 0.004);
  EXPECT_EQ(expected.mbit_s, (std::array<double, 2>{20'000, 390'000}));
  EXPECT_TRUE(Judge({6}, measured, expected).empty());
  // Links of other nodes are found by either.
  for (Measured& one : measured) {
    if (one.from == 1) one.mbit_s /= 2;
  }
  auto found = Judge({6}, measured, expected);
  ASSERT_EQ(found, (std::vector<Suspect>{{Trouble::kSlow, Scope::kNode, 1, 0, Direction::kOut}}));
  EXPECT_EQ(std::pair(found[0].bad, found[0].all), std::pair(5U, 5U));
  EXPECT_EQ(std::pair(found[0].is, found[0].should), std::pair(195'000.0, 390'000.0));
  // So is one direction of the node's own.
  std::erase_if(measured, [](const Measured& one) { return one.from == 1; });
  for (Measured& one : measured) {
    if (one.to == 5) one.mbit_s = 5'000;
  }
  found = Judge({6}, measured, ExpectedOf(measured, 400'000, 0.004));
  ASSERT_EQ(found, (std::vector<Suspect>{{Trouble::kSlow, Scope::kNode, 5, 0, Direction::kIn}}));
  EXPECT_EQ(std::pair(found[0].is, found[0].should), std::pair(5'000.0, 20'000.0));
  // A rate that links do not reach is no measure, and what is faster than a link need be is none.
  EXPECT_EQ(ExpectedOf(measured, 10'000, 0).mbit_s, (std::array<double, 2>{10'000, 10'000}));
  // Much other traffic is much of what a link carries, not of what TCP reaches.
  Measured tcp = Good(5, 0, 20'000);
  tcp.other_out = 10'000;
  EXPECT_FALSE(Shared(tcp, expected));
}

TEST(Confirmed, ALinkThatWentDownInTheMiddleIsNamedAsWhatItIsNow) {
  const Expected expected{{100, 100}, 0.75, 0.004};
  const auto silent = [](uint32_t from, uint32_t to) {
    Measured one;
    one.from = from;
    one.to = to;
    one.error = "no answer";
    return one;
  };
  // Its writes failed on the way there, and nothing has arrived on the way back.
  Measured cut = Good(0, 1, 0);
  cut.verbs = true;
  auto suspects = Judge({2}, {cut, silent(1, 0)}, expected);
  ASSERT_EQ(suspects.size(), 2U);
  std::vector<Suspect> stand;
  for (const Suspect& suspect : suspects) {
    const std::vector<Measured> again(5, silent(suspect.node, suspect.other));
    const auto confirmed = Confirmed(suspect, again, expected);
    ASSERT_TRUE(confirmed);
    stand.push_back(*confirmed);
  }
  Join(stand);
  ASSERT_EQ(stand.size(), 1U);
  EXPECT_EQ(stand[0].trouble, Trouble::kUnreachable);
  EXPECT_EQ(stand[0].direction, Direction::kBoth);
  // One that arrives is enough for the doubt.
  EXPECT_FALSE(Confirmed(suspects[0], {silent(1, 0), Good(1, 0, 100)}, expected));
}

TEST(Join, LeavesOneSuspectOfATroubleInAPlace) {
  const Suspect there{Trouble::kSlow, Scope::kPair, 0, 1, Direction::kOut};
  const Suspect back{Trouble::kSlow, Scope::kPair, 1, 0, Direction::kOut};
  const Suspect node{Trouble::kSlow, Scope::kNode, 0, 0, Direction::kIn};
  std::vector<Suspect> all{there, node, there, back, node};
  Join(all);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].direction, Direction::kBoth);
  EXPECT_EQ(all[1], node);
}

// Two racks of four nodes, each with a network of its own.
const Layout kTwoRacks{8, {}, {0, 0, 0, 0, 1, 1, 1, 1}};

// What a quick test of them hears: what arrives carries 100 Mbit/s.
std::vector<Measured> OfTwoRacks(const std::function<bool(uint32_t from, uint32_t to)>& arrives) {
  std::vector<Measured> measured;
  for (const Round& round : QuickPairs(kTwoRacks.nodes)) {
    for (const auto& [one, other] : round) {
      for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
        measured.push_back(arrives(from, to) ? Good(from, to, 100) : Measured{from, to});
      }
    }
  }
  return measured;
}

bool InOneRack(uint32_t from, uint32_t to) {
  return kTwoRacks.networks[from] == kTwoRacks.networks[to];
}

TEST(Judge, NetworksThatDoNotReachEachOtherAreNoFaultOfANode) {
  const Expected expected{{100, 100}, 0.75, 0.004};
  const std::vector<Suspect> apart{{Trouble::kUnreachable, Scope::kNetwork, 0, 1, Direction::kBoth}};
  EXPECT_EQ(Judge(kTwoRacks, OfTwoRacks(InOneRack), expected), apart);
  const auto one_way = [](uint32_t from, uint32_t to) { return InOneRack(from, to) || from < to; };
  EXPECT_EQ(Judge(kTwoRacks, OfTwoRacks(one_way), expected),
            (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kNetwork, 1, 0, Direction::kOut}}));
  // A router joins them, and a node's cable is out.
  const auto without_5 = [](uint32_t from, uint32_t to) { return from != 5 && to != 5; };
  const Suspect cable{Trouble::kUnreachable, Scope::kNode, 5, 0, Direction::kBoth};
  EXPECT_EQ(Judge(kTwoRacks, OfTwoRacks(without_5), expected), (std::vector<Suspect>{cable}));
  // Without a router the nodes with a cable tell it.
  const auto neither = [&](uint32_t from, uint32_t to) { return InOneRack(from, to) && without_5(from, to); };
  const auto found = Judge(kTwoRacks, OfTwoRacks(neither), expected);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0], apart[0]);
  const auto again = Witnesses(apart[0], kTwoRacks, {0, 1, 2, 3, 4, 5, 6, 7}, {}, {apart[0], cable});
  ASSERT_EQ(again.size(), 4U) << "two pairs, in both directions";
  for (const Way& way : again) {
    EXPECT_FALSE(InOneRack(way.from, way.to));
    EXPECT_TRUE(without_5(way.from, way.to)) << "it is suspected itself";
  }
  // Of a single pair nobody knows what it says of all.
  EXPECT_EQ(
      Judge({4, {}, {0, 0, 1, 1}},
            {Good(0, 1, 100), Good(1, 0, 100), Good(2, 3, 100), Good(3, 2, 100), {0, 2}, {2, 0}}, expected),
      (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kPair, 0, 2, Direction::kBoth}}));
  // Nor of one node's pairs: that node may have lost its route.
  for (const Suspect& suspect : Judge({4, {}, {0, 0, 1, 1}},
                                      {Good(0, 1, 100),
                                       Good(1, 0, 100),
                                       Good(2, 3, 100),
                                       Good(3, 2, 100),
                                       {0, 2},
                                       {2, 0},
                                       {0, 3},
                                       {3, 0}},
                                      expected)) {
    EXPECT_NE(suspect.scope, Scope::kNetwork);
  }
}

TEST(Judge, AmongRacksTheLeafSwitchOfTheOneThatIsAloneIsNamed) {
  Layout layout{12, {}, {}};
  for (uint32_t node = 0; node < layout.nodes; ++node) layout.networks.push_back(node / 4);
  layout.switches = layout.networks;
  const auto hear = [&](const std::function<bool(uint32_t from, uint32_t to)>& arrives) {
    std::vector<Measured> measured;
    for (const Round& round : AllPairs(layout.nodes)) {
      for (const auto& [one, other] : round) {
        const bool joined = arrives(layout.networks[one], layout.networks[other]);
        measured.push_back(joined ? Good(one, other, 100) : Measured{one, other});
        measured.push_back(joined ? Good(other, one, 100) : Measured{other, one});
      }
    }
    return Judge(layout, measured, {{100, 100}, 0.75, 0.004});
  };
  EXPECT_EQ(hear([](uint32_t one, uint32_t other) { return one == other || (one != 2 && other != 2); }),
            (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kSwitch, 2, 0, Direction::kBoth}}));
  EXPECT_EQ(hear([](uint32_t one, uint32_t other) { return one + other != 2 || one == other; }),
            (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kNetwork, 0, 2, Direction::kBoth}}));
  // Where a rack has several leaf switches none of them explains it.
  for (uint32_t node = 0; node < layout.nodes; ++node) layout.switches[node] = node;
  EXPECT_EQ(hear([](uint32_t one, uint32_t other) { return one == other || (one != 2 && other != 2); }),
            (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kNetwork, 0, 2, Direction::kBoth},
                                  {Trouble::kUnreachable, Scope::kNetwork, 1, 2, Direction::kBoth}}));
}

// Racks of these sizes, each with a network of its own; nobody knows switches.
class Racks {
 public:
  explicit Racks(const std::vector<uint32_t>& sizes) {
    for (uint32_t rack = 0; rack < sizes.size(); ++rack)
      layout_.networks.insert(layout_.networks.end(), sizes[rack], rack);
    layout_.nodes = static_cast<uint32_t>(layout_.networks.size());
  }
  [[nodiscard]] uint32_t Of(uint32_t node) const { return layout_.networks[node]; }

  void MeasureOverTcp(uint32_t node) { over_tcp_.insert(node); }

  // In how many rounds what was found last has been measured again.
  [[nodiscard]] size_t rounds() const { return rounds_; }

  // What is found, and stands when it is measured again. `spoil` changes what a good measurement has seen.
  std::vector<Suspect> Find(const std::function<void(Measured&)>& spoil) {
    const auto look = [&](uint32_t from, uint32_t to) {
      Measured one = Good(from, to, 100);
      one.verbs = !over_tcp_.contains(from) && !over_tcp_.contains(to);
      spoil(one);
      return one;
    };
    auto rounds = QuickPairs(layout_.nodes);
    for (Round& round : HomeRounds(layout_.networks, rounds)) rounds.push_back(std::move(round));
    std::vector<Measured> measured;
    for (const Round& round : rounds) {
      for (const auto& [one, other] : round) {
        measured.push_back(look(one, other));
        measured.push_back(look(other, one));
      }
    }
    const Expected expected{{100, 100}, 0.75, 0.004};
    Able able;
    for (uint32_t node = 0; node < layout_.nodes; ++node) {
      able.all.insert(node);
      if (!over_tcp_.contains(node)) able.rdma.insert(node);
    }
    const auto suspects = Judge(layout_, measured, expected);
    auto todo = Remeasurements(suspects, layout_, able);
    std::vector<std::vector<Measured>> again(suspects.size());
    for (rounds_ = 0; !todo.empty(); ++rounds_) {
      for (const auto& [suspect, way] : TakeRound(todo)) again[suspect].push_back(look(way.from, way.to));
    }
    std::vector<Suspect> stand;
    for (size_t i = 0; i < suspects.size(); ++i) {
      if (const auto standing = Standing(suspects, i, again, expected)) stand.push_back(*standing);
    }
    Join(stand);
    return stand;
  }

 private:
  Layout layout_;
  std::set<uint32_t> over_tcp_;
  size_t rounds_ = 0;
};

void LoseAll(Measured& one) {
  one = {one.from, one.to};
}
void LoseLarge(Measured& one) {
  one.large_heard = 0;
  one.mbit_s = 0;
  one.connected = true;
}
void RefuseConnections(Measured& one) {
  one.connected = false;
  one.mbit_s = 0;
  one.large_heard = 0;
}

TEST(RacksOfTwo, WithoutARouterAreNoFaultOfTheirNodes) {
  for (const auto& sizes :
       std::vector<std::vector<uint32_t>>{{2, 30}, {2, 2, 2, 2, 2, 2}, {2, 14, 16}, {3, 2, 11}}) {
    Racks racks(sizes);
    const auto found = racks.Find([&](Measured& one) {
      if (racks.Of(one.from) != racks.Of(one.to)) LoseAll(one);
    });
    EXPECT_FALSE(found.empty());
    for (const Suspect& suspect : found) EXPECT_EQ(suspect.scope, Scope::kNetwork) << suspect.node;
  }
}

TEST(RacksOfTwo, OfWhichOneIsNotRoutedAreTheOneThatIsNamed) {
  Racks racks({2, 14, 16});
  const auto found = racks.Find([&](Measured& one) {
    if ((racks.Of(one.from) == 0) != (racks.Of(one.to) == 0)) LoseAll(one);
  });
  EXPECT_EQ(found, (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kNetwork, 0, 1, Direction::kBoth},
                                         {Trouble::kUnreachable, Scope::kNetwork, 0, 2, Direction::kBoth}}));
}

TEST(ARouter, WithASmallerMtuIsNoFaultOfANode) {
  for (const auto& sizes : std::vector<std::vector<uint32_t>>{{4, 4}, {2, 30}, {8, 8, 8, 8}, {1, 7, 8}}) {
    Racks racks(sizes);
    const auto found = racks.Find([&](Measured& one) {
      if (racks.Of(one.from) != racks.Of(one.to)) LoseLarge(one);
    });
    EXPECT_FALSE(found.empty());
    for (const Suspect& suspect : found) {
      EXPECT_EQ(suspect.trouble, Trouble::kMtu);
      // Of a node that is a rack by itself nobody knows whether it is the node or the router.
      EXPECT_TRUE(suspect.scope == Scope::kNetwork || sizes[0] == 1) << suspect.node;
    }
  }
}

TEST(ARouter, ThatRefusesConnectionsIsNoFaultOfANode) {
  Racks racks({4, 4});
  EXPECT_EQ(racks.Find([&](Measured& one) {
    if (racks.Of(one.from) != racks.Of(one.to)) RefuseConnections(one);
  }),
            (std::vector<Suspect>{{Trouble::kBlocked, Scope::kNetwork, 0, 1, Direction::kBoth}}));
}

TEST(ARouter, DoesNotHideANodeWhoseOwnLinkIsBadOrWhoseRouteIsGone) {
  Racks racks({8, 8});
  const std::vector<Suspect> of_3{{Trouble::kMtu, Scope::kNode, 3, 0, Direction::kBoth}};
  EXPECT_EQ(racks.Find([](Measured& one) {
    if (one.from == 3 || one.to == 3) LoseLarge(one);
  }),
            of_3);
  const auto lost = racks.Find([&](Measured& one) {
    if ((one.from == 3 || one.to == 3) && racks.Of(one.from) != racks.Of(one.to)) LoseAll(one);
  });
  EXPECT_EQ(lost, (std::vector<Suspect>{{Trouble::kUnreachable, Scope::kNode, 3, 0, Direction::kBoth}}));
}

TEST(ARouter, WithoutRdmaIsTheFindingThoughANodeMeasuresOverTcp) {
  for (const uint32_t node : {0U, 3U, 8U, 15U}) {
    Racks racks({8, 8});
    racks.MeasureOverTcp(node);
    EXPECT_EQ(racks.Find([&](Measured& one) {
      if (one.verbs && racks.Of(one.from) != racks.Of(one.to)) one.mbit_s = 0;
    }),
              (std::vector<Suspect>{{Trouble::kNoRdma, Scope::kNetwork, 0, 1, Direction::kBoth}}))
        << node;
  }
}

TEST(ARouter, WithASmallerMtuIsTheFindingThoughSomeHearNothing) {
  Racks racks({8, 8});
  EXPECT_EQ(racks.Find([&](Measured& one) {
    if (racks.Of(one.from) == racks.Of(one.to)) return;
    LoseLarge(one);
    if (one.from == 3 || one.to == 3) one.small_heard = 0;
  }),
            (std::vector<Suspect>{{Trouble::kMtu, Scope::kNetwork, 0, 1, Direction::kBoth}}));
}

// A round takes a second where connections are dropped, each rail takes its own, and a gang waits a minute for the verdict.
TEST(ARouter, BetweenManyRacksIsMeasuredAgainInAFewRounds) {
  for (const auto& [count, size] :
       {std::pair(32U, 16U), std::pair(64U, 8U), std::pair(24U, 8U), std::pair(16U, 2U)}) {
    for (const auto& spoil : {LoseAll, LoseLarge, RefuseConnections}) {
      for (const bool first_rack_only : {false, true}) {
        Racks racks(std::vector<uint32_t>(count, size));
        const auto found = racks.Find([&](Measured& one) {
          const auto [least, most] = std::minmax({racks.Of(one.from), racks.Of(one.to)});
          if (least != most && (least == 0 || !first_rack_only)) spoil(one);
        });
        EXPECT_GT(found.size(), first_rack_only ? 3U : count);
        for (const Suspect& suspect : found) EXPECT_EQ(suspect.scope, Scope::kNetwork) << suspect.node;
        EXPECT_LE(racks.rounds(), size == 2 ? 6U : 2U)
            << found.size() << " of " << count << " racks of " << size;
      }
    }
  }
}

TEST(Standing, NetworksThatDoNotMeasureStandWhenAllThatMeasureForThemDo) {
  std::vector<Suspect> suspects;
  for (uint32_t one = 1; one < 9; ++one)
    suspects.push_back({Trouble::kUnreachable, Scope::kNetwork, 0, one, Direction::kOut});
  std::vector<std::vector<Measured>> again(suspects.size());
  for (const size_t place : {0U, 2U, 5U}) again[place].emplace_back();
  const Expected expected{{100, 100}, 0.75, 0.004};
  for (size_t i = 0; i < suspects.size(); ++i) EXPECT_EQ(Standing(suspects, i, again, expected), suspects[i]);
  again[2] = {Good(0, 1, 100)};
  EXPECT_EQ(Standing(suspects, 0, again, expected), suspects[0]);
  EXPECT_FALSE(Standing(suspects, 1, again, expected));
  EXPECT_FALSE(Standing(suspects, 2, again, expected));
  // A suspect that had no witnesses says nothing.
  again[2].clear();
  EXPECT_EQ(Standing(suspects, 1, again, expected), suspects[1]);
  again = std::vector<std::vector<Measured>>(suspects.size());
  EXPECT_FALSE(Standing(suspects, 1, again, expected));
}

TEST(Mute, WhatWasTriedBetweenNetworksMakesNoNodeMute) {
  std::vector<Measured> tried{{0, 4}, {4, 0}, {0, 5}, {5, 0}, {1, 6}, {6, 1}};
  EXPECT_FALSE(Mute(kTwoRacks, tried).Has(0, 4)) << "three are not enough";
  tried.push_back({1, 7});
  EXPECT_TRUE(Mute(kTwoRacks, tried).Has(2, 6));
  EXPECT_FALSE(Mute(kTwoRacks, tried).Has(6, 2)) << "the other direction has been tried three times";
  EXPECT_FALSE(Mute(kTwoRacks, tried).Has(0, 1));
  tried.push_back(Good(1, 6, 100));
  EXPECT_FALSE(Mute(kTwoRacks, tried).Has(2, 6));
  EXPECT_TRUE(Mute({8}, tried).Has(0, 1)) << "without racks a node that nobody hears in two rounds is";
}

TEST(Findings, SayWhereInOneSentence) {
  const Places places{{{"n0", "roce0", 9000}, {"n1", "roce0", 9000}, {"n2", "", 1500}},
                      {"s0", "s1"},
                      {"10.1.0.0/16", "10.2.0.0/16"}};
  Suspect suspect{Trouble::kSlow, Scope::kNode, 1, 0, Direction::kIn, 3, 3, 200'000, 400'000};
  EXPECT_EQ(FindingOf(suspect, places).at("text"), "200000 of 400000 Mbit/s arrive to n1 (roce0).");
  suspect.scope = Scope::kPair;
  suspect.direction = Direction::kOut;
  EXPECT_EQ(FindingOf(suspect, places).at("text"), "200000 of 400000 Mbit/s arrive from n1 to n0.");
  suspect = {Trouble::kLossy, Scope::kSwitch, 1, 0, Direction::kBoth, 3, 3, 0.012};
  EXPECT_EQ(FindingOf(suspect, places).at("text"), "1.2 % of the packets through switch s1 are lost.");
  EXPECT_EQ(FindingOf(suspect, places).at("fix"),
            "on switch s1: state, speed and counters of its ports to other switches");
  suspect = {Trouble::kSlow, Scope::kNode, 1};
  EXPECT_EQ(FindingOf(suspect, places).at("fix"), "ethtool roce0");
  suspect = {Trouble::kLossy, Scope::kPair, 1, 0};
  EXPECT_EQ(FindingOf(suspect, places).at("fix"), "on n1 and n0: ethtool -S roce0");
  suspect = {Trouble::kUnreachable, Scope::kNode, 2};
  EXPECT_EQ(FindingOf(suspect, places).at("fix"), "ip -s link show");
  suspect = {Trouble::kUnreachable, Scope::kNetwork, 1, 0};
  EXPECT_EQ(
      FindingOf(suspect, places).at("text"),
      "Nothing arrives from 10.2.0.0/16 to 10.1.0.0/16, though their nodes reach others: no route joins "
      "these networks.");
  EXPECT_EQ(FindingOf(suspect, places).at("fix"), "ip route show to match 10.1.0.0/16");
  suspect.trouble = Trouble::kMtu;
  EXPECT_EQ(FindingOf(suspect, places).at("fix"), "ip link show; on the router between them");
  const auto mtus = MtuFindings(places);
  ASSERT_EQ(mtus.size(), 1U);
  EXPECT_EQ(mtus[0].at("text"), "n2 has an MTU of 1500, the others have 9000.");
}

// A node with these interfaces, each in a network: {"roce0", "10.1.0.0/16"}.
Node WithRails(const std::string& name, const std::vector<std::pair<std::string, std::string>>& rails) {
  Node node;
  node.name = name;
  node.networks = {"10.1.0.0/16", "10.2.0.0/16"};
  for (const auto& [interface, network] : rails) {
    RailOf& rail = node.rails.emplace_back();
    rail.interface = interface;
    rail.network = network;
    rail.own = node.rails.size() - 1;
    rail.port = 9;
  }
  return node;
}

std::vector<std::string> Interfaces(const Node& node) {
  std::vector<std::string> names;
  for (const RailOf& rail : node.rails) names.push_back(rail.Here() ? rail.interface : "-");
  return names;
}

TEST(Rails, OfANetworkThatANodeLacksShiftNoOthers) {
  const std::string one = "10.1.0.0/16";
  const std::string two = "10.2.0.0/16";
  std::vector<Node> nodes;
  nodes.push_back(WithRails("n0", {{"roce0", one}, {"roce1", one}, {"roce2", one}, {"roce3", two}}));
  nodes.push_back(WithRails("n1", {{"roce0", one}, {"roce2", one}, {"roce3", two}}));
  nodes.push_back(WithRails("n2", {{"roce0", one}, {"roce1", one}, {"roce2", one}}));
  nodes.push_back(WithRails("n3", {{"", ""}}));
  nodes.push_back(WithRails("n4", {{"ens1", one}, {"ens2", one}, {"ens3", one}, {"ens4", two}}));
  nodes[2].networks = {one};
  const auto rails = AlignRails(nodes);
  ASSERT_EQ(rails.size(), 4U);
  EXPECT_EQ(Interfaces(nodes[1]), (std::vector<std::string>{"roce0", "-", "roce2", "roce3"}));
  EXPECT_EQ(nodes[1].rails[2].own, 1U);
  EXPECT_EQ(Interfaces(nodes[2]), (std::vector<std::string>{"roce0", "roce1", "roce2", "-"}));
  EXPECT_EQ(Interfaces(nodes[3]), (std::vector<std::string>{"-", "-", "-", "-"}));
  EXPECT_EQ(Interfaces(nodes[4]), (std::vector<std::string>{"ens1", "ens2", "ens3", "ens4"}));
  std::vector<std::string> texts;
  for (const auto& finding : RailFindings(nodes, rails)) {
    texts.push_back(finding.at("text"));
    EXPECT_EQ(finding.at("trouble"), "no-rail");
  }
  EXPECT_EQ(texts, (std::vector<std::string>{
                       "n3 has no address in 10.1.0.0/16, others have (roce0).",
                       "n1 has 2 of 3 interfaces in 10.1.0.0/16: roce1 is missing.",
                       "The settings of n2 do not name the network 10.2.0.0/16, those of others do.",
                       "n3 has no address in 10.2.0.0/16, others have (roce3)."}));
}

TEST(Rails, WhereMostNodesLackANetworkNoneIsNamed) {
  std::vector<Node> nodes;
  nodes.push_back(WithRails("n0", {{"roce0", "10.1.0.0/16"}}));
  for (const char* name : {"n1", "n2"}) nodes.push_back(WithRails(name, {{"", ""}}));
  auto found = RailFindings(nodes, AlignRails(nodes));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].at("text"), "1 of 3 nodes have an address in 10.1.0.0/16.");
  EXPECT_FALSE(found[0].contains("node"));
  nodes.erase(nodes.begin());
  for (Node& node : nodes) node = WithRails(node.name, {{"", ""}});
  found = RailFindings(nodes, AlignRails(nodes));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].at("text"),
            "No node has an address in 10.1.0.0/16, 10.2.0.0/16: what leads to MASTER_ADDR was measured.");
  for (Node& node : nodes) node.networks.clear();
  EXPECT_TRUE(RailFindings(nodes, AlignRails(nodes)).empty()) << "no settings name a fabric";
}

TEST(Rails, OfRacksWithNetworksOfTheirOwnMeasureByTheirPlaces) {
  const std::vector<std::string> all{"10.1.1.0/24", "10.1.2.0/24", "10.2.1.0/24", "10.2.2.0/24"};
  for (const size_t second : {1U, 3U, 5U}) {
    std::vector<Node> nodes;
    for (size_t i = 0; i < 5 + second; ++i) {
      const size_t rack = i < 5 ? 0 : 2;
      nodes.push_back(WithRails("n" + std::to_string(i), {{"roce0", all[rack]}, {"roce1", all[rack + 1]}}));
      nodes.back().networks = all;
    }
    const auto rails = AlignRails(nodes);
    ASSERT_EQ(rails.size(), 2U);
    for (const Node& node : nodes) EXPECT_EQ(Interfaces(node), (std::vector<std::string>{"roce0", "roce1"}));
    EXPECT_EQ(RailFindings(nodes, rails), nlohmann::json::array());
  }
  std::vector<Node> nodes;
  nodes.push_back(WithRails("n0", {{"roce0", all[0]}, {"roce1", all[1]}}));
  nodes.push_back(WithRails("n1", {{"roce0", all[2]}, {"roce1", all[3]}}));
  nodes.push_back(WithRails("n2", {{"roce1", all[3]}}));
  nodes.push_back(WithRails("n3", {{"", ""}}));
  for (Node& node : nodes) node.networks = all;
  std::vector<std::string> texts;
  for (const auto& finding : RailFindings(nodes, AlignRails(nodes))) texts.push_back(finding.at("text"));
  const std::string network = "10.1.1.0/24, 10.1.2.0/24, 10.2.1.0/24 and 1 more";
  EXPECT_EQ(texts,
            (std::vector<std::string>{"n3 has no address in " + network + ", others have (roce0).",
                                      "n2 has 1 of 2 interfaces in " + network + ": roce0 is missing."}));
  EXPECT_EQ(Interfaces(nodes[2]), (std::vector<std::string>{"-", "roce1"}));
}

TEST(Rails, OverOnePortTakeTurnsAndOthersMeasureTogether) {
  using Groups = std::vector<std::vector<uint32_t>>;
  std::vector<Node> nodes;
  for (const char* name : {"n0", "n1"})
    nodes.push_back(WithRails(name, {{"roce0", "a"}, {"roce0.100", "b"}, {"roce1", "c"}}));
  EXPECT_EQ(RailGroups(nodes, 3), (Groups{{0, 1, 2}})) << "whose ports nobody knows";
  nodes[0].rails[0].carriers = {"roce0"};
  nodes[0].rails[2].carriers = {"roce1", "mlx5_1:1"};
  nodes[1].rails[0].carriers = {"roce0", "mlx5_0:1"};
  nodes[1].rails[1].carriers = {"mlx5_0:1"};
  EXPECT_EQ(RailGroups(nodes, 3), (Groups{{0, 2}, {1}})) << "they share a port on one node";
  nodes[0].rails[1].carriers = {"roce1"};
  EXPECT_EQ(RailGroups(nodes, 3), (Groups{{0, 2}, {1}}));
  nodes[1].rails[2].carriers = {"roce0"};
  EXPECT_EQ(RailGroups(nodes, 3), (Groups{{0}, {1}, {2}}));
}

TEST(Rails, OfOneNetworkAreInTheOrderOfTheirAddresses) {
  EXPECT_LT(roce::AddressBytes("10.1.2.1"), roce::AddressBytes("10.1.10.1"));
  EXPECT_LT(roce::AddressBytes("10.1.10.1"), roce::AddressBytes("fd00::1"));
  EXPECT_EQ(roce::AddressBytes("10.1.2"), "");
}

Places::Node WithVerbs(const std::string& name, bool verbs, const std::string& why = "") {
  return {name, "roce0", 9000, verbs, true, {why, why.empty() ? "" : "mend " + why}};
}

TEST(Findings, ANodeWithoutRdmaAmongNodesWithItIsNamedAndSaysWhy) {
  Places places{{WithVerbs("n0", true), WithVerbs("n1", false, "mlx5_0 port 1 is DOWN"), {"n2"}}, {}};
  auto found = VerbsFindings(places);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].at("trouble"), "no-rdma");
  EXPECT_EQ(found[0].at("node"), "n1");
  EXPECT_EQ(found[0].at("text"), "n1 (roce0) has no RDMA, others have: mlx5_0 port 1 is DOWN.");
  EXPECT_EQ(found[0].at("fix"), "mend mlx5_0 port 1 is DOWN");
  EXPECT_TRUE(OverTcp({places}).empty()) << "it is named already";
  // Most lack it: no spare would be better.
  places.nodes.push_back(WithVerbs("n3", false, "no file"));
  EXPECT_TRUE(VerbsFindings(places).empty());
  for (const char* name : {"n4", "n5", "n6"}) places.nodes.push_back(WithVerbs(name, false, "no file"));
  const auto told = OverTcp({places, places});
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].at("text"), "n1 measured over TCP: mlx5_0 port 1 is DOWN.");
  EXPECT_EQ(told[1].at("text"), "n3, n4, n5 and 1 more measured over TCP: no file.");
  EXPECT_EQ(told[1].at("fix"), "mend no file");
  // A fabric without RDMA devices is measured over TCP, and nothing is wrong.
  for (Places::Node& node : places.nodes) node.verbs = node.device = false;
  EXPECT_TRUE(VerbsFindings(places).empty());
  EXPECT_TRUE(OverTcp({places}).empty());
}

}  // namespace
}  // namespace muster::preflight
