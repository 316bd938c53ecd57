#include "daemon/agent/agent_core.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/lease/types.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kSelf = 2;

// Writes down what is ordered, in the order in which it is.
class AgentOrders : public AgentCore::Shell {
 public:
  std::vector<std::string> Take() { return std::exchange(said, {}); }

  [[nodiscard]] int64_t Now() const override { return now * lease::kMillisecond; }
  [[nodiscard]] bool MayRegister() const override { return may_register; }
  void Dial(uint32_t node, uint64_t number) override {
    said.push_back(fmt::format("dial {}", node));
    link = number;
  }
  void CloseLink(const std::string& why) override {
    said.push_back(fmt::format("close{}{}", why.empty() ? "" : ": ", why));
  }
  void Register() override { said.emplace_back("register"); }
  void WakeForLink(std::optional<int64_t> at) override {
    if (at != wake) said.push_back(at ? fmt::format("wake at {}", *at / lease::kMillisecond) : "do not wake");
    wake = at;
  }
  [[nodiscard]] bool MayStart() const override { return may_start; }
  void Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
              lease::Source source) override {
    said.push_back(fmt::format("follow {} of term {} with {} witnesses by the {}", coordinator, term,
                               witnesses.size(), source == lease::Source::kLink ? "link" : "record"));
  }
  void Claimed(uint64_t term, bool taken) override {
    said.push_back(fmt::format("claim after {} {}", term, taken ? "taken" : "refused"));
  }
  void TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) override {
    said.push_back(fmt::format("take over after {} without {}", term, closed.size()));
    if (refuses_at_once) core->TakenOver(term, claim, false);
  }
  void ReadRecord() override { said.emplace_back("read record"); }
  void Save() override { said.push_back(fmt::format("save {}", core->search().coordinator())); }
  void NewTerm(bool stopped) override { said.emplace_back(stopped ? "new term, stopped" : "new term"); }
  void StartLater() override { said.emplace_back("start later"); }
  void StopMembers(bool last_words) override {
    said.emplace_back(last_words ? "stop with last words" : "stop");
  }
  uint64_t FenceMembers() override {
    said.emplace_back("kill");
    return newest;
  }

  std::vector<std::string> said;
  AgentCore* core = nullptr;
  int64_t now = 0;  // ms
  uint64_t link = 0;
  std::optional<int64_t> wake;
  uint64_t newest = 0;  // of the members that have a program
  bool may_register = true;
  bool may_start = true;
  bool refuses_at_once = false;
};

// The agent of node 2; the candidates are 1, 2 and 0.
class AgentRules : public ::testing::Test {
 protected:
  AgentRules() { shell_.core = &core_; }
  // It has a link to node 1, which coordinates in term 1.
  void Register() {
    core_.Connect();
    core_.Heard(1);
    core_.Attended(1, {0, 1});
    shell_.Take();
  }
  void Attend() {
    Register();
    core_.LeaseBegins();
    shell_.Take();
  }
  void Start(uint64_t generation) {
    core_.Start(generation,
                [this, generation] { shell_.said.push_back(fmt::format("start {}", generation)); });
  }
  std::vector<std::string> Said() { return shell_.Take(); }

  AgentOrders shell_;
  AgentCore core_{shell_, {1, 2, 0}, {}, kSelf};
};

// ---- the link

TEST_F(AgentRules, NothingIsDialledBeforeThereIsSomethingToRegister) {
  shell_.may_register = false;
  core_.Connect();
  EXPECT_THAT(Said(), IsEmpty());
  shell_.may_register = true;
  core_.Connect();
  EXPECT_THAT(Said(), ElementsAre("dial 1", "wake at 10000", "register"));
  core_.Connect();
  EXPECT_THAT(Said(), IsEmpty()) << "there is a link";
}

TEST_F(AgentRules, ALinkThatIsLostIsDialledAgainAfterAWait) {
  Register();
  shell_.now = 1000;
  core_.Lost();
  EXPECT_THAT(Said(), ElementsAre("wake at 1050"));
  EXPECT_FALSE(core_.IsNewest(shell_.link));
  core_.Connect();
  EXPECT_THAT(Said(), IsEmpty()) << "the wait is not over";
  shell_.now = 1050;
  core_.LinkDue();
  EXPECT_THAT(Said(), ElementsAre("dial 1", "wake at 11050", "register"));
  EXPECT_TRUE(core_.IsNewest(shell_.link));
}

TEST_F(AgentRules, ALinkOnWhichNoWordComesIsHungUp) {
  core_.Connect();
  shell_.now = 10'000;
  Said();
  core_.LinkDue();
  EXPECT_THAT(Said(), ElementsAre("close: does not answer", "wake at 10050"));
}

