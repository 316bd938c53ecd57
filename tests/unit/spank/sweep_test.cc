// Nothing of a generation is left when Stopped is said.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using wire::FinishAs;
using wire::Type;

constexpr uint32_t kUnkillableMs = 100;

// The numbers that a script has printed, up to the line "ready".
std::vector<pid_t> Pids(const std::string& text) {
  std::istringstream lines(text);
  std::vector<pid_t> pids;
  for (std::string line; std::getline(lines, line) && line != "ready";) pids.push_back(std::stoi(line));
  return pids;
}

std::vector<pid_t> StartAndList(Rig* rig, const std::string& script) {
  rig->Launch();
  rig->Welcome();
  rig->Start(1, script);
  rig->ExpectExecuted(1);
  return Pids(rig->ReadStdout("ready\n"));
}

void ExpectAllGoneAtStopped(Rig* rig, const std::vector<pid_t>& pids, size_t count) {
  ASSERT_EQ(pids.size(), count);
  rig->Stop(1);
  std::optional<Packet> packet = rig->Next();
  ASSERT_TRUE(packet);
  ASSERT_EQ(packet->type, Type::kStopped);
  EXPECT_EQ(packet->As<wire::Stopped>().unkillable, 0U);
  for (const pid_t pid : pids) EXPECT_FALSE(IsAlive(pid)) << pid;
}

TEST(Sweep, TakesTheProgramAndItsGroup) {
  Rig rig;
  const auto pids = StartAndList(&rig, "sleep 60 & echo $!; sleep 60 & echo $!; echo $$; echo ready; wait");
  ExpectAllGoneAtStopped(&rig, pids, 3);
}

TEST(Sweep, TakesHelpersThatLeftTheSession) {
  Rig rig;
  const auto pids = StartAndList(
      &rig, "setsid sh -c 'echo $$; setsid sh -c \"echo \\$\\$; echo ready; exec sleep 60\" & wait' & wait");
  ExpectAllGoneAtStopped(&rig, pids, 2);
}

TEST(Sweep, TakesDaemonsThatForkedTwice) {
  Rig rig;
  const auto pids =
      StartAndList(&rig, "(setsid sh -c '(sh -c \"echo \\$\\$; echo ready; exec sleep 60\" &)' &); sleep 60");
  ExpectAllGoneAtStopped(&rig, pids, 1);
}

TEST(Sweep, TakesHelpersThatIgnoreEverySignalTheyCan) {
  Rig rig;
  const auto pids = StartAndList(&rig,
                                 "trap '' TERM INT HUP QUIT; setsid sh -c 'trap \"\" TERM HUP; echo $$; echo "
                                 "ready; sleep 60 & wait' & wait");
  ExpectAllGoneAtStopped(&rig, pids, 1);
}

TEST(Sweep, TakesProcessesThatAreStopped) {
  Rig rig;
  const auto pids = StartAndList(&rig, "setsid sleep 60 & echo $!; kill -STOP $!; echo ready; wait");
  ExpectAllGoneAtStopped(&rig, pids, 1);
}

TEST(Sweep, TakesAProgramThatKeepsForking) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "f() { while :; do setsid sleep 5 & done; }; f & f & wait");
  rig.ExpectExecuted(1);
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
  std::ifstream children("/proc/" + std::to_string(rig.supervisor()) + "/task/" +
                         std::to_string(rig.supervisor()) + "/children");
  std::string left;
  children >> left;
  EXPECT_EQ(left, "");
}

TEST(Sweep, TakesWhatAProgramThatHasEndedLeftBehind) {
  Rig rig;
  const auto pids = StartAndList(&rig, "setsid sleep 60 & echo $!; echo ready; exit 3");
  EXPECT_EQ(WEXITSTATUS(rig.Expect<wire::Exited>(Type::kExited).wait_status), 3);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_TRUE(IsAlive(pids[0])) << "a program's end alone sweeps nothing";
  ExpectAllGoneAtStopped(&rig, pids, 1);
}

TEST(Sweep, ComesBeforeTheEndOfTheTask) {
  Rig rig;
  const auto pids = StartAndList(&rig, "setsid sleep 60 & echo $!; echo ready; exit 3");
  rig.Expect<wire::Exited>(Type::kExited);
  rig.Finish();
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 3);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_FALSE(IsAlive(pids[0]));
}

TEST(Sweep, IsDoneAtOnceWhenNothingWasStarted) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Stop(3);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).generation, 3U);
}

TEST(Sweep, IsAnsweredAgainWhenAskedAgain) {
  Rig rig;
  StartAndList(&rig, "echo ready; sleep 60");
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).generation, 1U);
}

