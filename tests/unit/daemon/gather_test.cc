// What members give each other under a key: the nodes' side and the coordinator's, joined by queues that a test may cut.
#include "daemon/gather/gather.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <random>
#include <utility>

#include "tests/support/test_seed.h"

namespace muster::gather {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum wire::Heard;

constexpr uint64_t kGeneration = 3;

std::vector<std::string> Unpack(const std::string& packed, uint32_t members) {
  std::vector<std::string> values;
  uint32_t begin = 0;
  for (uint32_t rank = 0; rank < members; ++rank) {
    uint32_t end = 0;
    for (size_t i = 4; i-- > 0;) end = end << 8 | static_cast<unsigned char>(packed.at(4 * rank + i));
    values.push_back(packed.substr(4 * members + begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(packed.size(), 4 * members + begin);
  return values;
}

// Nodes of some members each, ranks in the order of nodes, and the coordinator.
class Gang {
 public:
  Gang(uint32_t nodes, uint32_t each)
      : each_(each), members_(nodes * each), answers(nodes * each), linked(nodes, true) {
    for (uint32_t node = 0; node < nodes; ++node) nodes_.push_back(Make(node));
    NewCoordinator();
  }

  // The number of the call.
  uint64_t Give(uint32_t rank, const std::string& key, const std::string& value, wire::Heard heard = kNew) {
    nodes_[rank / each_]->Give(rank, ++number_, key, value, heard);
    return number_;
  }
  void AskMissing(uint32_t rank, const std::string& key) {
    nodes_[rank / each_]->AskMissing(rank, ++number_, key);
  }
  // All that is on its way, and what follows from it.
  void Deliver() {
    while (!up.empty() || !down.empty()) {
      if (!up.empty()) DeliverUp();
      if (!down.empty()) DeliverDown();
    }
  }
  void DeliverUp() {
    const auto [node, gather] = std::move(up.front());
    up.pop_front();
    EXPECT_TRUE(coordinator->Take(node, Through(gather)));
  }
  void DeliverDown() {
    const auto [node, gathered] = std::move(down.front());
    down.pop_front();
    nodes_[node]->Take(Through(gathered));
  }
  // Another coordinator: what was on its way is lost, and the nodes register.
  void NewCoordinator() {
    coordinator.emplace(kGeneration, members_, [this](uint32_t node, const v1::Gathered& gathered) {
      if (linked[node]) down.emplace_back(node, gathered);
    });
    up.clear();
    down.clear();
    for (uint32_t node = 0; node < nodes_.size(); ++node) Link(node);
  }
  // Of one node: what it knew is lost, and its link. It has another one.
  void NewMusterd(uint32_t node) {
    Unlink(node);
    nodes_[node] = Make(node);
    Link(node);
  }
  // What was on its way is lost, and what is sent until there is a link again.
  void Unlink(uint32_t node) {
    linked[node] = false;
    std::erase_if(up, [&](const auto& one) { return one.first == node; });
    std::erase_if(down, [&](const auto& one) { return one.first == node; });
    coordinator->Left(node);
  }
  void Link(uint32_t node) {
    linked[node] = true;
    nodes_[node]->Again();
  }

  // The values that a rank got last, or what it was told.
  std::vector<std::string> Got(uint32_t rank) {
    if (answers[rank].empty()) return {"(nothing)"};
    const NodeSide::Answer answer = std::move(answers[rank].back());
    answers[rank].clear();
    if (!answer.values) return {fmt::format("{}: {}", static_cast<int>(answer.status), answer.text)};
    return Unpack(*answer.values, members_);
  }

  std::deque<std::pair<uint32_t, v1::Gather>> up;
  std::deque<std::pair<uint32_t, v1::Gathered>> down;

 private:
  std::unique_ptr<NodeSide> Make(uint32_t node) {
    NodeSide::World world{"", members_, {}};
    for (uint32_t i = 0; i < each_; ++i) world.ranks.insert(node * each_ + i);
    return std::make_unique<NodeSide>(
        kGeneration, world,
        [this](const NodeSide::Answer& answer) { answers[answer.rank].push_back(answer); },
        [this, node](v1::Gather gather) {
          if (linked[node]) up.emplace_back(node, std::move(gather));
        });
  }
  template <typename Message>
  static Message Through(const Message& message) {
    Message read;
    EXPECT_TRUE(read.ParseFromString(message.SerializeAsString()));
    return read;
  }

  uint32_t each_;
  uint32_t members_;
  uint64_t number_ = 0;
  std::vector<std::unique_ptr<NodeSide>> nodes_;

 public:
  std::vector<std::vector<NodeSide::Answer>> answers;  // by rank
  std::vector<bool> linked;                            // by node
  std::optional<GangSide> coordinator;
};

TEST(Gather, AllGetAllValuesInTheOrderOfRanksByOneMessageOfEachNode) {
  Gang gang(2, 2);
  gang.Give(3, "where", "d");
  gang.Give(0, "where", "a");
  gang.Give(1, "where", "");
  EXPECT_EQ(gang.up.size(), 1U);
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("(nothing)"));
  gang.Give(2, "where", "ccc");
  EXPECT_EQ(gang.up.size(), 1U);
  gang.DeliverUp();
  EXPECT_EQ(gang.down.size(), 2U);
  gang.Deliver();
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_THAT(gang.Got(rank), ElementsAre("a", "", "ccc", "d"));
}

TEST(Gather, WhoIsMissingIsNamed) {
  Gang gang(6, 2);
  gang.Give(4, "k", "x");
  gang.AskMissing(4, "k");
  gang.Deliver();
  EXPECT_THAT(
      gang.Got(4),
      ElementsAre("0: 11 of 12 members have given nothing yet: rank 0, 1, 2, 3, 5, 6, 7, 8 and others"));
  for (uint32_t rank = 0; rank < 11; ++rank) {
    if (rank != 4 && rank != 2) gang.Give(rank, "k", "x");
  }
  gang.AskMissing(4, "k");
  gang.Deliver();
  // Rank 3's node waits for rank 2 before it says anything, and so does rank 10's for rank 11.
  EXPECT_THAT(gang.Got(4), ElementsAre("0: 4 of 12 members have given nothing yet: rank 2, 3, 10, 11"));
}

TEST(Gather, WhatWasGivenStandsAndTheSameCallGoesOnWaiting) {
  Gang gang(2, 1);
  gang.Give(0, "k", "a");
  gang.Deliver();
  gang.Give(0, "k", "a", kAgain);
  gang.Give(1, "k", "b");
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("a", "b"));
  EXPECT_THAT(gang.Got(1), ElementsAre("a", "b"));
}

TEST(Gather, AKeyIsUsedOnce) {
  Gang gang(2, 2);
  gang.Give(0, "k", "a");
  gang.Give(0, "k", "other");
  EXPECT_THAT(gang.Got(0), ElementsAre("-4: rank 0 has given a value under the key k already"));
  for (uint32_t rank = 1; rank < 4; ++rank) gang.Give(rank, "k", "x");
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("a", "x", "x", "x"));
  gang.Give(0, "k", "a");
  EXPECT_THAT(gang.Got(0), ElementsAre(HasSubstr("the key k has been used in this generation")));
  // Whatever was exchanged since.
  for (uint32_t rank = 0; rank < 4; ++rank) gang.Give(rank, "l", "x");
  gang.Deliver();
  gang.Give(2, "k", "a");
  gang.Give(3, "k", "a");
  gang.Deliver();
  EXPECT_THAT(gang.Got(2), ElementsAre(HasSubstr("the key k has been used in this generation")));
  EXPECT_THAT(gang.Got(3), ElementsAre(HasSubstr("the key k has been used in this generation")));
}

TEST(Gather, AUsedKeyIsKnownAfterATakeover) {
  Gang gang(2, 1);
  for (const char* key : {"k", "l"}) {
    for (uint32_t rank = 0; rank < 2; ++rank) gang.Give(rank, key, "x");
    gang.Deliver();
  }
  gang.NewCoordinator();
  gang.Deliver();
  gang.answers[0].clear();
  gang.Give(0, "k", "x");
  EXPECT_THAT(gang.Got(0), ElementsAre(HasSubstr("the key k has been used in this generation")));
}

TEST(Gather, WhatIsTooLargeOrTooMuchIsRefused) {
  Gang gang(1, 1);
  gang.Give(0, "k", std::string(4097, 'x'));
  EXPECT_THAT(gang.Got(0),
              ElementsAre("-7: a value of 4097 bytes; in an exchange of 1 members each may give 4096"));
  EXPECT_EQ(LargestValue(16'384), 512U);
  gang.Give(0, "no key", "x");
  EXPECT_THAT(gang.Got(0), ElementsAre(HasSubstr("no key of an exchange")));
  gang.Give(0, std::string(64, 'k'), "x");
  EXPECT_THAT(gang.Got(0), ElementsAre(HasSubstr("no key of an exchange")));
  Gang two(2, 1);
  for (size_t i = 0; i <= kMaxOpen; ++i) two.Give(0, fmt::format("k{}", i), "x");
  EXPECT_THAT(two.Got(0),
              ElementsAre("-8: 16 exchanges wait for other members already, as under the key k0"));
}

TEST(Gather, WhatIsOfAnotherGenerationIsNoneOfIts) {
  Gang gang(1, 1);
  v1::Gather stale;
  stale.set_generation(kGeneration - 1);
  stale.set_members(1);
  stale.set_key("k");
  stale.add_ranks(0);
  stale.add_values("old");
  EXPECT_FALSE(gang.coordinator->Take(0, stale));
  gang.Give(0, "k", "new");
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("new"));
}

TEST(Gather, AMalformedMessageChangesNothing) {
  Gang gang(2, 1);
  v1::Gather gather;
  gather.set_generation(kGeneration);
  gather.set_members(2);
  gather.set_key("k");
  gather.add_ranks(0);
  EXPECT_FALSE(gang.coordinator->Take(0, gather)) << "no value";
  gather.add_values("a");
  gather.set_ranks(0, 2);
  EXPECT_FALSE(gang.coordinator->Take(0, gather)) << "no such rank";
  gather.set_ranks(0, 0);
  gather.set_values(0, std::string(5000, 'x'));
  EXPECT_FALSE(gang.coordinator->Take(0, gather)) << "too long";
  gather.set_values(0, "a");
  gather.set_members(0);
  EXPECT_FALSE(gang.coordinator->Take(0, gather)) << "nobody";
  gather.set_members(3);
  EXPECT_FALSE(gang.coordinator->Take(0, gather)) << "more than there are";
  gang.Give(0, "k", "b");
  gang.Give(1, "k", "c");
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("b", "c"));
}

TEST(Gather, RolesExchangeAmongThemselves) {
  std::vector<std::string> got;
  GangSide coordinator(kGeneration, 2, [&](uint32_t node, const v1::Gathered& gathered) {
    got.push_back(fmt::format("{} {} {}", node, gathered.world(), Unpack(gathered.values(), 1)[0]));
  });
  for (const auto& [node, world] : {std::pair(0, ""), std::pair(1, "data")}) {
    v1::Gather gather;
    gather.set_generation(kGeneration);
    gather.set_world(world);
    gather.set_members(1);
    gather.set_key("k");
    gather.add_ranks(0);
    gather.add_values(fmt::format("of {}", node));
    EXPECT_TRUE(coordinator.Take(static_cast<uint32_t>(node), gather));
  }
  EXPECT_THAT(got, ElementsAre("0  of 0", "1 data of 1"));
}

TEST(Gather, ANodeThatIsBackGetsWhatWasCompletedMeanwhile) {
  Gang gang(2, 1);
  gang.Give(0, "k", "a");
  gang.Deliver();
  gang.Unlink(0);
  gang.Give(1, "k", "b");
  gang.Deliver();
  gang.Link(0);
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("a", "b"));
}

