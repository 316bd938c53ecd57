// musterd's side, with a shell script in place of muster-slurm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "daemon/slurm/slurm.h"
#include "tests/unit/slurm/helper_script.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SlurmClient : public ::testing::Test {
 protected:
  SlurmClient() {
    options_.helper = script_.path();
    options_.timeout = std::chrono::seconds(30);
  }

  void Helper(const std::string& body) { script_.Write(body); }
  Slurm& Client() {
    if (!slurm_) slurm_.emplace(loop_, options_);
    return *slurm_;
  }
  // Runs the loop until `count` more answers have come.
  void Await(size_t count = 1) {
    awaited_ = answers_.size() + count;
    Step();
    loop_.Run();
  }
  void Step() {
    if (answers_.size() >= awaited_) return loop_.Stop();
    loop_.After(std::chrono::milliseconds(1), [this] { Step(); });
  }
  Slurm::Done Done() {
    return [this](const Status& status) { answers_.push_back(status); };
  }
  std::string Text(const char* name) { return script_.Text(name); }

  HelperScript script_;
  SlurmOptions options_;
  Loop loop_;
  std::vector<Status> answers_;
  size_t awaited_ = 0;
  std::optional<Slurm> slurm_;
};

TEST_F(SlurmClient, AsksOneThingAfterTheOtherInOneProcess) {
  Helper("while ask; do echo $do >> asked; ok '{}'; done");
  Client().NodeDrain("n1", "sick", Done());
  Client().NodeResume("n1", Done());
  Client().KillStep(12, 0, Done());
  EXPECT_EQ(Client().helper_pid(), 0) << "nothing is done before the call returns";
  Await(3);
  for (const Status& status : answers_) EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(Text("asked"), "node_drain\nnode_resume\nkill_step\n");
}

TEST_F(SlurmClient, SaysWhenTheHelperIsMissing) {
  Client().NodeResume("n1", Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kUnavailable);
  EXPECT_THAT(answers_[0].error().message, HasSubstr(options_.helper + " cannot be started: No such file"));
}

TEST_F(SlurmClient, AHelperThatDiesIsReportedWithItsLastWordsAndStartedAgain) {
  Helper("ask; if [ ! -e once ]; then touch once; echo 'fatal: no slurm.conf' >&2; exit 1; fi; ok '{}'; ask");
  Client().NodeResume("n1", Done());
  Client().NodeResume("n1", Done());
  Await(2);
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kUnavailable);
  EXPECT_THAT(answers_[0].error().message,
              HasSubstr("ended with exit status 1 while it was asked 'node_resume'"));
  EXPECT_THAT(answers_[0].error().message, HasSubstr("fatal: no slurm.conf"));
  EXPECT_TRUE(answers_[1]);
}

TEST_F(SlurmClient, AHelperThatHangsIsKilledAtTheDeadlineAndStartedAgain) {
  Helper("ask; if [ ! -e once ]; then touch once; exec sleep 600; fi; ok '{}'; ask");
  options_.timeout = std::chrono::milliseconds(300);
  Client().NodeResume("n1", Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kUnavailable);
  EXPECT_THAT(answers_[0].error().message, HasSubstr("has not answered 'node_resume' within 300 ms"));
  EXPECT_EQ(Client().helper_pid(), 0);
}

TEST_F(SlurmClient, WhatTheHelperRefusesIsTheCallersError) {
  Helper("ask; no denied 'job 13 is on it too'; ask");
  Client().NodeDown({12}, "n1", "lost", Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kDenied);
  EXPECT_EQ(answers_[0].error().message, "job 13 is on it too");
}

