// A member whose directories are checkpoints: muster-files beside its program, in all that can happen to either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using wire::Type;

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    rig_.settings.identity.hello.uid = 7;
    rig_.settings.identity.hello.job_id = 12;
    rig_.in_task = [base = base()] { setenv("MUSTER_FILES_DIR", base.c_str(), 1); };
  }

  [[nodiscard]] std::string base() const { return directory_.path(); }
  void How(const std::string& how) const { std::ofstream(base() + "/how") << how; }
  void Go() const { std::ofstream(base() + "/go") << ""; }
  void Launch() {
    rig_.Launch();
    rig_.Welcome();
  }
  void Start(uint64_t generation, const std::string& script) {
    rig_.Start(
        generation, script,
        {"MUSTER_FILES=" + std::string(MUSTER_FAKE_FILES), "MUSTER_SOCKET=/run/muster.sock", "MUSTER_TOKEN"});
  }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(base() + "/log").rdbuf();
    return text.str();
  }
  // Of the watcher that was started last.
  pid_t Watcher() const {
    const std::string log = Log();
    const size_t at = log.rfind("pid=");
    return at == std::string::npos ? 0 : static_cast<pid_t>(std::stoi(log.substr(at + 4)));
  }

  TemporaryDirectory directory_;
  Rig rig_;
};

TEST_F(FilesTest, TheProgramStartsWhenItsDirectoryIsReadyAndKnowsIt) {
  Launch();
  Start(1, "echo \"$MUSTER_CHECKPOINT_DIR [$MUSTER_FILES]\"; sleep 60");
  rig_.ExpectExecuted(1);
  EXPECT_EQ(rig_.ReadStdout("\n"), base() + "/here []\n");
  EXPECT_THAT(Log(), HasSubstr("cwd=\"/\""));
  EXPECT_THAT(Log(), HasSubstr("group=1 socket=run/muster.sock"));
}

TEST_F(FilesTest, TheWatcherHoldsNobodysDescriptors) {
  Launch();
  Start(1, "sleep 60");
  rig_.ExpectExecuted(1);
  // Its five, the log, and the list of them.
  EXPECT_THAT(Log(), HasSubstr("serve fds=7 "));
}

TEST_F(FilesTest, WithoutTheVariableThereIsNone) {
  Launch();
  rig_.Start(1, "echo \"[$MUSTER_CHECKPOINT_DIR]\"; exit 0", {"MUSTER_FILES"});
  EXPECT_EQ(rig_.ReadStdout("\n"), "[]\n");
  rig_.ExpectExecuted(1);
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 0);
  rig_.Finish();
  EXPECT_EQ(rig_.Wait(), 0);
  EXPECT_EQ(Log(), "");
}

TEST_F(FilesTest, ADirectoryThatCannotBeMadeKeepsTheProgramFromStarting) {
  How("fail");
  Launch();
  Start(1, "echo never");
  EXPECT_EQ(WEXITSTATUS(rig_.Expect<wire::Exited>(Type::kExited).wait_status), 125);
  EXPECT_EQ(rig_.ReadStderr("\n"), "muster: cannot start the program: no room on the disk\n");
  rig_.Finish();
  EXPECT_EQ(WEXITSTATUS(rig_.Wait()), 125);
}

TEST_F(FilesTest, AWatcherThatDiesBeforeThatDoesSoToo) {
  How("die");
  Launch();
  Start(1, "echo never");
  EXPECT_EQ(WEXITSTATUS(rig_.Expect<wire::Exited>(Type::kExited).wait_status), 125);
  EXPECT_THAT(rig_.ReadStderr("\n"),
              HasSubstr("muster-files, which makes its checkpoint directory, has ended"));
}

TEST_F(FilesTest, AProgramThatIsNotThereIsNamed) {
  Launch();
  rig_.Start(1, "echo never", {"MUSTER_FILES=/does/not/exist"});
  EXPECT_EQ(WEXITSTATUS(rig_.Expect<wire::Exited>(Type::kExited).wait_status), 125);
  EXPECT_EQ(rig_.ReadStderr("\n"),
            "muster: cannot start the program: /does/not/exist: No such file or directory\n");
}