// A new coordinator needs the value of a member that comes back to a new musterd only when its node has all values already.
TEST(Gather, WhoIsBackLateIsHeardByANewCoordinator) {
  Gang gang(2, 2);
  for (uint32_t rank = 0; rank < 4; ++rank) gang.Give(rank, "k", "x");
  while (!gang.up.empty()) gang.DeliverUp();
  gang.Unlink(1);
  gang.Deliver();
  gang.NewMusterd(0);
  gang.Give(1, "k", "x", kAgain);
  gang.Deliver();
  gang.NewCoordinator();
  gang.Deliver();
  EXPECT_THAT(gang.Got(3), ElementsAre("(nothing)"));
  gang.Give(0, "k", "x", kAnswered);
  gang.Deliver();
  EXPECT_THAT(gang.Got(3), ElementsAre("x", "x", "x", "x"));
}

// Both nodes' musterds have been lost, so members have offered a key again that they have the values of. It is not completed anew,
// and a node that has come further does not fall back to it: the other would wait for ever.
TEST(Gather, AnOlderKeyIsNotTheNewestAgain) {
  Gang gang(2, 1);
  const auto offer = [&](uint32_t rank) {
    gang.NewMusterd(rank);
    gang.Give(rank, "older", "x", kAnswered);
    gang.Give(rank, "newer", "y", kAgain);
  };
  for (uint32_t rank : {0U, 1U}) gang.Give(rank, "older", "x");
  gang.Deliver();
  for (uint32_t rank : {0U, 1U}) offer(rank);
  gang.up.clear();
  gang.NewCoordinator();
  while (!gang.up.empty()) gang.DeliverUp();
  std::erase_if(gang.down, [](const auto& one) { return one.first == 1; });
  gang.Deliver();
  EXPECT_THAT(gang.Got(0), ElementsAre("y", "y"));
  for (int takeover = 0; takeover < 2; ++takeover) {
    gang.NewCoordinator();
    while (!gang.up.empty()) gang.DeliverUp();
    if (takeover == 0) std::erase_if(gang.down, [](const auto& one) { return one.first == 1; });
    gang.Deliver();
  }
  EXPECT_THAT(gang.Got(1), ElementsAre("y", "y"));
}