TEST_F(SlurmClient, AnswersThatAreNoneKillTheHelper) {
  for (const char* bad :
       {"echo hello", "echo '{\"id\":9999,\"ok\":{}}'", "echo '{\"id\":'$id',\"ok\":{}}'; echo more"}) {
    SCOPED_TRACE(bad);
    Loop loop;
    Slurm slurm(loop, options_);
    Helper(std::string("ask; { ") + bad + "; } | cat; ask");
    std::optional<Status> answer;
    slurm.NodeResume("n1", [&](const Status& status) {
      answer = status;
      loop.Stop();
    });
    loop.Run();
    // The third's first line may be taken before its second comes.
    if (!answer->ok()) {
      EXPECT_EQ(answer->error().code, Errc::kInternal);
      EXPECT_EQ(slurm.helper_pid(), 0);
    }
  }
}

TEST_F(SlurmClient, NodesAreSetDownSoManyTimesAMinuteAndNoMore) {
  Helper("while ask; do echo x >> asked; ok '{\"changed\":true}'; done");
  options_.node_downs_per_minute = 2;
  for (int i = 0; i < 3; ++i) Client().NodeDown({12}, "n1", "lost", Done());
  Await(3);
  // The refusal does not wait for the helper.
  EXPECT_EQ(std::count_if(answers_.begin(), answers_.end(), [](const Status& status) { return status.ok(); }),
            2);
  for (const Status& status : answers_) {
    if (status) continue;
    EXPECT_EQ(status.error().code, Errc::kExhausted);
    EXPECT_THAT(status.error().message, HasSubstr("slurm_node_downs_per_minute"));
  }
  EXPECT_EQ(Text("asked"), "x\nx\n");
}

TEST_F(SlurmClient, WhatHasSetNoNodeDownDoesNotCount) {
  Helper("while ask; do ok '{\"changed\":false}'; done");
  options_.node_downs_per_minute = 1;
  Client().NodeDown({12}, "n1", "lost", [this](const Status& status) {
    EXPECT_TRUE(status);
    Client().NodeDown({12}, "n1", "lost", Done());
  });
  Await();
  EXPECT_TRUE(answers_[0]);
}

TEST_F(SlurmClient, ACommentThatWaitsHoldsNothingUp) {
  Helper("while ask; do if [ $do = comment ]; then until [ -e go ]; do sleep 0.01; done; fi; ok '{}'; done");
  Client().SetComment({12}, "gang restarted", Done());
  Client().NodeResume("n1", [this](const Status& status) {
    EXPECT_TRUE(status);
    EXPECT_TRUE(answers_.empty());
    std::ofstream(script_.directory() / "go") << "";
  });
  Await();
  EXPECT_TRUE(answers_[0]);
}

TEST_F(SlurmClient, ACommentThatIsRefusedForNowIsTriedThreeTimes) {
  options_.comment_pause = std::chrono::milliseconds(10);
  Helper("while ask; do echo \"$line\" >> asked; no unavailable 'setting the index'; done");
  Client().SetComment({12}, "gang restarted", Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kUnavailable);
  const std::string asked = Text("asked");
  EXPECT_EQ(std::count(asked.begin(), asked.end(), '\n'), 3);
}