TEST_F(AgentRules, ALinkOnWhichAWordHasComeIsKept) {
  core_.Connect();
  Said();
  core_.Heard(0);
  EXPECT_THAT(Said(), ElementsAre("do not wake"));
}

TEST_F(AgentRules, ARegistrationThatHasChangedIsSentOnANewLink) {
  Register();
  const uint64_t before = shell_.link;
  core_.Anew();
  EXPECT_THAT(Said(), ElementsAre("close", "dial 1", "wake at 10000", "register"));
  EXPECT_FALSE(core_.IsNewest(before));
}

TEST_F(AgentRules, ANodeThatWasAskedToCoordinateRegistersWithItself) {
  Register();
  core_.CoordinatedHere();
  EXPECT_THAT(Said(), ElementsAre("close", "dial 2", "wake at 10000", "register"));
}

TEST_F(AgentRules, ANodeThatHasALeaseDoesNotLeaveItsCoordinatorWhenItIsAskedToCoordinate) {
  Attend();
  core_.CoordinatedHere();
  EXPECT_THAT(Said(), IsEmpty());
}

// ---- what the coordinator says

TEST_F(AgentRules, AFormerCoordinatorIsNotObeyed) {
  Register();
  EXPECT_TRUE(core_.Heard(2));
  EXPECT_FALSE(core_.Heard(1));
  EXPECT_EQ(core_.orders().term(), 2U);
}