// A program that exchanges values under some keys, with all that may be lost.
class Lives {
 public:
  static constexpr uint32_t kKeys = 4;

  Lives(std::mt19937_64& random, bool ascending)
      : random_(random),
        ascending_(ascending),
        nodes_(static_cast<uint32_t>(1 + random() % 4)),
        each_(static_cast<uint32_t>(1 + random() % 3)),
        gang_(nodes_, each_),
        ranks_(nodes_ * each_) {}

  void Run() {
    for (int step = 0; step < 100'000 && !Done(); ++step) {
      ASSERT_NO_FATAL_FAILURE(TakeAnswers());
      const auto rank = static_cast<uint32_t>(random_() % ranks_.size());
      const auto node = static_cast<uint32_t>(random_() % nodes_);
      const uint64_t what = random_() % 100;
      if (what < 36) {
        Call(rank);
      } else if (what < 60) {
        if (!gang_.up.empty()) gang_.DeliverUp();
      } else if (what < 84) {
        if (!gang_.down.empty()) gang_.DeliverDown();
      } else if (what < 88) {
        if (!ranks_[rank].here) Connect(rank);
      } else if (what < 92) {
        if (!gang_.linked[node]) gang_.Link(node);
      } else if (faults_ < 20) {
        ++faults_;
        Lose(what, node, rank);
      }
    }
    EXPECT_TRUE(Done());
  }