TEST(Sweep, DoesNotReportADeathThatWasOrdered) {
  Rig rig;
  StartAndList(&rig, "echo ready; sleep 60");
  rig.Stop(1);
  EXPECT_EQ(rig.Next()->type, Type::kStopped);
}

TEST(Sweep, CountsWhatSigkillDoesNotRemove) {
  Rig rig;
  rig.Launch();
  rig.Welcome(0, 30'000, kUnkillableMs);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  // A traced process stays a zombie that its parent cannot see until the tracer has taken it.
  ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  rig.Stop(1);
  const auto stopped = rig.Expect<wire::Stopped>(Type::kStopped);
  EXPECT_EQ(stopped.unkillable, 1U);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  // Once it has gone after all, the member can run again.
  EXPECT_TRUE(Until([&] {
    rig.Stop(1);
    return rig.Expect<wire::Stopped>(Type::kStopped).unkillable == 0;
  }));
}

// Two processes that SIGKILL has ended and that go one after the other, together later than one may stand still.
TEST(Sweep, WaitsForProcessesAsLongAsTheyGo) {
  constexpr std::chrono::milliseconds kUnkillable(4'000);
  Rig rig;
  rig.settings.exiting_ms = 60'000;
  rig.Launch();
  rig.Welcome(0, 30'000, static_cast<uint32_t>(kUnkillable.count()));
  rig.Start(1, "sleep 60 & echo $!; sleep 60 & echo $!; echo ready; wait");
  rig.ExpectExecuted(1);
  const std::vector<pid_t> pids = Pids(rig.ReadStdout("ready\n"));
  ASSERT_EQ(pids.size(), 2U);
  for (const pid_t pid : pids) ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT), 0);
  const auto let_go = [](pid_t pid) {
    EXPECT_EQ(waitpid(pid, nullptr, __WALL), pid);  // it stops at its end
    EXPECT_EQ(ptrace(PTRACE_CONT, pid, nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(pid, nullptr, __WALL), pid);
  };
  rig.Stop(1);
  EXPECT_FALSE(rig.Next(kUnkillable * 6 / 10));
  let_go(pids[0]);
  EXPECT_FALSE(rig.Next(kUnkillable * 6 / 10));
  let_go(pids[1]);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
}

TEST(Sweep, SaysThatWhatIsLeftOnlyExitsAndAgainWhenAskedAgain) {
  Rig rig;
  rig.settings.exiting_ms = 100;
  const auto pids = StartAndList(&rig, "sleep 60 & echo $!; echo ready; wait");
  ASSERT_EQ(pids.size(), 1U);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, pids[0], nullptr, PTRACE_O_TRACEEXIT), 0);
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Exiting>(Type::kExiting).generation, 1U);
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Exiting>(Type::kExiting).generation, 1U);
  EXPECT_EQ(waitpid(pids[0], nullptr, __WALL), pids[0]);  // it stops at its end
  EXPECT_EQ(ptrace(PTRACE_CONT, pids[0], nullptr, nullptr), 0);
  EXPECT_EQ(waitpid(pids[0], nullptr, __WALL), pids[0]);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).generation, 1U);
}

// A helper in a session of its own, whose parent has not gone yet: it is nobody's orphan.
TEST(Sweep, TakesWhatIsBelowAProcessThatTheKernelDoesNotLetGo) {
  Rig rig;
  rig.settings.exiting_ms = 60'000;  // the next it says is that all have gone
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "setsid sh -c 'sleep 60 & echo $!; echo $$; echo ready; wait' & wait");
  const pid_t program = rig.ExpectExecuted(1);
  const std::vector<pid_t> pids = Pids(rig.ReadStdout("ready\n"));
  ASSERT_EQ(pids.size(), 2U);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, program, nullptr, PTRACE_O_TRACEEXIT), 0);
  rig.Stop(1);
  for (const pid_t pid : pids) EXPECT_TRUE(Until([pid] { return !IsAlive(pid); })) << pid;
  EXPECT_EQ(waitpid(program, nullptr, __WALL), program);  // it stops at its end
  EXPECT_EQ(ptrace(PTRACE_CONT, program, nullptr, nullptr), 0);
  EXPECT_EQ(waitpid(program, nullptr, __WALL), program);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
}

