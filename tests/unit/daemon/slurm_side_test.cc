// What a coordinator asks of Slurm and tells it, with a script in the place of muster-slurm.
#include "daemon/coordinator/slurm_side.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/slurm/messages.h"
#include "tests/support/loop_thread.h"
#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"
#include "tests/unit/slurm/helper_script.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint32_t kSlurmNodes = 3;
constexpr milliseconds kLease(800);
constexpr milliseconds kNearEnd(2'000);  // between two questions

int64_t NowSeconds() {
  return RealtimeNs() / 1'000'000'000;
}

// A job whose script runs on n0, and which has this many seconds left.
SlurmJob Running(int64_t left) {
  SlurmJob job;
  job.job_id = 12;
  job.state = "RUNNING";
  job.batch = job.requeueable = true;
  job.start_time = NowSeconds() - 4'000;
  job.end_time = NowSeconds() + left;
  job.batch_host = "n0";
  return job;
}

// Also tells what the state machine notes, and when members are to be stopped.
class Noted : public Ordered {
 public:
  void Do(const gang::Note& action) override { said.push_back(action.kind); }
  void Do(const gang::SetTimer& action) override {
    if (action.timer == gang::Timer::kGrace) grace_ms = action.ms;
  }
  int64_t grace_ms = -1;
};

// `before`: the record of a coordinator whose gang runs.
struct SlurmParts {
  SlurmParts(Loop& loop, const std::string& helper, const GangJob& job,
             const std::optional<GangRecord>& before, SlurmSide::Hooks hooks)
      : slurm(loop, {.helper = helper}),
        side(loop, helper.empty() ? nullptr : &slurm, job, core,
             {.leases = true, .lease = kLease, .time_limit_margin_ms = 60'000}, std::move(hooks)),
        core({orders, orders, side, orders, orders}, Terms(0, {0, 1, 2}, {}), true) {
    core.Take({1, before ? 1U : 0U}, {}, std::nullopt);
    gang::Settings settings = gang::Rig::SettingsOf(kSlurmNodes, 1);
    settings.requeue = true;
    settings.roles[0].min_nodes = 2;
    core.Begin(settings, before ? &*before : nullptr, {}, {});
    side.Take(RealtimeNs());
    core.Go();
    core.Lead();
    for (uint32_t node = 0; node < kSlurmNodes; ++node) {
      core.Registered(node, 0, std::nullopt);
      gang::MemberInfo member{.task = node, .local_id = 0};
      if (before) {
        member.state = gang::MemberState::kRunning;
        member.generation = 1;
      }
      core.Feed(gang::NodeJoined{.node = node, .name = job.hosts[node], .members = {member}});
    }
    core.RecordWritten(1, core.gang().state(), 0);
    for (uint32_t task = 0; task < kSlurmNodes; ++task) core.Feed(gang::MemberExecuted{task, 1, 0});
  }

  Noted orders;
  Slurm slurm;
  SlurmSide side;
  CoordinatorCore core;
};

// A gang of three nodes that runs.
class SlurmSideTest : public ::testing::Test {
 protected:
  SlurmSideTest() {
    script_.Write(R"sh(while ask; do
  [[ $do == job || $do == node_resume ]] || sed 's/.*"\(node\|text\)":"\([^"]*\)".*/ \2/;t;s/.*//' <<<"$line" | sed "s/^/$do/" >> told
  echo $do >> asked
  if [ $do != job ]; then
    ok '{"changed":true,"requeued":false,"released":true}'
  elif [ -e job ]; then
    ok "$(cat job)"
    [ ! -e then ] || mv then job
  else
    no unavailable 'slurmctld is away'
  fi
done)sh");
    job_.job_id = 12;
    job_.hosts = {"n0", "n1", "n2"};
    job_.task_count = kSlurmNodes;
    Make(script_.path());
  }
  ~SlurmSideTest() override {
    loop_.Do([&] { parts_.reset(); });
  }

  void Make(const std::string& helper, const std::optional<GangRecord>& before = std::nullopt) {
    loop_.Do([&] {
      parts_.reset();
      parts_ = std::make_unique<SlurmParts>(
          loop_.loop(), helper, job_, before,
          SlurmSide::Hooks{.read_fence =
                               [this](const SlurmSide::FenceRead& then) {
                                 ++reads_;
                                 loop_.loop().Post([this, then] { then(fence_, age_); });
                               },
                           .note = [this](const std::string& kind,
                                          const std::string& text) { notes_.push_back(kind + ": " + text); },
                           .tell_end = [this](const std::string& why) { notes_.push_back("end: " + why); }});
      parts_->orders.said.clear();
    });
  }
  // As a coordinator that takes a gang over which was warned.
  void TakeOver(const std::string& warned) {
    GangRecord before;
    before.state = gang::ToString(gang::State::kRunning);
    before.generation = 1;
    before.active = {0, 1, 2};
    before.warned = warned;
    Make(script_.path(), before);
  }
  // What Slurm says of the job from now on, or after its next answer.
  void Says(const SlurmJob& job, const char* from = "job") {
    std::ofstream(script_.directory() / "next") << slurm::ToJson(job).dump();
    std::filesystem::rename(script_.directory() / "next", script_.directory() / from);
  }
  void Begin() {
    loop_.Do([&] { parts_->side.Begin(); });
  }
  void Signal(uint32_t signal, uint32_t warn_seconds = 0, uint32_t task = 0) {
    loop_.Do([&] {
      v1::Terminating message;
      message.set_task(task);
      message.set_signal(signal);
      message.set_warn_seconds(warn_seconds);
      parts_->side.OnTerminating(message);
    });
  }
  void Silence(uint32_t node) {
    loop_.Do([&] { parts_->core.Silent({node, 0}); });
  }
  [[nodiscard]] gang::Announced Announced() {
    return loop_.Do([&] { return parts_->side.announced(); });
  }
  bool Notes(const std::string& text) {
    return loop_.Eventually([&] { return std::ranges::find(notes_, text) != notes_.end(); });
  }
  // Waits until the script has answered all questions so far. The result is how many of them asked for the job.
  int64_t Questions() {
    bool answered = false;
    loop_.Do([&] { parts_->slurm.NodeResume("n0", [&](const Status& /*status*/) { answered = true; }); });
    EXPECT_TRUE(loop_.Eventually([&] { return answered; }));
    std::istringstream asked(script_.Text("asked"));
    int64_t questions = 0;
    for (std::string line; std::getline(asked, line);) questions += line == "job" ? 1 : 0;
    return questions;
  }
  std::vector<std::string> Said() {
    return loop_.Do([&] { return std::exchange(parts_->orders.said, {}); });
  }
  // The gang is to be requeued when its members have stopped, which they do when Slurm has answered SIGTERM.
  gang::State AfterSigtermBeforeTheRequeue() {
    EXPECT_EQ(Questions(), 0);
    loop_.Do([&] {
      parts_->core.Feed(gang::JobFacts{.batch_node = 0, .can_requeue = true});
      parts_->core.Feed(gang::EndNear{.left_ms = 60'000});
      parts_->core.Feed(gang::CheckpointCommitted{100});
    });
    Signal(SIGTERM);
    EXPECT_EQ(Questions(), 1);
    return loop_.Do([&] {
      for (uint32_t node = 0; node < kSlurmNodes; ++node) parts_->core.Feed(gang::NodeStopped{node, 1});
      return parts_->core.gang().state();
    });
  }
  // The members of generation 1 have been stopped, and those of generation 2 are to start.
  void StartAgain() {
    loop_.Do([&] {
      parts_->core.Feed(gang::MemberExited{0, 1, {.status = SIGSEGV}});
      for (uint32_t node = 0; node < kSlurmNodes; ++node) parts_->core.Feed(gang::NodeStopped{node, 1});
      EXPECT_EQ(parts_->core.gang().state(), gang::State::kStarting);
    });
  }
  void Comment(const std::string& text) {
    loop_.Do([&] {
      parts_->side.CommentOnFault(text);
      parts_->side.Fed();
    });
  }
  // What Slurm has been told of the job's comment. Another job's comment goes the same way behind it.
  std::string Comments() {
    bool answered = false;
    loop_.Do([&] {
      parts_->slurm.SetComment({.job_id = 13}, "probe", [&](const Status& /*done*/) { answered = true; });
    });
    EXPECT_TRUE(loop_.Eventually([&] { return answered; }));
    std::istringstream told(script_.Text("told"));
    std::string comments;
    for (std::string line; std::getline(told, line);) {
      if (line.starts_with("comment") && line != "comment probe") comments += line + "\n";
    }
    return comments;
  }
  gang::Memory Remembered() {
    return loop_.Do([&] { return parts_->core.gang().Remember(); });
  }
  int64_t GraceMs() {
    return loop_.Do([&] { return parts_->orders.grace_ms; });
  }
  std::vector<std::string> NotesSoFar() {
    return loop_.Do([&] { return notes_; });
  }

  HelperScript script_;
  GangJob job_;
  Result<Fence> fence_ = Fence{1, 1};
  std::chrono::nanoseconds age_{0};
  int reads_ = 0;
  std::vector<std::string> notes_;
  LoopThread loop_;
  std::unique_ptr<SlurmParts> parts_;
};

TEST_F(SlurmSideTest, ATimeLimitIsAnnouncedAndTakenBackWhenItIsExtended) {
  Says(Running(30));
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kTimeLimit);
  EXPECT_THAT(Said(), Contains("end_near"));
  Says(Running(3'000));
  loop_.Move(kNearEnd);
  EXPECT_EQ(Questions(), 2);
  EXPECT_EQ(Announced(), gang::Announced::kNothing);
  EXPECT_THAT(Said(), Contains("end_moved"));
}

TEST_F(SlurmSideTest, ALimitThatIsFarAnnouncesNothing) {
  Says(Running(1'000));
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kNothing);
  EXPECT_TRUE(loop_.Do([&] { return parts_->core.gang().IsBatchHost(0); }));
}

TEST_F(SlurmSideTest, AShortJobKeepsMostOfItsTimeForItsWork) {
  SlurmJob job = Running(40);
  job.start_time = NowSeconds() - 40;
  Says(job);
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kNothing) << "a quarter of it is for the requeue";
}

TEST_F(SlurmSideTest, AnEndThatIsNearStaysNearThoughSlurmAnswersNoMore) {
  Says(Running(30));
  Begin();
  EXPECT_EQ(Questions(), 1);
  std::filesystem::remove(script_.directory() / "job");
  for (const int64_t questions : {2, 3}) {
    loop_.Move(kNearEnd);
    EXPECT_EQ(Questions(), questions);
  }
  EXPECT_EQ(Announced(), gang::Announced::kTimeLimit);
}

TEST_F(SlurmSideTest, ASignalBeforeSlurmsFirstAnswerIsJudgedByThatAnswer) {
  for (const uint32_t warn_seconds : {100, 1}) Signal(SIGUSR1, warn_seconds);
  EXPECT_EQ(Announced(), gang::Announced::kNothing);
  Says(Running(170));
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kTimeLimit);
  EXPECT_THAT(NotesSoFar(), ElementsAre(HasSubstr("warned: Slurm has sent the members the job's --signal")));
}

TEST_F(SlurmSideTest, ASignalThatIsNotDueConcernsTheProgramAlone) {
  Says(Running(1'000));
  Begin();
  EXPECT_EQ(Questions(), 1);
  Signal(SIGUSR1, 100);
  EXPECT_EQ(Announced(), gang::Announced::kNothing);
  Signal(SIGUSR1, 990);
  EXPECT_EQ(Announced(), gang::Announced::kTimeLimit) << "what Slurm has said last decides at once";
}

TEST_F(SlurmSideTest, SigtermsThatComeDuringAQuestionAreOneMore) {
  SlurmJob job = Running(1'000);
  job.preempt_time = NowSeconds();
  job.grace_seconds = 30;
  Says(job);
  loop_.Do([&] {
    v1::Terminating message;
    message.set_signal(SIGTERM);
    for (uint32_t task = 0; task < kSlurmNodes; ++task) {
      message.set_task(task);
      parts_->side.OnTerminating(message);
    }
  });
  Questions();
  EXPECT_EQ(Questions(), 2);
  EXPECT_EQ(Announced(), gang::Announced::kPreemption);
  EXPECT_THAT(Said(), Contains("end_near"));
  Signal(SIGTERM);
  EXPECT_EQ(Questions(), 3) << "a later signal is asked about anew";
}

TEST_F(SlurmSideTest, ACancelThatComesDuringAQuestionAboutAWarningEndsTheJob) {
  SlurmJob job = Running(90);
  Says(job);
  job.state = "CANCELLED";
  Says(job, "then");
  loop_.Do([&] {
    v1::Terminating message;
    message.set_signal(SIGTERM);
    message.set_warn_seconds(100);
    for (int signals = 0; signals < 2; ++signals) parts_->side.OnTerminating(message);
  });
  Questions();
  EXPECT_EQ(Questions(), 2);
  EXPECT_TRUE(Remembered().terminating);
  EXPECT_FALSE(Remembered().warned);
}

TEST_F(SlurmSideTest, AnOlderQuestionsAnswerDoesNotSayWhySigtermCame) {
  SlurmJob job = Running(30);
  Says(job);
  job.state = "CANCELLED";
  Says(job, "then");
  loop_.Do([&] {
    parts_->side.Begin();
    v1::Terminating message;
    message.set_signal(SIGTERM);
    parts_->side.OnTerminating(message);
  });
  EXPECT_EQ(Questions(), 2);
  EXPECT_THAT(Said(), Not(Contains("end_near")));
  EXPECT_TRUE(Remembered().terminating);
}

TEST_F(SlurmSideTest, AWarnedGangWhoseJobIsCancelledEndsThoughNoMemberTellsOfSigterm) {
  Says(Running(90));
  Begin();
  EXPECT_EQ(Questions(), 1);
  Signal(SIGUSR1, 100);
  EXPECT_EQ(Remembered().warned, gang::CauseClass::kTimeLimit);
  SlurmJob job = Running(90);
  job.state = "CANCELLED";
  Says(job);
  loop_.Move(std::chrono::minutes(1));
  EXPECT_EQ(Questions(), 2);
  EXPECT_TRUE(Remembered().terminating);
}

TEST_F(SlurmSideTest, ARequeueThatIsDecidedStaysWhereSlurmDoesNotAnswer) {
  EXPECT_EQ(AfterSigtermBeforeTheRequeue(), gang::State::kRequeueing);
}

TEST_F(SlurmSideTest, ARequeueThatIsDecidedIsTakenBackByACancel) {
  SlurmJob job = Running(1'000);
  job.state = "CANCELLED";
  job.preempt_time = NowSeconds();
  Says(job);
  EXPECT_EQ(AfterSigtermBeforeTheRequeue(), gang::State::kFinished);
}

TEST_F(SlurmSideTest, ARequeueThatIsDecidedStaysWhereSlurmMayRunTheJobAgain) {
  for (const char* state : {"NODE_FAIL", "PREEMPTED", "COMPLETING"}) {
    SlurmJob job = Running(1'000);
    job.state = state;
    job.preempt_time = job.state == "COMPLETING" ? NowSeconds() : 0;
    std::filesystem::remove(script_.directory() / "asked");
    Make(script_.path());
    Says(job);
    EXPECT_EQ(AfterSigtermBeforeTheRequeue(), gang::State::kRequeueing) << state;
  }
}

TEST_F(SlurmSideTest, AfterATakeoverMembersThatSaveKeepTheTimeUntilTheJobsEnd) {
  TakeOver("time_limit");
  Says(Running(3'000));
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kTimeLimit);
  EXPECT_LE(GraceMs(), 2'980'000);
  EXPECT_GT(GraceMs(), 2'500'000);
}

// Of the wanted signal itself: the members tell of it again to each coordinator, and over each new link.
TEST_F(SlurmSideTest, AWarningThatIsToldAgainIsNoCancelThoughItsTimeIsOver) {
  for (const int64_t left : {3'000, -5}) {
    std::filesystem::remove(script_.directory() / "asked");
    TakeOver("time_limit");
    Says(Running(left));
    Begin();
    EXPECT_EQ(Questions(), 1);
    Signal(SIGTERM, 100);
    EXPECT_EQ(Questions(), 2);
    EXPECT_FALSE(Remembered().terminating) << left;
    EXPECT_EQ(Remembered().warned, gang::CauseClass::kTimeLimit) << left;
  }
}

TEST_F(SlurmSideTest, APreemptionByAClockThatIsAheadLeavesNoMoreThanTheGraceTime) {
  TakeOver("preemption");
  SlurmJob job = Running(10'000);
  job.preempt_time = NowSeconds() + 5'000;
  job.grace_seconds = 100;
  Says(job);
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(GraceMs(), 50'000);
}

TEST_F(SlurmSideTest, AfterATakeoverThePreemptionsTimeDoesNotBeginAnew) {
  TakeOver("preemption");
  SlurmJob job = Running(10'000);
  job.preempt_time = NowSeconds() - 1'000;
  job.grace_seconds = 6'000;
  Says(job);
  Begin();
  EXPECT_EQ(Questions(), 1);
  EXPECT_LE(GraceMs(), 2'000'000);
  EXPECT_GT(GraceMs(), 1'500'000);
}

TEST_F(SlurmSideTest, AJobThatSlurmHasRequeuedMayRunAtOnce) {
  SlurmJob job = Running(1'000);
  job.restart_count = 1;
  Says(job);
  Signal(SIGTERM);
  EXPECT_EQ(Questions(), 1);
  EXPECT_THAT(NotesSoFar(),
              ElementsAre("requeue: Slurm has requeued the job: it may run again as soon as there is room"));
  EXPECT_TRUE(loop_.Eventually([&] { return script_.Text("told").starts_with("requeue"); }));
}

TEST_F(SlurmSideTest, AJobThatIsNotToBeRequeuedStaysInSlurmsHands) {
  job_.options.requeue = false;
  SlurmJob job = Running(1'000);
  job.restart_count = 1;
  Says(job);
  Signal(SIGTERM);
  EXPECT_EQ(Questions(), 1);
  EXPECT_THAT(NotesSoFar(), ElementsAre("requeue: Slurm has requeued the job"));
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(script_.Text("told"), "");
}

TEST_F(SlurmSideTest, TheNewestCoordinatorSetsALostNodeDownAfterTheComment) {
  Silence(2);
  ASSERT_TRUE(Notes("slurm: n2 is set DOWN"));
  EXPECT_THAT(script_.Text("told"),
              AllOf(StartsWith("comment muster: node n2"), EndsWith("\nnode_down n2\n")));
  EXPECT_EQ(loop_.Do([&] { return reads_; }), 1);
  loop_.Move(3 * kLease);
  EXPECT_THAT(NotesSoFar(), ElementsAre("slurm: n2 is set DOWN")) << "once";
}

TEST_F(SlurmSideTest, AFaultsCommentIsSetWhenTheNextGenerationRuns) {
  Comment("a fault that the gang survives");
  EXPECT_EQ(Comments(), "comment muster: a fault that the gang survives\n");
  StartAgain();
  Comment("a fault");
  EXPECT_EQ(Comments(), "comment muster: a fault that the gang survives\n") << "the start goes first";
  loop_.Do([&] {
    for (uint32_t task = 0; task < kSlurmNodes; ++task) {
      parts_->core.Feed(gang::MemberExecuted{task, 2, 0});
      parts_->side.Fed();
    }
  });
  EXPECT_THAT(Comments(), EndsWith("comment muster: a fault\n"));
}

TEST_F(SlurmSideTest, AFaultsCommentWaitsForNoStartThatTakesLong) {
  StartAgain();
  Comment("a fault");
  loop_.Move(milliseconds(4'999));
  EXPECT_EQ(Comments(), "");
  loop_.Move(milliseconds(1));
  EXPECT_EQ(Comments(), "comment muster: a fault\n");
  loop_.Move(milliseconds(60'000));
  EXPECT_EQ(Comments(), "comment muster: a fault\n") << "once";
}

TEST_F(SlurmSideTest, ALostNodesCommentTakesThePlaceOfAnothersThatIsNotSetYet) {
  StartAgain();
  Comment("a fault");
  Silence(2);
  ASSERT_TRUE(Notes("slurm: n2 is set DOWN"));
  loop_.Move(milliseconds(5'000));
  EXPECT_THAT(Comments(), AllOf(StartsWith("comment muster: node n2"), Not(HasSubstr("a fault"))));
}

TEST_F(SlurmSideTest, ACoordinatorThatHasASuccessorCommentsOnNothing) {
  StartAgain();
  Comment("a fault");
  loop_.Do([&] { parts_->core.Lose(); });
  loop_.Move(milliseconds(5'000));
  EXPECT_EQ(Comments(), "");
}

TEST_F(SlurmSideTest, WithoutASecondObserverNoNodeIsSetDown) {
  Silence(2);
  ASSERT_TRUE(Notes("slurm: n2 is set DOWN"));
  Silence(1);
  EXPECT_TRUE(Notes("slurm: n1 is not set DOWN: there is no second observer"));
}

TEST_F(SlurmSideTest, AFormerCoordinatorSetsNobodyDown) {
  loop_.Do([&] { fence_ = Fence{2, 1}; });
  Said();
  Silence(2);
  ASSERT_TRUE(loop_.Eventually([&] { return reads_ == 1; }));
  loop_.Move(3 * kLease);
  EXPECT_THAT(Said(), Contains("find successor"));
  EXPECT_THAT(NotesSoFar(), IsEmpty());
}

TEST_F(SlurmSideTest, AStoreThatHasTheTermThatIsBeingRaisedIsAskedAgain) {
  loop_.Do([&] {
    fence_ = Fence{2, 1};
    parts_->core.RaiseTerm();
  });
  Silence(2);
  ASSERT_TRUE(loop_.Eventually([&] { return reads_ == 1; }));
  loop_.Do([&] { parts_->core.TermRaised({}); });
  loop_.Move(milliseconds(300));
  EXPECT_TRUE(Notes("slurm: n2 is set DOWN"));
}

TEST_F(SlurmSideTest, AnAnswerFromBeforeThisHostStoodStillIsAskedForAgain) {
  loop_.Do([&] { age_ = kLease + milliseconds(1); });
  Silence(2);
  ASSERT_TRUE(loop_.Eventually([&] { return reads_ == 1; }));
  loop_.Move(milliseconds(299));
  EXPECT_THAT(NotesSoFar(), IsEmpty());
  loop_.Do([&] { age_ = kLease; });
  loop_.Move(milliseconds(1));
  EXPECT_TRUE(Notes("slurm: n2 is set DOWN"));
  EXPECT_EQ(loop_.Do([&] { return reads_; }), 2);
}

TEST_F(SlurmSideTest, MostWitnessesWillDoWhereTheStoreIsAway) {
  loop_.Do([&] { fence_ = Error{Errc::kUnavailable, "no answer"}; });
  Silence(2);
  ASSERT_TRUE(loop_.Eventually([&] { return reads_ == 1; }));
  loop_.Move(2 * kLease);
  EXPECT_THAT(NotesSoFar(), IsEmpty()) << "nobody follows this coordinator";
  loop_.Do([&] { parts_->core.SetQuorum(true); });
  loop_.Move(4 * kLease);
  EXPECT_THAT(NotesSoFar(), IsEmpty()) << "this host has stood still";
  loop_.Move(2 * kLease);
  EXPECT_TRUE(Notes("slurm: n2 is set DOWN"));
}

TEST_F(SlurmSideTest, ANodeThatIsBackIsNotSetDown) {
  loop_.Do([&] {
    parts_->core.Silent({2, 0});
    parts_->core.Feed(gang::NodeJoined{.node = 2, .name = "n2", .members = {{.task = 2, .local_id = 0}}});
  });
  EXPECT_TRUE(Notes("slurm: n2 is not set DOWN: it is back"));
}

TEST_F(SlurmSideTest, TheScriptsNodeIsSetDownWhenTheGangIsOver) {
  loop_.Do([&] {
    parts_->core.Feed(gang::JobFacts{.batch_node = 2, .can_requeue = false});
    parts_->core.Silent({2, 0});
  });
  ASSERT_TRUE(loop_.Eventually([&] { return reads_ == 1; }));
  EXPECT_THAT(NotesSoFar(), IsEmpty());
  loop_.Do([&] {
    parts_->core.Feed(gang::NodeStopped{0, 1});
    parts_->core.Feed(gang::NodeStopped{1, 1});
    parts_->core.Feed(gang::RequeueFailed{"denied"});
    ASSERT_EQ(parts_->core.gang().state(), gang::State::kFinished);
    parts_->side.Finished();
  });
  EXPECT_TRUE(Notes("slurm: n2 is set DOWN"));
}

TEST_F(SlurmSideTest, ARequeueWithoutItsScriptsNodeTellsTheOthersAndSetsThatNodeDownLast) {
  loop_.Do([&] {
    parts_->core.Feed(gang::JobFacts{.batch_node = 0, .can_requeue = true});
    parts_->core.Silent({0, 0});
    parts_->core.Silent({1, 0});
    EXPECT_TRUE(parts_->side.OrderRequeue({.reason = "too few nodes", .dead = {0, 1}}));
    EXPECT_EQ(script_.Text("told"), "") << "not before the record";
    parts_->side.Requeue();
  });
  EXPECT_TRUE(Notes("end: the job is requeued: too few nodes"));
  EXPECT_TRUE(
      loop_.Eventually([&] { return script_.Text("told").find("requeue\nrelease") != std::string::npos; }));
  EXPECT_THAT(script_.Text("told"), HasSubstr("requeue\nnode_down n1\nnode_down n0\nrequeue\n"));
}

TEST_F(SlurmSideTest, WithoutSlurmNothingIsToldAndNothingRequeued) {
  Make("");
  Begin();
  Silence(2);
  Signal(SIGTERM);
  loop_.Do([&] {
    parts_->side.CommentOnFault("n2 is lost");
    parts_->side.Fed();
    parts_->side.Do(gang::DrainInSlurm{1, "sick"});
    EXPECT_FALSE(parts_->side.OrderRequeue({.reason = "too few nodes"}));
  });
  EXPECT_THAT(NotesSoFar(), IsEmpty());
  EXPECT_EQ(loop_.Do([&] { return reads_; }), 0);
}

TEST_F(SlurmSideTest, WhatSlurmSaysToACoordinatorWithoutTheRecordComesToNothing) {
  Says(Running(30));
  loop_.Do([&] {
    parts_->side.Begin();
    parts_->core.Lose();
  });
  EXPECT_EQ(Questions(), 1);
  EXPECT_EQ(Announced(), gang::Announced::kNothing);
  loop_.Move(milliseconds(60'000));
  EXPECT_EQ(Questions(), 1) << "and is not asked for again";
}

TEST_F(SlurmSideTest, ASickNodeIsDrained) {
  loop_.Do([&] { parts_->side.Do(gang::DrainInSlurm{1, "sick"}); });
  EXPECT_TRUE(Notes("slurm: n1 is drained"));
  EXPECT_EQ(script_.Text("told"), "node_drain n1\n");
}

}  // namespace
}  // namespace muster