 private:
  struct Rank {
    uint32_t at = 0;     // the key that it is in, or is about to be
    uint64_t call = 0;   // the number of its call; 0: it is in none
    bool here = true;    // its musterd and it have a connection
    bool heard = false;  // it has been sent, over this connection or another
  };

  // Nothing may follow from the order of their names.
  [[nodiscard]] std::string Key(uint32_t number) const {
    return fmt::format("k{}", ascending_ ? number : kKeys - number);
  }
  static std::string Value(uint32_t rank, uint32_t number) { return fmt::format("{}-{}", rank, number); }
  [[nodiscard]] bool Done() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.at == kKeys; });
  }

  void TakeAnswers() {
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      for (const NodeSide::Answer& answer : std::exchange(gang_.answers[i], {})) {
        if (!rank.here || rank.call == 0 || answer.number != rank.call) continue;
        ASSERT_NE(answer.values, nullptr) << answer.text;
        const auto got = Unpack(*answer.values, static_cast<uint32_t>(ranks_.size()));
        for (uint32_t other = 0; other < got.size(); ++other) ASSERT_EQ(got[other], Value(other, rank.at));
        rank.call = 0;
        ++rank.at;
      }
    }
  }

  void Send(uint32_t i) {
    Rank& rank = ranks_[i];
    rank.call =
        gang_.Give(i, Key(rank.at), Value(i, rank.at), std::exchange(rank.heard, true) ? kAgain : kNew);
  }

  // A call, or the same once more, as of one that has run out of time.
  void Call(uint32_t i) {
    Rank& rank = ranks_[i];
    if (rank.at == kKeys || !rank.here || (rank.call != 0 && random_() % 8 != 0)) return;
    if (rank.call != 0) {
      gang_.AskMissing(i, Key(rank.at));
    } else {
      rank.heard = false;
    }
    Send(i);
  }

  void Disconnect(uint32_t i) {
    ranks_[i].here = false;
    gang_.answers[i].clear();
  }

  // It says its last two calls again, as libmuster does.
  void Connect(uint32_t i) {
    Rank& rank = ranks_[i];
    rank.here = true;
    gang_.answers[i].clear();
    if (rank.at > 0) gang_.Give(i, Key(rank.at - 1), Value(i, rank.at - 1), kAnswered);
    if (rank.call != 0) Send(i);
  }

  // `what` is 92 to 99. An even one: the coordinator, with links of some nodes, with a musterd, or alone. An odd one: those without
  // it, or a member's connection.
  void Lose(uint64_t what, uint32_t node, uint32_t rank) {
    if (what % 2 == 0) gang_.NewCoordinator();
    for (uint32_t other = 0; what < 96 && other < nodes_; ++other) {
      if (random_() % 3 == 0) gang_.Unlink(other);
    }
    if (what == 97) Disconnect(rank);
    if (what < 98) return;
    for (uint32_t i = node * each_; i < (node + 1) * each_; ++i) Disconnect(i);
    gang_.NewMusterd(node);
  }

  std::mt19937_64& random_;
  bool ascending_;
  uint32_t nodes_;
  uint32_t each_;
  Gang gang_;
  std::vector<Rank> ranks_;
  int faults_ = 0;
};

// Coordinators, musterds, links and connections are lost at any moment, several together too: every member gets all values of every
// key.
TEST(Gather, NothingIsLostOrDoubledWhoeverIsLost) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 500; ++round) {
    Lives lives(random, round % 2 == 0);
    lives.Run();
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// Of many nodes not all get the values at once.
TEST(Gather, OfManyNodesOnlySomeAreOnTheirWayAtOnce) {
  constexpr uint32_t kNodes = 300;
  Gang gang(kNodes, 1);
  for (uint32_t rank = 0; rank < kNodes; ++rank) gang.Give(rank, "k", std::string(4096, 'x'));
  while (gang.down.empty()) gang.DeliverUp();
  const size_t at_once = gang.down.size();
  EXPECT_LT(at_once, kNodes);
  EXPECT_LE(at_once * gang.down.front().second.values().size(), kMaxOnTheWay);
  // One that has gone makes room as one that has them.
  gang.down.pop_front();
  gang.coordinator->Left(0);
  EXPECT_EQ(gang.down.size(), at_once);
  gang.Deliver();
  for (uint32_t rank = 1; rank < kNodes; ++rank) ASSERT_EQ(gang.answers[rank].size(), 1U) << rank;
}

}  // namespace
}  // namespace muster::gather
