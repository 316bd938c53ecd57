// Steps that all members agree on: one by one what may happen on the way.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/daemon/steps_net.h"

namespace muster::steps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<uint64_t> Every(uint64_t stride, uint64_t last) {
  std::vector<uint64_t> steps;
  for (uint64_t step = stride; step <= last; step += stride) steps.push_back(step);
  return steps;
}

class Steps : public ::testing::Test {
 protected:
  void Make(StepsNet::Settings settings) {
    net_ = std::make_unique<StepsNet>(settings);
    net_->OpenAll();
  }
  void Finish() {
    EXPECT_TRUE(net_->RunUntil([&] { return net_->AllDone(); }, 600'000));
    EXPECT_EQ(net_->Differs(), "");
    EXPECT_THAT(net_->Waiting(), IsEmpty());
  }
  [[nodiscard]] bool AllWereAt(uint64_t step) const {
    return net_->answers().contains(step) && net_->answers().at(step).size() == net_->ranks();
  }
  // At exactly one step all were asked for `flags`.
  uint64_t TheStep(uint32_t flags) {
    const auto wished = net_->Wished();
    EXPECT_THAT(wished, SizeIs(1));
    if (wished.empty()) return 0;
    const auto [step, asked] = *wished.begin();
    EXPECT_EQ(asked, flags);
    EXPECT_THAT(net_->answers().at(step), SizeIs(net_->ranks()));
    return step;
  }

  std::unique_ptr<StepsNet> net_;
};

TEST_F(Steps, WithoutAWishNobodyIsAskedAndNothingIsSent) {
  Make({});
  bool sent = false;
  net_->before_order = [&](uint32_t, const v1::StepOrder&) { return sent = true; };
  Finish();
  EXPECT_THAT(net_->Wished(), IsEmpty());
  EXPECT_FALSE(sent);
}

TEST_F(Steps, AllMembersAreAskedAtTheSameStepWithTheReason) {
  Make({.nodes = 3, .each = 2});
  net_->Run(100);
  net_->Want(true, false, "node n3 is drained: a fan is broken");
  Finish();
  const uint64_t step = TheStep(wire::kWishSave);
  EXPECT_EQ(net_->reason(step), "node n3 is drained: a fan is broken");
  EXPECT_THAT(net_->notes(), ElementsAre(fmt::format(
                                 "all ranks save at step {}: node n3 is drained: a fan is broken", step)));
}

TEST_F(Steps, AWishOfSlowProgramsIsForTheNextStepTheyEnter) {
  Make({.step_ms = 1});
  net_->RunUntil([&] { return net_->answers().size() == 20; }, 10'000);
  // Steps take 10 s from now on: nobody enters one while it is agreed on.
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, Every(1, 20));
  net_->RunUntil([&] { return net_->AllDone(); }, 10'000);
  net_->Want(false, true, "Slurm sent SIGTERM");
  net_->Run(100);
  EXPECT_THAT(net_->notes(), ElementsAre(HasSubstr("all ranks exit at step 21: Slurm sent SIGTERM")));
}

TEST_F(Steps, ASaveAndAnExitAtOnceAreOneStep) {
  Make({});
  net_->Run(50);
  net_->Want(true, false, "node n1 is drained");
  net_->Want(true, true, "the job's time limit is near");
  Finish();
  const uint64_t step = TheStep(wire::kWishSave | wire::kWishExit);
  EXPECT_EQ(net_->reason(step), "the job's time limit is near");
}

TEST_F(Steps, WhatAStepThatNobodyHasEnteredAsksForAlreadyIsNotAskedAgain) {
  Make({.step_ms = 2'000});
  net_->Run(5'000);
  net_->Want(true, true, "the job's time limit is near");
  net_->Run(100);
  net_->Want(true, false, "node n1 is drained");
  net_->Run(100);
  EXPECT_THAT(net_->notes(), SizeIs(1));
  Finish();
  TheStep(wire::kWishSave | wire::kWishExit);
}

TEST_F(Steps, AStepIsAgreedOnOnceAndMoreIsAskedAtALaterOne) {
  Make({.step_ms = 2'000});
  net_->Run(5'000);
  net_->Want(true, false, "node n1 is drained");
  net_->Run(100);
  net_->Want(true, true, "the job's time limit is near");
  net_->Run(100);
  EXPECT_THAT(net_->notes(), SizeIs(2));
  Finish();
  EXPECT_THAT(net_->Wished(), SizeIs(2));
  EXPECT_EQ(net_->Wished().begin()->second, wire::kWishSave);
}

TEST_F(Steps, AWishComesBeforeAnyMemberHasEnteredAStepAndIsKept) {
  net_ = std::make_unique<StepsNet>(StepsNet::Settings{});
  net_->Want(true, false, "the gang grows");
  net_->Run(60'000);
  EXPECT_THAT(net_->notes(), IsEmpty());
  net_->OpenAll();
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, Every(1, 2'000));
  Finish();
  TheStep(wire::kWishSave);
}

TEST_F(Steps, MembersThatEnterEveryTenthStepAreAskedAtOneOfThose) {
  Make({});
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, Every(10, 500));
  net_->Run(100);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_EQ(TheStep(wire::kWishSave) % 10, 0U);
}

TEST_F(Steps, AStepThatMembersGoPastIsReplacedThreeTimesAtMostAndSaid) {
  Make({});
  std::vector<uint64_t> odd;
  for (uint64_t step = 7; odd.size() < 400; step += 3 + odd.size() % 5 * 10) odd.push_back(step);
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, odd);
  for (int i = 0; i < 6; ++i) {
    net_->Run(1'200);
    net_->Want(true, false, "drained");
  }
  Finish();
  int past = 0;
  for (const std::string& note : net_->notes())
    past += note.find(" and not step ") != std::string::npos ? 1 : 0;
  EXPECT_GE(past, 1);
  EXPECT_THAT(net_->notes(), ::testing::Contains(AllOf(HasSubstr("rank "), HasSubstr(" and not step "),
                                                       HasSubstr("at which all ranks save"))));
}

TEST_F(Steps, ARankThatNeverCallsIsNamedAndTheOthersAreAsked) {
  net_ = std::make_unique<StepsNet>(StepsNet::Settings{.nodes = 2, .each = 2});
  for (const uint32_t rank : {0, 1, 2}) net_->Open(rank);
  net_->Run(100);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_THAT(net_->Wished(), SizeIs(1));
  EXPECT_THAT(net_->notes(), ElementsAre(HasSubstr("; rank 3 had entered no step yet")));
}

TEST_F(Steps, ARankThatIsFarBehindIsNamed) {
  Make({.together = false});
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, Every(1, rank == 2 ? 400 : 600));
  net_->SetSteps(1, {1, 2, 3, 4, 5, 6, 7, 8, 1000, 1001});
  net_->RunUntil([&] { return net_->answers().contains(1001); }, 10'000);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_THAT(net_->notes(), ElementsAre(AllOf(HasSubstr("all ranks save at step 1"), HasSubstr("; rank "),
                                               HasSubstr(" is at step "))));
}

TEST_F(Steps, ARankThatGoesBackIsNamedOnceAndAskedForNothing) {
  Make({.nodes = 1, .each = 2});
  std::vector<uint64_t> epochs;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (uint64_t step = 0; step < 10; ++step) epochs.push_back(step);
  }
  net_->SetSteps(0, epochs);
  net_->SetSteps(1, epochs);
  net_->Run(1'500);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_THAT(net_->Wished(), IsEmpty());
  net_->Run(3'000);
  EXPECT_THAT(net_->notes(), ::testing::Contains(HasSubstr("went back from step 9 to step ")).Times(1));
}

TEST_F(Steps, ARankThatWaitsGoesOnWhenANodeDoesNotAnswer) {
  Make({.nodes = 2, .each = 1, .step_ms = 4, .together = false});
  net_->Run(50);
  // The answers of the second node are lost from the first proposal on.
  bool lost = true;
  net_->before_order = [&](uint32_t node, const v1::StepOrder& order) {
    return !(lost && node == 1 && order.proposed());
  };
  net_->Want(true, false, "drained");
  EXPECT_TRUE(net_->RunUntil([&] { return net_->AllDone(); }, 60'000));
  EXPECT_EQ(net_->Differs(), "");
  EXPECT_LE(net_->LongestWait(), kPatienceMs + 500);
  EXPECT_THAT(net_->Wished(), IsEmpty());
}

// The hardest moment: some nodes know that it is agreed on, and nobody else.
TEST_F(Steps, WhatOneNodeHasHeardOfTheCoordinatorThatDiedHoldsForAll) {
  Make({.nodes = 3, .each = 2});
  net_->Run(100);
  bool died = false;
  net_->before_order = [&](uint32_t node, const v1::StepOrder& order) {
    if (died || order.agreed_size() == 0) return true;
    if (node == 0) return true;  // it alone hears it
    died = true;
    net_->KillCoordinator();
    return false;
  };
  net_->Want(true, false, "drained");
  EXPECT_TRUE(net_->RunUntil([&] { return died; }, 60'000));
  net_->Run(2'000);
  EXPECT_EQ(net_->Differs(), "");
  net_->TakeOver(false);
  Finish();
  TheStep(wire::kWishSave);
}

TEST_F(Steps, AProposalOfACoordinatorThatDiedIsMadeAnewByTheNext) {
  Make({.nodes = 3, .each = 2});
  net_->Run(100);
  bool died = false;
  net_->before_answer = [&](uint32_t, const v1::StepAnswer&) {
    if (died || net_->Waiting().empty()) return true;
    died = true;
    net_->KillCoordinator();
    return false;
  };
  net_->Want(true, true, "the job's time limit is near");
  EXPECT_TRUE(net_->RunUntil([&] { return died; }, 60'000));
  net_->Run(4'000);
  const int64_t takeover = net_->now();
  net_->TakeOver(false);
  EXPECT_TRUE(net_->RunUntil([&] { return net_->Waiting().empty(); }, 500)) << takeover;
  Finish();
  const uint64_t step = TheStep(wire::kWishSave | wire::kWishExit);
  EXPECT_EQ(net_->reason(step), "the job's time limit is near");
}

TEST_F(Steps, AMusterdThatComesBackKnowsWhatItHasPromised) {
  Make({.nodes = 2, .each = 2, .together = false});
  net_->Run(100);
  bool restarted = false;
  net_->before_order = [&](uint32_t node, const v1::StepOrder& order) {
    if (restarted || node != 1 || order.agreed_size() == 0) return true;
    restarted = true;
    net_->RestartMusterd(1, 1'500);
    return true;
  };
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_TRUE(restarted);
  TheStep(wire::kWishSave);
}

TEST_F(Steps, AMemberThatHasEndedIsNotWaitedForThoughItsMusterdIsRestarted) {
  Make({.nodes = 2, .each = 2});
  for (const uint32_t rank : {0, 1, 2, 3}) net_->SetSteps(rank, Every(1, 400));
  net_->Run(100);
  net_->End(3);
  net_->Run(1'500);
  net_->RestartMusterd(1, 10);
  net_->Run(100);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_THAT(net_->Wished(), SizeIs(1));
}

TEST_F(Steps, AProgramThatGoesOnFromACheckpointIsAskedAtAStepThatItComesTo) {
  Make({.step_ms = 1'500});
  std::vector<uint64_t> steps = {0};
  for (uint64_t step = 50'000; step < 50'020; ++step) steps.push_back(step);
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, steps);
  net_->RunUntil([&] { return AllWereAt(0); }, 10'000);
  net_->Want(true, false, "drained");
  Finish();
  EXPECT_GT(TheStep(wire::kWishSave), 50'000U);
}

// A step out of reach neither stands for another wish nor puts it off.
TEST_F(Steps, AWishAfterAStepOutOfReachIsAskedSoon) {
  Make({.step_ms = 400});
  std::vector<uint64_t> epochs;
  for (uint64_t epoch = 3; epoch > 0; --epoch) {
    for (uint64_t step = 0; step < 20; ++step) epochs.push_back(epoch * 1'000'000 + step);
  }
  for (uint32_t rank = 0; rank < net_->ranks(); ++rank) net_->SetSteps(rank, epochs);
  net_->RunUntil([&] { return net_->answers().size() == 20; }, 60'000);
  net_->Want(true, false, "drained");  // above the first epoch, to which nobody comes back
  net_->Run(300);
  net_->Want(false, true, "Slurm sent SIGTERM");
  net_->Run(300);
  EXPECT_THAT(net_->notes(), ::testing::Each(HasSubstr("at step 30000")));
}

TEST_F(Steps, WhoGoesPastAStepWhileThereIsNoCoordinatorTellsTheNext) {
  Make({.nodes = 2, .each = 1});
  for (const uint32_t rank : {0, 1}) net_->SetSteps(rank, Every(3, 1'200));
  net_->RunUntil([&] { return AllWereAt(3); }, 10'000);
  net_->Want(true, false, "drained");
  EXPECT_TRUE(net_->RunUntil([&] { return !net_->notes().empty(); }, 1'000));
  net_->Run(10);  // all nodes hear of it
  net_->KillCoordinator();
  net_->Run(3'000);
  ASSERT_THAT(net_->Wished(), IsEmpty()) << net_->notes().back();
  net_->TakeOver(false);
  Finish();
  EXPECT_EQ(TheStep(wire::kWishSave) % 3, 0U);
}

TEST_F(Steps, ANodeThatCannotKeepAnOrderDoesNotCarryItOut) {
  Make({.nodes = 2, .each = 1});
  net_->Run(100);
  net_->RefuseToKeep(1, true);
  net_->Want(true, false, "drained");
  net_->Run(15'000);
  EXPECT_TRUE(net_->AllDone());
  EXPECT_THAT(net_->Wished(), IsEmpty());
  EXPECT_THAT(net_->notes(), ElementsAre("no step is agreed on yet: node n2 does not answer"));
}

TEST_F(Steps, NoMoreStepsAreAgreedOnThanAMemberThatComesLateCanBeTold) {
  net_ = std::make_unique<StepsNet>(StepsNet::Settings{.nodes = 1, .each = 2});
  for (uint32_t rank = 0; rank < 2; ++rank) net_->SetSteps(rank, Every(1, 1'000));
  net_->Open(0);
  for (int i = 0; i < 20; ++i) {
    net_->Run(300);
    net_->Want(true, false, "again");
  }
  EXPECT_THAT(net_->Wished(), SizeIs(wire::kKeptSteps));
  net_->Open(1);
  Finish();
  EXPECT_THAT(net_->Wished(), Not(IsEmpty()));
}

TEST_F(Steps, AStepThatIsNearTheEndOfNumbersIsRefused) {
  Make({.nodes = 1, .each = 1});
  net_->SetSteps(0, {1, wire::kMaxStep - 1, wire::kMaxStep});
  EXPECT_TRUE(net_->RunUntil([&] { return net_->AllDone(); }, 10'000));
  net_->Want(true, false, "drained");
  net_->Run(1'000);
  EXPECT_THAT(net_->notes(), ElementsAre(HasSubstr("no step is agreed on: a rank has entered step ")));
}

// One order after the other, without links.
class OneWorld : public ::testing::Test {
 protected:
  OneWorld() {
    Agreement::Hooks hooks;
    hooks.send = [this](uint32_t, const v1::StepOrder& order) { order_ = order; };
    hooks.name = [](uint32_t node) { return fmt::format("n{}", node); };
    hooks.note = [this](const std::string& text) { notes_.push_back(text); };
    hooks_ = hooks;
    agreement_ = std::make_unique<Agreement>(3, 100, Agreement::World{"", {0, 1}}, false, hooks, 0);
  }
  v1::StepAnswer Entered(uint64_t step) const {
    v1::StepAnswer answer;
    answer.set_generation(3);
    answer.set_number(order_.number());
    answer.set_entered(true);
    answer.set_highest(step);
    answer.set_lowest(step);
    return answer;
  }
  void AllAnswer(uint64_t step, int64_t now) {
    const v1::StepAnswer answer = Entered(step);
    agreement_->Take(0, answer, now);
    agreement_->Take(1, answer, now);
  }

  v1::StepOrder order_;
  std::vector<std::string> notes_;
  Agreement::Hooks hooks_;
  std::unique_ptr<Agreement> agreement_;
};

TEST_F(OneWorld, WhoDoesNotAnswerIsNamedOnceWhenSomethingIsWanted) {
  constexpr int64_t kBooted = 1'000'000;
  Agreement next(3, 200, Agreement::World{"", {0, 1}}, true, hooks_, kBooted);
  next.Tick(kBooted + 100);
  next.Tick(kBooted + 2 * kTellMs);
  EXPECT_THAT(notes_, IsEmpty());
  next.Want(true, false, "drained", kBooted + 2 * kTellMs);
  for (int64_t i = 1; i < 5; ++i) next.Tick(kBooted + (2 + i) * kTellMs);
  EXPECT_THAT(notes_, ElementsAre("no step is agreed on yet: node n0 does not answer"));
}

TEST_F(OneWorld, ANodeThatIsAlwaysLateIsNamedAndMembersAreNotStoppedAgainAndAgain) {
  agreement_->Want(true, false, "drained", 0);
  int proposals = 0;
  for (int64_t now = 1; now < 60'000; now += 50) {
    if (order_.proposed()) {
      agreement_->Take(0, Entered(7), now);
    } else {
      AllAnswer(7, now);
      proposals += order_.proposed() ? 1 : 0;
    }
    agreement_->Tick(now);
  }
  EXPECT_LT(proposals, 15) << "each one may stop members for a second";
  EXPECT_GT(proposals, 5);
  EXPECT_THAT(notes_, ElementsAre("no step is agreed on yet: node n1 does not answer"));
}

TEST_F(OneWorld, MembersThatAreAlwaysFurtherDoNotKeepItBusy) {
  agreement_->Want(true, false, "drained", 0);
  int answered = 0;
  for (; agreement_->Busy() && answered < 1'000; ++answered) {
    const uint64_t before = order_.number();
    AllAnswer(order_.wanted().step() + 1, 1);
    if (order_.number() == before) break;
  }
  EXPECT_LT(answered, 60);
}

TEST_F(OneWorld, AProposalIsVoidWhenANodeIsSilentForLong) {
  agreement_->Want(true, false, "drained", 0);
  AllAnswer(7, 10);
  ASSERT_TRUE(order_.proposed());
  EXPECT_EQ(order_.wanted().step(), 8U);
  agreement_->Take(0, Entered(7), 20);
  const v1::StepAnswer late = Entered(7);
  agreement_->Tick(10 + kPatienceMs - 1);
  EXPECT_TRUE(order_.proposed());
  agreement_->Tick(10 + kPatienceMs);
  EXPECT_FALSE(order_.proposed());
  EXPECT_TRUE(order_.wanted().save());
  agreement_->Take(1, late, 10 + kPatienceMs + 1);  // to what is void
  EXPECT_EQ(order_.decisions(), 0U);
  AllAnswer(8, 2'000);
  agreement_->Tick(2'000 + kLookMs);
  AllAnswer(8, 2'000 + kLookMs);
  EXPECT_EQ(order_.wanted().step(), 9U);
}

TEST_F(OneWorld, FastProgramsAreLedByStepsThatDouble) {
  agreement_->Want(true, false, "drained", 0);
  AllAnswer(100, 1);
  EXPECT_EQ(order_.wanted().step(), 101U);
  AllAnswer(101, 2);
  EXPECT_EQ(order_.wanted().step(), 103U);
  AllAnswer(110, 3);
  EXPECT_EQ(order_.wanted().step(), 114U);
  AllAnswer(113, 4);
  EXPECT_FALSE(order_.proposed());
  ASSERT_EQ(order_.agreed_size(), 1);
  EXPECT_EQ(order_.agreed(0).step(), 114U);
}

TEST(StepsOfAGang, WhatIsWantedBeforeAnInheritedGenerationIsKnownIsAskedThere) {
  for (const bool inherited : {true, false}) {
    GangSide::Hooks hooks;
    v1::StepOrder last;
    hooks.talk.send = [&](uint32_t, const v1::StepOrder& order) { last = order; };
    hooks.now = [] { return 0; };
    hooks.after = [](int64_t, const std::function<void()>&) {};
    GangSide side(std::move(hooks));
    side.Want(true, true, "Slurm sent SIGTERM");
    side.Begin(5, 2, {{"", {0}}}, inherited);
    v1::StepAnswer answer;
    answer.set_generation(5);
    answer.set_number(last.number());
    side.Take(0, answer);
    EXPECT_EQ(last.wanted().exit(), inherited);
    EXPECT_EQ(last.wanted().reason(), inherited ? "Slurm sent SIGTERM" : "");
  }
}

TEST(StepsOfAGang, RolesThatDoNotTrainAgreeApart) {
  GangSide::Hooks hooks;
  std::map<uint32_t, v1::StepOrder> last;
  std::vector<std::string> notes;
  hooks.talk.send = [&](uint32_t node, const v1::StepOrder& order) { last[node] = order; };
  hooks.talk.note = [&](const std::string& text) { notes.push_back(text); };
  hooks.now = [] { return 0; };
  hooks.after = [](int64_t, const std::function<void()>&) {};
  GangSide side(std::move(hooks));
  side.Begin(5, 2, {{"", {0, 1}}, {"evaluator", {2}}}, false);
  side.Want(true, false, "node n1 is drained");
  const auto answer = [&](uint32_t node, uint64_t step) {
    v1::StepAnswer said;
    said.set_generation(5);
    said.set_number(last[node].number());
    said.set_entered(true);
    said.set_highest(step);
    said.set_lowest(step);
    side.Take(node, said);
  };
  answer(2, 3);
  answer(2, 3);
  EXPECT_THAT(notes, ElementsAre("all ranks of role evaluator save at step 4: node n1 is drained"));
  EXPECT_FALSE(last[0].proposed());
  for (int i = 0; i < 2; ++i) {
    answer(0, 1'000);
    answer(1, 1'001);
  }
  EXPECT_EQ(notes.back(), "all ranks save at step 1002: node n1 is drained");
}

// One order after the other to a node, without links.
class OneNode : public ::testing::Test {
 protected:
  OneNode() { Restart(); }
  void Restart() {
    NodeSide::Hooks hooks;
    hooks.answer = [this](const v1::StepAnswer& answer) { answers_.push_back(answer); };
    hooks.news = [](const v1::StepNews&) {};
    hooks.keep = [this](bool again) {
      said_ += full_ && !again ? 1 : 0;
      if (full_) return false;
      kept_ = node_->kept();
      return true;
    };
    hooks.now = [] { return 1; };
    hooks.after = [](int64_t, const std::function<void()>&) {};
    node_ = std::make_unique<NodeSide>(std::move(hooks));
    node_->Restore(kept_);
    node_->Begin(3, {4, 5});
  }
  static v1::StepOrder Order(uint64_t number, uint64_t step = 0) {
    v1::StepOrder order;
    order.set_generation(3);
    order.set_number(number);
    order.mutable_wanted()->set_save(true);
    order.mutable_wanted()->set_step(step);
    order.set_proposed(step != 0);
    order.set_ask(number % 10 == 0);
    return order;
  }
  std::shared_ptr<wire::StepPage> Open(uint32_t rank) {
    auto page = std::make_shared<wire::StepPage>();
    wire::InitPage(page.get());
    EXPECT_NE(node_->Attend(rank, page), full_);
    return page;
  }

  std::vector<v1::StepAnswer> answers_;
  bool full_ = false;  // the disk
  int said_ = 0;       // how often that was said
  NodeSide::Kept kept_;
  std::unique_ptr<NodeSide> node_;
};

TEST_F(OneNode, ObeysNobodyWhoIsOlderThanTheOneWhoHasAsked) {
  const auto page = Open(4);
  node_->Take(Order(11, 7));
  EXPECT_EQ(page->proposed, 7U);
  node_->Take(Order(20));  // what holds?
  ASSERT_THAT(answers_, SizeIs(2));
  EXPECT_EQ(answers_.back().held().number(), 11U);
  node_->Take(Order(12, 9));
  EXPECT_EQ(page->proposed, 7U);
  EXPECT_THAT(answers_, SizeIs(2));
  Restart();
  node_->Take(Order(12, 9));
  EXPECT_TRUE(node_->Attend(4, page));
  EXPECT_EQ(page->proposed, 7U);
  EXPECT_THAT(answers_, SizeIs(2)) << "nor does it answer what was ordered before that";
  node_->Take(Order(21, 9));
  EXPECT_EQ(page->proposed, 9U);
}

TEST_F(OneNode, LetsMembersGoOnThoughItsDiskIsFullAndPromisesNothing) {
  const auto page = Open(4);
  node_->Take(Order(11, 7));
  full_ = true;
  node_->Take(Order(12, 9));
  EXPECT_EQ(page->proposed, 7U);
  EXPECT_EQ(kept_.order.number(), 11U);
  node_->Take(Order(13));
  EXPECT_EQ(page->proposed, wire::kNoStep);
  EXPECT_EQ(answers_.back().number(), 13U);
  (void)Open(5);
  EXPECT_THAT(answers_.back().never(), ElementsAre(4, 5));
  EXPECT_EQ(said_, 1) << "of three times";
  full_ = false;
  Restart();
  EXPECT_TRUE(node_->Attend(4, page));
  EXPECT_EQ(page->proposed, 7U) << "until the coordinator has said it again";
  node_->Take(Order(13));
  EXPECT_EQ(page->proposed, wire::kNoStep);
}

TEST_F(OneNode, OfOneThatHasEndedOnlyTheHighestStepCounts) {
  const auto ended = Open(4);
  const auto other = Open(5);
  (void)wire::EnterStep(ended.get(), 100, 1);
  (void)wire::EnterStep(other.get(), 200, 1);
  node_->Ended(3, 4);
  node_->Take(Order(11));
  EXPECT_EQ(answers_.back().lowest(), 200U);
  EXPECT_EQ(answers_.back().lowest_rank(), 5U);
  (void)wire::EnterStep(ended.get(), 300, 1);
  node_->Ended(3, 5);
  EXPECT_EQ(answers_.back().highest(), 300U);
  EXPECT_EQ(answers_.back().lowest(), 300U) << "nobody is behind";
  EXPECT_THAT(answers_.back().never(), IsEmpty());
}

TEST_F(OneNode, DoesNotKnowAProgramWhosePageIsLost) {
  auto page = Open(4);
  (void)wire::EnterStep(page.get(), 50, 1);
  Restart();
  node_->Take(Order(11));
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_THAT(answers_.back().unheard(), ElementsAre(4));
  const auto other = Open(4);  // of another program, or of another handle
  EXPECT_THAT(answers_.back().unheard(), ElementsAre(4));
  Restart();
  EXPECT_TRUE(node_->Attend(4, other));
  EXPECT_THAT(answers_.back().unheard(), ElementsAre(4));
  Restart();
  EXPECT_TRUE(node_->Attend(4, page));
  EXPECT_THAT(answers_.back().unheard(), IsEmpty());
  EXPECT_EQ(answers_.back().highest(), 50U);
  EXPECT_THAT(answers_.back().never(), ElementsAre(5));
}

TEST_F(OneNode, AnotherHandleOfAProgramGoesOnWhereTheFirstOneWas) {
  auto page = Open(5);
  (void)wire::EnterStep(page.get(), 50, 1);
  page = Open(5);
  Restart();
  EXPECT_TRUE(node_->Attend(5, page));
  node_->Take(Order(11));
  EXPECT_EQ(answers_.back().highest(), 50U);
}

TEST_F(Steps, ALongReasonIsCutBetweenCharacters) {
  Make({});
  std::string reason(wire::kMaxStepReason - 1, 'x');
  reason += "\xc3\xa9";  // its first byte would fit
  net_->Run(50);
  net_->Want(true, false, reason);
  Finish();
  EXPECT_EQ(net_->reason(TheStep(wire::kWishSave)), std::string(wire::kMaxStepReason - 1, 'x'));
}

}  // namespace
}  // namespace muster::steps