TEST(Sweep, AtTheEndDoesNotWaitForEverForWhatCannotBeKilled) {
  Rig rig;
  rig.Launch();
  rig.Welcome(0, 30'000, kUnkillableMs);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  ASSERT_EQ(ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
  rig.Finish(FinishAs::kCode, 7);
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 7);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

constexpr uint32_t kLong = 60'000;

TEST(LastWords, AreWaitedForUntilAllHaveGoneAndTheEndIsNoNews) {
  Rig rig;
  // Until a child executes another program it is a copy of its shell, whose trap would take the signal.
  const auto pids = StartAndList(&rig,
                                 "trap 'sleep 0.2; echo words; exit 0' USR1; sleep 60 & echo $!; "
                                 "until grep -q sleep /proc/$!/comm; do :; done; echo ready; "
                                 "while :; do sleep 0.01; done");
  rig.Stop(1, kLong, SIGUSR1);
  EXPECT_EQ(rig.ReadStdout("\n"), "words\n");
  const auto stopped = rig.Expect<wire::Stopped>(Type::kStopped);
  EXPECT_EQ(stopped.unkillable, 0U);
  EXPECT_GE(stopped.last_words_ms, 200U);
  EXPECT_LT(stopped.last_words_ms, kLong);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_FALSE(IsAlive(pids[0])) << "the group gets the signal too";
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().wait_status, SIGKILL) << "no success";
}

TEST(LastWords, AreWaitedForFromHelpersThatLeftTheSession) {
  Rig rig;
  const auto pids =
      StartAndList(&rig, "setsid sleep 0.5 & echo $!; echo ready; while :; do sleep 0.01; done");
  rig.Stop(1, kLong);
  EXPECT_LT(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, kLong);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_FALSE(IsAlive(pids[0]));
}

TEST(LastWords, EndWithSigkillWhenTheTimeIsOver) {
  Rig rig;
  const auto pids = StartAndList(&rig, "trap '' TERM; echo $$; echo ready; while :; do sleep 0.01; done");
  rig.Stop(1, 300);
  rig.Stop(1, kLong);  // no more time
  EXPECT_GE(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, 300U);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_FALSE(IsAlive(pids[0]));
}

TEST(LastWords, MayBeginBeforeTheSignal) {
  Rig rig;
  StartAndList(&rig, "trap 'echo heard; exit 1' TERM; echo ready; while :; do sleep 0.01; done");
  rig.Stop(1, kLong, SIGTERM, 300);
  EXPECT_EQ(rig.ReadStdout("\n"), "heard\n");
  const auto stopped = rig.Expect<wire::Stopped>(Type::kStopped);
  EXPECT_GE(stopped.last_words_ms, 300U);
  EXPECT_LT(stopped.last_words_ms, kLong);
}

TEST(LastWords, EndWithAStopThatGivesNone) {
  Rig rig;
  StartAndList(&rig, "trap 'echo heard' TERM; echo ready; while :; do sleep 0.01; done");
  rig.Stop(1, kLong);
  EXPECT_EQ(rig.ReadStdout("\n"), "heard\n");
  rig.Stop(1);
  EXPECT_LT(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, kLong);
}

TEST(LastWords, AreNoExit) {
  Rig rig;
  rig.settings.exiting_ms = 0;
  StartAndList(&rig, "trap 'sleep 0.5; exit 1' TERM; echo ready; while :; do sleep 0.01; done");
  rig.Stop(1, kLong);
  rig.Stop(1, kLong);
  EXPECT_GE(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, 500U);
}

TEST(LastWords, EndWithTheLease) {
  Rig rig;
  rig.Launch();
  rig.Welcome(/*lease_ms=*/3'000);
  rig.Start(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done");
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
  rig.Stop(1, kLong);
  EXPECT_EQ(rig.Expect<wire::Exited>(Type::kExited).wait_status, SIGKILL) << "the fence is news";
  EXPECT_LT(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, kLong);
}

TEST(LastWords, AreNotWaitedForWhereTheProgramHasEnded) {
  Rig rig;
  const auto pids = StartAndList(&rig, "setsid sleep 60 & echo $!; echo ready; exit 3");
  rig.Expect<wire::Exited>(Type::kExited);
  rig.Stop(1, kLong);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, 0U);
  ASSERT_EQ(pids.size(), 1U);
  EXPECT_FALSE(IsAlive(pids[0]));
}

TEST(LastWords, AreNotWaitedForOnceSlurmEndsTheTask) {
  Rig rig;
  StartAndList(&rig, "trap 'echo heard' TERM; echo ready; while :; do sleep 0.01; done");
  kill(rig.supervisor(), SIGTERM);
  rig.Expect<wire::Signalled>(Type::kSignalled);
  EXPECT_EQ(rig.ReadStdout("\n"), "heard\n");
  rig.Stop(1, kLong);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).last_words_ms, 0U);
}

}  // namespace
}  // namespace muster::supervisor