TEST_F(AgentRules, ATermIsKeptForTheNextMusterdAsSoonAsItIsObeyed) {
  core_.Connect();
  Said();
  core_.Heard(4);
  EXPECT_THAT(Said(), ElementsAre("do not wake", "new term", "save 1"));
  core_.Heard(4);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(AgentRules, WhatTheMusterdBeforeHasObeyedIsObeyedStill) {
  core_.Restore(0, 4, 7, 40);
  core_.Connect();
  EXPECT_THAT(Said(), ElementsAre("dial 0", "wake at 10000", "register"));
  EXPECT_FALSE(core_.Heard(3));
  core_.Started(7, 40);
  EXPECT_THAT(Said(), IsEmpty()) << "it is kept already";
}

TEST_F(AgentRules, ALinkOnWhichAFormerCoordinatorAloneSpeaksIsHungUp) {
  core_.Restore(1, 4, 7, 40);
  core_.Connect();
  EXPECT_FALSE(core_.Heard(3));
  EXPECT_EQ(core_.orders().term(), 4U);
  shell_.now = 10'000;
  Said();
  core_.LinkDue();
  EXPECT_THAT(Said(), ElementsAre("close: does not answer", "wake at 10050"));
}

TEST_F(AgentRules, AGenerationThatWasStoppedIsOverInTheNextTermAndMayBeStartedThere) {
  Register();
  Start(5);
  core_.Heard(2);
  EXPECT_THAT(Said(), ElementsAre("start 5", "new term", "save 1")) << "it runs on";
  core_.Stop(5, false);
  core_.Heard(3);
  EXPECT_THAT(Said(), ElementsAre("stop", "new term, stopped", "save 1"));
  core_.Stop(5, false);
  core_.Heard(4);
  EXPECT_THAT(Said(), ElementsAre("stop", "new term", "save 1")) << "nothing was started in this term";
  Start(5);
  core_.Heard(5);
  EXPECT_THAT(Said(), ElementsAre("start 5", "new term", "save 1"));
}

TEST_F(AgentRules, ANodeThatDoesNotCoordinateIsLeftForTheOneThatItNames) {
  core_.Connect();
  Said();
  core_.Elsewhere(0);
  EXPECT_THAT(Said(), ElementsAre("close", "dial 0", "register"));
  core_.Elsewhere(std::nullopt);
  EXPECT_THAT(Said(), ElementsAre("close: does not coordinate this gang", "wake at 50"));
}

TEST_F(AgentRules, WhoTakesThisNodeInIsKeptAndFollowed) {
  core_.Connect();
  core_.Heard(3);
  Said();
  core_.Attended(1, {0, 1, 2});
  EXPECT_THAT(Said(), ElementsAre("save 1", "follow 1 of term 3 with 3 witnesses by the link"));
}

TEST_F(AgentRules, AGenerationIsStartedUnlessItWasStoppedOrTheGangIsOver) {
  Register();
  Start(5);
  EXPECT_THAT(Said(), ElementsAre("start 5"));
  core_.Stop(6, false);
  Said();
  Start(6);
  EXPECT_THAT(Said(), IsEmpty());
  core_.Finish();
  Start(7);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(AgentRules, NothingIsStartedBeforeTheLeaseIsFresh) {
  Register();
  shell_.may_start = false;
  Start(5);
  core_.StartDue();
  EXPECT_THAT(Said(), ElementsAre("start later", "start later"));
  shell_.may_start = true;
  core_.StartDue();
  EXPECT_THAT(Said(), ElementsAre("start 5"));
  core_.StartDue();
  EXPECT_THAT(Said(), IsEmpty()) << "once";
}

TEST_F(AgentRules, WhatWaitsForTheLeaseIsStartedWhenTheLeaseBegins) {
  Register();
  shell_.may_start = false;
  Start(5);
  Said();
  shell_.may_start = true;
  core_.LeaseBegins();
  EXPECT_THAT(Said(), ElementsAre("start 5"));
}

class AStartThatWaits : public AgentRules {
 protected:
  AStartThatWaits() {
    Attend();
    shell_.may_start = false;
    Start(5);
    shell_.may_start = true;
    Said();
  }
  // What the core orders when the shell tries the waiting start again.
  std::vector<std::string> StartedNow() {
    Said();
    core_.StartDue();
    return Said();
  }
};

TEST_F(AStartThatWaits, IsStartedThoughAnOlderGenerationIsStopped) {
  core_.Stop(4, false);
  EXPECT_THAT(StartedNow(), ElementsAre("start 5"));
}

// Without this a new term, in which stops of the one before bind no more, would start it.
TEST_F(AStartThatWaits, IsVoidWhenItsGenerationIsStopped) {
  core_.Stop(5, false);
  core_.Heard(2);
  EXPECT_THAT(StartedNow(), IsEmpty());
}

TEST_F(AStartThatWaits, IsVoidWhenItsLinkIsLost) {
  core_.Lost();
  EXPECT_THAT(StartedNow(), IsEmpty());
}

TEST_F(AStartThatWaits, IsVoidWhenAnotherNodeCoordinates) {
  core_.Successor(2, 0);
  EXPECT_THAT(StartedNow(), IsEmpty());
}

TEST_F(AStartThatWaits, IsVoidWhenTheNextGenerationStarts) {
  Start(6);
  EXPECT_THAT(Said(), ElementsAre("start 6"));
  EXPECT_THAT(StartedNow(), IsEmpty());
}

TEST_F(AStartThatWaits, IsVoidWhenTheGangIsOver) {
  core_.Finish();
  EXPECT_THAT(StartedNow(), IsEmpty());
}

TEST_F(AgentRules, WhatThisNodeHasStartedIsKeptOnce) {
  core_.Started(5, 40);
  EXPECT_THAT(Said(), ElementsAre("save 1"));
  core_.Started(5, 40);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(AgentRules, AStopIsCarriedOutUnlessANewerOneWas) {
  core_.Stop(5, true);
  core_.Stop(5, false);
  EXPECT_THAT(Said(), ElementsAre("stop with last words", "stop"));
  core_.Stop(4, false);
  EXPECT_THAT(Said(), IsEmpty());
}

// ---- what the lease says

TEST_F(AgentRules, ALeaseThatBeginsTurnsTheSearchBackToTheNodeThatItFollows) {
  Register();
  core_.Lost();
  shell_.now = 6'000;
  core_.LinkDue();
  core_.Lost();
  EXPECT_EQ(core_.search().coordinator(), 2U) << "the search has gone on to the next candidate";
  Said();
  core_.LeaseBegins();
  EXPECT_THAT(Said(), ElementsAre("close", "dial 1", "wake at 16000", "register"));
}

TEST_F(AgentRules, WhenTheLeaseEndsTheMembersAreKilledAndStoppedAndTheLinkIsHungUp) {
  Attend();
  shell_.newest = 5;
  core_.Fence();
  EXPECT_THAT(Said(), ElementsAre("kill", "stop", "close: is not heard any more", "wake at 50"));
  EXPECT_FALSE(core_.orders().MayRun(5));
  EXPECT_FALSE(core_.search().attended());
}

TEST_F(AgentRules, WhenTheLeaseEndsWhatSaysItsLastWordsIsKilledToo) {
  Attend();
  core_.Stop(7, true);
  Said();
  shell_.newest = 5;
  core_.Fence();
  EXPECT_THAT(Said(), ElementsAre("kill", "stop", "close: is not heard any more", "wake at 50"));
  EXPECT_FALSE(core_.orders().MayRun(7)) << "what was ordered before";
}

TEST_F(AgentRules, WhenTheLeaseEndsWithoutMembersOrLinkThereIsNothingToStopOrToHangUp) {
  Attend();
  core_.Lost();
  Said();
  core_.Fence();
  EXPECT_THAT(Said(), ElementsAre("kill"));
}

TEST_F(AgentRules, ASuccessorOnAnotherNodeIsDialled) {
  Attend();
  core_.Successor(2, 0);
  EXPECT_THAT(Said(), ElementsAre("new term", "save 0", "close", "dial 0", "wake at 10000", "register"));
}

TEST_F(AgentRules, ACoordinatorThatRaisesItsTermHearsAnewWhoIsHere) {
  Attend();
  core_.Successor(2, 1);
  EXPECT_THAT(Said(), ElementsAre("new term", "save 1", "register"));
}

TEST_F(AgentRules, WhoAnnouncesAnOlderTermIsNoSuccessor) {
  Attend();
  core_.Heard(3);
  Said();
  core_.Successor(2, 0);
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(AgentRules, AStopByBeatsLeavesTimeForLastWordsAndIsCarriedOutOnce) {
  Attend();
  core_.StopOrdered(0, 5);
  EXPECT_THAT(Said(), IsEmpty()) << "of an older term";
  core_.StopOrdered(1, 5);
  EXPECT_THAT(Said(), ElementsAre("stop with last words"));
  core_.StopOrdered(1, 5);
  EXPECT_THAT(Said(), IsEmpty());
}

// ---- the record

TEST_F(AgentRules, ANodeWhoseTurnItIsTakesOverOnceAtATime) {
  Attend();
  core_.TakeOver(1, {0});
  EXPECT_THAT(Said(), ElementsAre("take over after 1 without 1"));
  core_.TakeOver(1, {0});
  EXPECT_THAT(Said(), IsEmpty());
  core_.Claim(1);
  EXPECT_THAT(Said(), ElementsAre("claim after 1 refused"));
  core_.TakenOver(1, false, true);
  EXPECT_THAT(Said(), ElementsAre("close", "dial 2", "wake at 10000", "register"));
  core_.TakeOver(2, {});
  EXPECT_THAT(Said(), ElementsAre("take over after 2 without 0"));
}

TEST_F(AgentRules, ATakeOverThatIsRefusedAtOnceIsOver) {
  Attend();
  shell_.refuses_at_once = true;
  core_.TakeOver(1, {});
  EXPECT_THAT(Said(), ElementsAre("take over after 1 without 0", "read record"));
  core_.TakeOver(1, {});
  EXPECT_THAT(Said(), ElementsAre("take over after 1 without 0", "read record"));
}

TEST_F(AgentRules, TheLeaseIsToldWhetherAClaimWasTaken) {
  Attend();
  core_.Claim(1);
  core_.TakenOver(1, true, false);
  EXPECT_THAT(Said(), ElementsAre("take over after 1 without 0", "claim after 1 refused", "read record"));
  core_.Claim(1);
  core_.TakenOver(1, true, true);
  EXPECT_THAT(Said(), ElementsAre("take over after 1 without 0", "claim after 1 taken", "close", "dial 2",
                                  "wake at 10000", "register"));
}

TEST_F(AgentRules, AGangThatIsOverIsNotTakenOver) {
  Attend();
  core_.Finish();
  core_.TakeOver(1, {});
  EXPECT_THAT(Said(), IsEmpty());
  core_.Claim(1);
  EXPECT_THAT(Said(), ElementsAre("claim after 1 refused"));
  EXPECT_FALSE(core_.Learned({}));
  EXPECT_FALSE(core_.Learned(AgentCore::Recorded{0, 9, {}}));
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(AgentRules, ARecordThatCannotBeReadIsReadAgain) {
  Attend();
  EXPECT_FALSE(core_.Learned({}));
  EXPECT_THAT(Said(), ElementsAre("read record"));
}

TEST_F(AgentRules, TheCoordinatorOfTheRecordIsFollowedAndDialledIfThatIsNews) {
  Attend();
  EXPECT_TRUE(core_.Learned(AgentCore::Recorded{1, 2, {0, 1}}));
  EXPECT_THAT(Said(), ElementsAre("new term", "save 1", "follow 1 of term 2 with 2 witnesses by the record",
                                  "close", "dial 1", "wake at 10000", "register"))
      << "the same node in a newer term";
  EXPECT_FALSE(core_.Learned(AgentCore::Recorded{1, 2, {0, 1}}));
  EXPECT_THAT(Said(), ElementsAre("follow 1 of term 2 with 2 witnesses by the record"));
  EXPECT_TRUE(core_.Learned(AgentCore::Recorded{0, 2, {0}}));
  EXPECT_THAT(Said(), ElementsAre("follow 0 of term 2 with 1 witnesses by the record", "close", "dial 0",
                                  "register"));
  EXPECT_FALSE(core_.Learned(AgentCore::Recorded{1, 1, {}}));
  EXPECT_THAT(Said(), IsEmpty()) << "an older term";
}

}  // namespace
}  // namespace muster
