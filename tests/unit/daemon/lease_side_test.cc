// When a coordinator leads, whom it attends, and which nodes it takes to be dead before they have joined.
#include "daemon/coordinator/lease_side.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/worker.h"
#include "daemon/beat/key.h"
#include "tests/support/loop_thread.h"
#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint32_t kLedNodes = 3;  // nodes
constexpr milliseconds kRound(500);
constexpr milliseconds kProbe(100);
constexpr milliseconds kAfterLoss(1'200);

// Moves only as the test says.
class MovedClock final : public BeatClock {
 public:
  void Move(milliseconds by) { now_ += by.count() * lease::kMillisecond; }
  [[nodiscard]] lease::Nanos Now() const override { return now_; }
  void Wait(std::span<pollfd> polled, lease::Nanos /*timeout*/) override {
    ::poll(polled.data(), polled.size(), 10);
  }

 private:
  std::atomic<lease::Nanos> now_ = lease::kMillisecond;
};

class SentLink final : public Link {
 public:
  void Send(std::string payload) override {
    v1::CoordinatorMessage message;
    EXPECT_TRUE(message.ParseFromString(payload));
    sent.push_back(std::move(message));
  }
  void Close(const std::string& /*why*/) override {}
  void CloseWhenSent(const std::string& /*why*/) override {}
  [[nodiscard]] std::string key() const override { return std::string(32, 's'); }

  std::vector<v1::CoordinatorMessage> sent;
};

// Also says which nodes that have not joined are certain to be dead.
class AbsentOrders : public Ordered {
 public:
  void Handled(const gang::Event& event, gang::State /*before*/,
               const std::vector<gang::Action>& /*actions*/) override {
    if (const auto* probed = std::get_if<gang::AbsentProbed>(&event))
      absent.push_back(fmt::format("dead: {}", fmt::join(probed->dead, ",")));
  }

  std::vector<std::string> absent;
};

// `before`: the record of a coordinator whose gang runs; null: the gang is new.
struct LeasedParts {
  LeasedParts(Loop& loop, Beat* beat, std::shared_ptr<const BeatClock> clock, const GangJob& job,
              const GangRecord* before, const LeaseSide::Settings& settings)
      : nodes(job, core),
        side(loop, beat, std::move(clock), job, core, nodes, settings, [] {}),
        core({orders, orders, orders, orders, side},
             Terms(0, {0, 1, 2}, {.after_loss = kAfterLoss.count() * lease::kMillisecond}), true) {
    core.Take({1, before != nullptr ? 1U : 0U}, {}, std::nullopt);
    side.Take(std::string(32, 'b'));
    gang::Settings of_gang = gang::Rig::SettingsOf(kLedNodes, 1);
    of_gang.roles[0].min_nodes = 2;
    core.Begin(of_gang, before, {}, {});
    core.Go();
  }

  AbsentOrders orders;
  NodeLinks nodes;
  LeaseSide side;
  CoordinatorCore core;
};

// A gang whose three nodes have not joined, and that nobody leads yet.
class LeaseSideTest : public ::testing::Test {
 protected:
  LeaseSideTest() {
    job_.job_id = 12;
    job_.hosts.assign(kLedNodes, "127.0.0.1");
    BeatOptions options;
    options.listen_address = "127.0.0.1";
    options.port = 0;
    options.mailbox = loop_.loop().mailbox();
    options.clock = clock_;
    beat_ = *Beat::Start(std::move(options));
    Make(beat_.get());
  }
  ~LeaseSideTest() override {
    loop_.Do([&] {
      parts_.reset();
      beat_.reset();
    });
  }

  void Make(Beat* beat, const GangRecord* before = nullptr) {
    const auto probe = [this](const std::vector<BeatAddress>& addresses, milliseconds /*timeout*/) {
      std::shared_future<void> answers;
      std::vector<Port> ports;
      {
        const std::lock_guard lock(mutex_);
        asked_.push_back(addresses.size());
        ports.assign(addresses.size(), port_);
        if (first_) ports[0] = *first_;
        answers = answers_;
      }
      if (answers.valid()) answers.wait();
      return ports;
    };
    loop_.Do([&] {
      parts_.reset();
      parts_ = std::make_unique<LeasedParts>(
          loop_.loop(), beat, clock_, job_, before,
          LeaseSide::Settings{.silence_ms = kAfterLoss.count(), .port = 303, .probe = probe});
    });
  }
  // The gang runs, and its nodes have not come to this coordinator yet.
  void MakeFromRecord() {
    GangRecord before;
    before.state = gang::ToString(gang::State::kRunning);
    before.generation = 1;
    before.active = before.witnesses = {0, 1, 2};
    Make(beat_.get(), &before);
  }
  // What a connection to a node's port comes to from now on; `first`: to the first of the nodes that are asked.
  void Answer(Port port, std::optional<Port> first = std::nullopt) {
    const std::lock_guard lock(mutex_);
    port_ = port;
    first_ = first;
  }
  // No connection comes to anything from now on, until this is set.
  std::promise<void> Hold() {
    std::promise<void> go;
    const std::lock_guard lock(mutex_);
    answers_ = go.get_future();
    return go;
  }
  void Lead() {
    loop_.Do([&] { parts_->side.LeadBehind(records_); });
    ASSERT_TRUE(loop_.Eventually([&] { return parts_->side.HasLease(); }));
  }
  void Join(uint32_t node) {
    parts_->core.Registered(node, 0, std::nullopt);
    parts_->core.Feed(gang::NodeJoined{
        .node = node, .name = fmt::format("n{}", node), .members = {{.task = node, .local_id = 0}}});
  }
  // How many ports were asked in each round.
  std::vector<size_t> Asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  void AwaitQuestion(size_t round) {
    ASSERT_TRUE(loop_.Eventually([&] { return Asked().size() == round; }));
  }
  // Waits until what was asked of the nodes' ports in this round is known.
  void Round(size_t round) {
    AwaitQuestion(round);
    std::promise<void> known;
    loop_.Do([&] { parts_->side.AtTheEnd([&] { known.set_value(); })(); });
    known.get_future().wait();
    loop_.Do([] {});
  }
  void NextRound(size_t round, milliseconds after = kRound) {
    loop_.Move(after);
    Round(round);
  }
  std::vector<std::string> Absent() {
    return loop_.Do([&] { return std::exchange(parts_->orders.absent, {}); });
  }

  GangJob job_;
  std::mutex mutex_;
  std::vector<size_t> asked_;
  Port port_ = Port::kRefuses;
  std::optional<Port> first_;
  std::shared_future<void> answers_;
  std::shared_ptr<MovedClock> clock_ = std::make_shared<MovedClock>();
  LoopThread loop_;
  Worker records_;
  std::unique_ptr<Beat> beat_;
  std::unique_ptr<LeasedParts> parts_;
};

TEST_F(LeaseSideTest, NodesThatHaveRegisteredAreAttendedWhenTheLeaseBegins) {
  std::vector<std::shared_ptr<SentLink>> links;
  loop_.Do([&] {
    for (uint32_t node = 0; node < 2; ++node)
      parts_->nodes.Attach(node, links.emplace_back(std::make_shared<SentLink>()));
    parts_->nodes.SetName(0, "n0");
    parts_->side.Attend(0);
    parts_->side.Attend(2);
    ASSERT_EQ(links[0]->sent.size(), 1U);
    EXPECT_FALSE(links[0]->sent[0].has_attended()) << "only that somebody is here";
  });
  Lead();
  loop_.Do([&] {
    ASSERT_EQ(links[0]->sent.size(), 2U);
    const v1::Attended& attended = links[0]->sent[1].attended();
    const auto key = UnwrapKey(links[0]->key(), attended.wrapped_key(), fmt::format("{} 1", job_.Id()));
    ASSERT_TRUE(key);
    EXPECT_EQ(*key, std::string(32, 'b'));
    EXPECT_EQ(attended.coordinator(), 0U);
    EXPECT_EQ(attended.candidates_size(), static_cast<int>(kLedNodes));
    EXPECT_THAT(links[1]->sent, IsEmpty());
  });
}

TEST_F(LeaseSideTest, TheLeaseBeginsBehindWhatIsToBeRecorded) {
  std::promise<void> recorded;
  records_.Do([&] { recorded.get_future().wait(); });
  loop_.Do([&] { parts_->side.LeadBehind(records_); });
  std::this_thread::sleep_for(milliseconds(100));  // for a lease that waits for nothing
  EXPECT_FALSE(loop_.Do([&] { return parts_->side.HasLease(); }));
  recorded.set_value();
  EXPECT_TRUE(loop_.Eventually([&] { return parts_->side.HasLease(); }));
  loop_.Do([&] {
    parts_->core.Lose();
    parts_->side.End();
  });
  EXPECT_FALSE(loop_.Do([&] { return parts_->side.HasLease(); }));
}

TEST_F(LeaseSideTest, NodesThatAreSilentThreeTimesInSuccessionAreDead) {
  Answer(Port::kSilent);
  Lead();
  Round(1);
  NextRound(2);
  Answer(Port::kSilent, Port::kAccepts);
  NextRound(3);
  EXPECT_THAT(Absent(), ElementsAre("dead: 1,2"));
  Answer(Port::kSilent);
  NextRound(4);
  EXPECT_THAT(Absent(), IsEmpty()) << "node 0 is silent for the first time";
  NextRound(5);
  NextRound(6);
  EXPECT_THAT(Absent(), ElementsAre("dead: 0,1,2"));
}

TEST_F(LeaseSideTest, NothingIsCertainWhileANodeCannotBeAsked) {
  Answer(Port::kRefuses, Port::kUnknown);
  Lead();
  Round(1);
  EXPECT_THAT(Absent(), IsEmpty());
  Answer(Port::kRefuses);
  NextRound(2);
  EXPECT_THAT(Absent(), ElementsAre("dead: ")) << "the hosts live";
}

TEST_F(LeaseSideTest, ANodeThatJoinsIsNotAskedForAnyMore) {
  Answer(Port::kSilent);
  Lead();
  Round(1);
  loop_.Do([&] { Join(0); });
  NextRound(2);
  NextRound(3);
  EXPECT_THAT(Absent(), ElementsAre("dead: 1,2"));
  EXPECT_THAT(Asked(), ElementsAre(3U, 2U, 2U));
}

TEST_F(LeaseSideTest, ANodeThatJoinsWhileItIsAskedForIsNotDead) {
  Answer(Port::kSilent);
  Lead();
  Round(1);
  NextRound(2);
  auto go = Hold();
  loop_.Move(kRound);
  AwaitQuestion(3);
  loop_.Do([&] { Join(0); });
  go.set_value();
  Round(3);
  EXPECT_THAT(Absent(), ElementsAre("dead: 1,2"));
}

TEST_F(LeaseSideTest, WhatWasAskedInATermBeforeIsNoRoundOfThisTerm) {
  Answer(Port::kSilent);
  Lead();
  Round(1);
  auto go = Hold();
  loop_.Move(kRound);
  AwaitQuestion(2);
  loop_.Do([&] {
    parts_->core.RaiseTerm();
    parts_->core.TermRaised({});
  });
  go.set_value();
  Round(3);
  NextRound(4);
  EXPECT_THAT(Absent(), IsEmpty()) << "the second silent round of this term";
  NextRound(5);
  EXPECT_THAT(Absent(), ElementsAre("dead: 0,1,2"));
}

TEST_F(LeaseSideTest, NodesOfAnEarlierTermAreAskedForUntilTheirPortsRefuse) {
  const auto link = std::make_shared<SentLink>();
  MakeFromRecord();
  loop_.Do([&] { parts_->nodes.Attach(0, link); });
  Answer(Port::kAccepts, Port::kRefuses);
  Lead();
  Round(1);
  NextRound(2, kProbe);
  EXPECT_THAT(Asked(), ElementsAre(3U, 3U)) << "the musterd of node 0 has a link";
  loop_.Do([&] { parts_->nodes.Detach(0, link.get()); });
  for (const size_t round : {3, 4, 5}) NextRound(round, kProbe);
  EXPECT_THAT(Asked(), ElementsAre(3U, 3U, 3U, 2U, 1U)) << "one is gone in each round";
  loop_.Move(kRound);
  EXPECT_THAT(Asked(), SizeIs(5U));
}

TEST_F(LeaseSideTest, WhatAPortOfANodeSaidInATermBeforeIsForgotten) {
  MakeFromRecord();
  Answer(Port::kRefuses);
  auto go = Hold();
  Lead();
  AwaitQuestion(1);
  Answer(Port::kAccepts);
  loop_.Do([&] {
    parts_->core.RaiseTerm();
    parts_->core.TermRaised({});
  });
  go.set_value();
  Round(2);
  NextRound(3, kProbe);
  EXPECT_THAT(Asked(), ElementsAre(3U, 3U, 3U)) << "the nodes may have a musterd again";
}

TEST_F(LeaseSideTest, TheTermIsRaisedWhenItsTimeHasCome) {
  Lead();
  loop_.Do([&] {
    for (uint32_t node = 0; node < kLedNodes; ++node) Join(node);
    parts_->core.SetQuorum(true);
    for (uint32_t node = 0; node < kLedNodes; ++node) parts_->core.Heard(node);
    parts_->core.Silent({2, 0});
    EXPECT_THAT(parts_->orders.said, Not(Contains("raise 2")));
  });
  clock_->Move(kAfterLoss);
  loop_.Move(kAfterLoss - milliseconds(1));
  EXPECT_THAT(loop_.Do([&] { return parts_->orders.said; }), Not(Contains("raise 2")));
  loop_.Move(milliseconds(1));
  EXPECT_THAT(loop_.Do([&] { return parts_->orders.said; }), Contains("raise 2"));
}

TEST_F(LeaseSideTest, WithoutLeasesNobodyLeads) {
  Make(nullptr);
  loop_.Do([&] { parts_->side.LeadBehind(records_); });
  std::promise<void> done;
  records_.Do([&] { done.set_value(); });
  done.get_future().wait();
  loop_.Do([&] {
    EXPECT_FALSE(parts_->side.HasLease());
    bool over = false;
    parts_->side.AtTheEnd([&] { over = true; })();
    EXPECT_TRUE(over);
  });
}

}  // namespace
}  // namespace muster