TEST_F(FilesTest, AGoodEndIsReportedWhenTheLastDirectoryIsACheckpoint) {
  How("wait");
  Launch();
  Start(1, "exit 0");
  rig_.ExpectExecuted(1);
  EXPECT_TRUE(Until([&] { return Log().find("told D") != std::string::npos; }));
  EXPECT_FALSE(rig_.Next(std::chrono::milliseconds(100))) << "it has not ended yet";
  Go();
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 0);
  EXPECT_EQ(rig_.ReadStderr("\n"), "muster: saved\n");
  rig_.Finish();
  EXPECT_EQ(rig_.Wait(), 0);
  EXPECT_THAT(Log(), HasSubstr("remove "));
}

TEST_F(FilesTest, ABadEndIsReportedAtOnceAndTheWatcherIsSwept) {
  How("wait");
  Launch();
  Start(1, "exit 3");
  rig_.ExpectExecuted(1);
  EXPECT_EQ(WEXITSTATUS(rig_.Expect<wire::Exited>(Type::kExited).wait_status), 3);
  const pid_t watcher = Watcher();
  EXPECT_TRUE(IsAlive(watcher));
  rig_.Stop(1);
  EXPECT_EQ(rig_.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
  EXPECT_FALSE(IsAlive(watcher));
  How("");
  Start(2, "sleep 60");
  rig_.ExpectExecuted(2);
  EXPECT_NE(Watcher(), watcher);
}

TEST_F(FilesTest, AStopWhileItDrainsReportsTheGoodEndAndEndsTheWatcher) {
  How("wait");
  Launch();
  Start(1, "exit 0");
  rig_.ExpectExecuted(1);
  EXPECT_TRUE(Until([&] { return Log().find("told D") != std::string::npos; }));
  rig_.Stop(1);
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 0);
  rig_.Expect<wire::Stopped>(Type::kStopped);
  EXPECT_FALSE(IsAlive(Watcher()));
}

TEST_F(FilesTest, LastWordsAreInNoCheckpoint) {
  How("wait");
  Launch();
  Start(1, "trap 'sleep 0.2; exit 0' TERM; while :; do sleep 0.01; done");
  rig_.ExpectExecuted(1);
  const pid_t watcher = Watcher();
  rig_.Stop(1, 60'000);
  EXPECT_TRUE(Until([&] { return !IsAlive(watcher); }));
  EXPECT_GT(rig_.Expect<wire::Stopped>(Type::kStopped).last_words_ms, 0U);
  rig_.Finish(wire::FinishAs::kZero);
  EXPECT_EQ(rig_.Wait(), 0);
  EXPECT_THAT(rig_.ReadStderr(""), Not(HasSubstr("muster-files")));
}

TEST_F(FilesTest, SignalsWhileItDrainsReachNobody) {
  How("wait");
  Launch();
  Start(1, "exit 0");
  rig_.ExpectExecuted(1);
  EXPECT_TRUE(Until([&] { return Log().find("told D") != std::string::npos; }));
  kill(rig_.supervisor(), SIGUSR1);
  kill(rig_.supervisor(), SIGTERM);
  EXPECT_EQ(rig_.Expect<wire::Signalled>(Type::kSignalled).signal, static_cast<uint32_t>(SIGTERM));
  EXPECT_TRUE(IsAlive(rig_.supervisor()));
  EXPECT_TRUE(IsAlive(Watcher()));
  Go();
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 0);
}

TEST_F(FilesTest, ADrainThatHangsEndsInTime) {
  How("wait");
  rig_.settings.drain_ms = 200;
  Launch();
  Start(1, "exit 0");
  rig_.ExpectExecuted(1);
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 0);
  EXPECT_THAT(rig_.ReadStderr("checkpoint\n"),
              HasSubstr("what the program has closed last may be no checkpoint"));
}

TEST_F(FilesTest, WhoIsFencedWhileItDrainsHasNotEndedWell) {
  How("wait");
  rig_.Launch();
  rig_.Welcome(6000);
  Start(1, "exit 0");
  EXPECT_TRUE(Until([&] { return Log().find("told D") != std::string::npos; }));
  rig_.ExpectExecuted(1);
  const auto exited = rig_.Expect<wire::Exited>(Type::kExited);
  EXPECT_TRUE(WIFSIGNALED(exited.wait_status));
}

TEST_F(FilesTest, AWatcherThatIsKilledIsReportedAndTheProgramGoesOn) {
  Launch();
  Start(1, "sleep 60");
  const pid_t program = rig_.ExpectExecuted(1);
  kill(Watcher(), SIGKILL);
  EXPECT_THAT(rig_.ReadStderr("\n"), HasSubstr("muster-files was killed"));
  EXPECT_TRUE(IsAlive(program));
}

}  // namespace
}  // namespace muster::supervisor