TEST_F(SlurmClient, ACommentThatMayNotBeSetIsTriedOnce) {
  Helper("while ask; do echo $do >> asked; no denied 'not yours'; done");
  Client().SetComment({12}, "gang restarted", Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(Text("asked"), "comment\n");
}

TEST_F(SlurmClient, OfCommentsThatWaitTheNewestIsSet) {
  options_.comment_pause = std::chrono::milliseconds(10);
  Helper(R"sh(while ask; do
  sed 's/.*"text":"\([a-z]*\)".*/\1/' <<<"$line" >> asked
  if [ -e go ]; then ok '{}'; else touch go; no unavailable 'setting the index'; fi
done)sh");
  Client().SetComment({12}, "first", Done());
  Client().SetComment({12}, "second", Done());
  Client().SetComment({12}, "third", Done());
  Await(3);
  for (const Status& answer : answers_) EXPECT_TRUE(answer);
  EXPECT_EQ(Text("asked"), "first\nthird\n");
}

TEST_F(SlurmClient, ACommentThatIsOnItsWayIsSetBeforeANodeIsDown) {
  options_.comment_first = std::chrono::seconds(30);
  Helper("while ask; do [ $do = comment ] && sleep 0.05; echo $do >> asked; ok '{\"changed\":true}'; done");
  Client().SetComment({12}, "n1 is lost", Done());
  Client().NodeDown({12}, "n1", "lost", Done());
  Await(2);
  EXPECT_EQ(Text("asked"), "comment\nnode_down\n");
}

TEST_F(SlurmClient, ARequeueLooksFirstThenSetsTheDeadDownThenRequeuesAndWaits) {
  // What it counts is kept beside it: it is started again after "unavailable".
  Helper(R"sh([ -e looks ] || echo 0 > looks
while ask; do
  how=
  [[ $line == *'"check":true'* ]] && how=" check"
  [[ $line == *'"settled":true'* ]] && how=" settled"
  echo "$do$how" >> asked
  case "$do$how" in
    "requeue check") ok '{"requeued":false}' ;;
    node_down) ok '{"changed":true}' ;;
    requeue) if [ ! -e once ]; then touch once; no unavailable busy; else ok '{}'; fi ;;
    release)
      n=$(($(cat looks) + 1))
      echo $n > looks
      if [ $n -lt 3 ]; then ok '{"released":false,"state":"completing"}'; else ok '{"released":false,"pending":true}'; fi ;;
    *) ok '{"released":true}' ;;
  esac
done)sh");
  Client().Requeue({12}, {"n1"}, "its host is silent", Slurm::Script::kRuns, Done());
  Await();
  EXPECT_TRUE(answers_[0]) << answers_[0].error().message;
  EXPECT_EQ(Text("asked"),
            "requeue check\nnode_down\nrequeue\nrequeue\nrelease\nrelease\nrelease\nrelease settled\n");
}

TEST_F(SlurmClient, AHeterogeneousJobIsRequeuedBeforeItsDeadAreSetDown) {
  Helper(R"sh(while ask; do
  how=
  [[ $line == *'"check":true'* ]] && how=" check"
  echo "$do$how" >> asked
  case "$do$how" in
    "requeue check") ok '{"requeued":false,"heterogeneous":true}' ;;
    node_down) ok '{"changed":true}' ;;
    requeue) ok '{}' ;;
    *) ok '{"released":true}' ;;
  esac
done)sh");
  Client().Requeue({12}, {"n1"}, "its host is silent", Slurm::Script::kRuns, Done());
  Await();
  EXPECT_TRUE(answers_[0]) << answers_[0].error().message;
  EXPECT_EQ(Text("asked"), "requeue check\nrequeue\nnode_down\nrelease\n");
}

TEST_F(SlurmClient, ARequeueThatIsRefusedSetsNothingDown) {
  Helper("while ask; do echo $do >> asked; no denied 'it was submitted with --no-requeue'; done");
  Client().Requeue({12}, {"n1"}, "its host is silent", Slurm::Script::kRuns, Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_EQ(answers_[0].error().code, Errc::kDenied);
  EXPECT_EQ(Text("asked"), "requeue\n");
}

TEST_F(SlurmClient, AStepThatCouldNotBeLaunchedIsNotLaunchedOnTheSameNodeAgain) {
  Helper(R"sh(while ask; do
  echo $do >> asked
  if [ $do = node_down ]; then no denied 'job 13 is on it too'; else ok '{"requeued":false}'; fi
done)sh");
  Client().Requeue({12}, {"n1"}, "it was dead", Slurm::Script::kMayHaveFailed, Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_THAT(answers_[0].error().message, HasSubstr("job 13 is on it too"));
  EXPECT_EQ(Text("asked"), "requeue\nnode_down\n");
}

// Its node was DOWN a moment before, and slurmd lived there.
TEST_F(SlurmClient, AJobWhoseScriptWasKilledWithItsNodeIsRequeuedThoughTheNodeIsNotItsAnyMore) {
  Helper(R"sh(while ask; do
  echo "$line" >> asked
  case "$do" in
    node_down) no denied 'it is none of its nodes' ;;
    launched) no denied 'it is gone' ;;
    *) ok '{"requeued":false,"released":true}' ;;
  esac
done)sh");
  Client().Requeue({12}, {"n1"}, "its host is silent", Slurm::Script::kMayBeKilled, Done());
  Await();
  EXPECT_TRUE(answers_[0]) << answers_[0].error().message;
  EXPECT_THAT(Text("asked"), AllOf(HasSubstr("\"do\":\"release\""), HasSubstr("\"failed\":true")));
}

TEST_F(SlurmClient, ARequeueGivesUpAtItsDeadlineAndSaysWhatItWaitedFor) {
  Helper("while ask; do ok '{\"released\":false,\"state\":\"its last run is completing\"}'; done");
  options_.requeue_timeout = std::chrono::milliseconds(200);
  Client().Requeue({12}, {}, "", Slurm::Script::kRuns, Done());
  Await();
  ASSERT_FALSE(answers_[0]);
  EXPECT_THAT(answers_[0].error().message, HasSubstr("within 200 ms: its last run is completing"));
}

TEST_F(SlurmClient, ARequeueOutlivesTheDaemonThatBeganIt) {
  options_.requeue_dir = script_.directory() / "requeues";
  Helper("while ask; do echo $do >> asked; no unavailable 'slurmctld is away'; done");
  Client().Requeue({12, 3, 1001, 1700000000}, {"n1"}, "its host is silent", Slurm::Script::kMayHaveFailed,
                   Done());
  std::function<void()> look;
  const auto die = [&] {
    if (Text("asked").empty()) return false;
    slurm_.reset();
    EXPECT_TRUE(answers_.empty());
    EXPECT_FALSE(std::filesystem::is_empty(options_.requeue_dir));
    std::ofstream(options_.requeue_dir + "/torn.json") << "{";
    Helper(R"sh(while ask; do
  echo "$line" >> again
  case "$do" in
    launched) no denied 'it is gone' ;;
    *) ok '{"requeued":true,"released":true}' ;;
  esac
done)sh");
    Client().ResumeRequeues();
    return true;
  };
  bool died = false;
  look = [&] {
    if (!died) {
      died = die();
    } else if (std::filesystem::is_empty(options_.requeue_dir)) {
      return loop_.Stop();
    }
    loop_.After(std::chrono::milliseconds(5), look);
  };
  look();
  loop_.Run();
  EXPECT_THAT(Text("again"),
              AllOf(HasSubstr("\"job\":12"), HasSubstr("\"restarts\":3"), HasSubstr("\"uid\":1001"),
                    HasSubstr("\"seen\":1700000000"), HasSubstr("\"failed\":true")));
}

TEST_F(SlurmClient, MoreThanSixtyFourQuestionsAreRefused) {
  Helper("while ask; do ok '{}'; done");
  for (int i = 0; i < 70; ++i) Client().NodeResume("n1", Done());
  Await(70);
  EXPECT_EQ(std::count_if(answers_.begin(), answers_.end(), [](const Status& s) { return s.ok(); }), 64);
}

TEST_F(SlurmClient, TakesItsHelperWithItWhenItGoes) {
  Helper("while ask; do ok '{}'; done");
  Client().NodeResume("n1", Done());
  Await();
  const pid_t pid = Client().helper_pid();
  ASSERT_GT(pid, 0);
  slurm_.reset();
  // Where it has not been taken yet it has been killed, and ends.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (::waitpid(pid, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(::kill(pid, 0), -1);
}

}  // namespace
}  // namespace muster
