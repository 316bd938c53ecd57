// Signals that reach the supervisor.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using std::chrono::milliseconds;
using wire::Type;

constexpr char kTrapAll[] =
    "for s in HUP INT QUIT USR1 USR2 ALRM TERM CONT TSTP WINCH; do trap \"echo $s\" $s; done;"
    "echo ready; while :; do sleep 0.01; done";

// Has a member run that says which signal it gets.
void Trap(Rig& rig) {
  rig.Launch();
  rig.Welcome();
  rig.Start(1, kTrapAll);
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
}

TEST(Signals, EachReachesTheProgramOnce) {
  Rig rig;
  Trap(rig);
  std::string expected;
  const std::pair<int, const char*> all[] = {
      {SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"}, {SIGUSR1, "USR1"},   {SIGUSR2, "USR2"},
      {SIGALRM, "ALRM"}, {SIGTSTP, "TSTP"}, {SIGCONT, "CONT"}, {SIGWINCH, "WINCH"}, {SIGTERM, "TERM"}};
  for (const auto& [number, name] : all) {
    kill(rig.supervisor(), number);
    EXPECT_EQ(rig.ReadStdout("\n"), std::string(name) + "\n");
  }
  EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).signal, static_cast<uint32_t>(SIGTERM));
  EXPECT_FALSE(rig.Next(milliseconds(100)));
}

TEST(Signals, AreNotPassedOnWhenSlurmReachesEveryProcessItself) {
  Rig rig;
  rig.settings.forward_signals = false;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, kTrapAll);
  const pid_t pid = rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
  kill(rig.supervisor(), SIGUSR1);
  kill(rig.supervisor(), SIGTERM);
  EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).signal, static_cast<uint32_t>(SIGTERM));
  kill(pid, SIGHUP);
  EXPECT_EQ(rig.ReadStdout("\n"), "HUP\n");
}

TEST(Signals, ThatTheJobWantsBeforeItsEndAreToldOf) {
  Rig rig;
  rig.settings.warn_signal = SIGUSR1;
  rig.settings.warn_seconds = 90;
  Trap(rig);
  kill(rig.supervisor(), SIGUSR2);
  EXPECT_EQ(rig.ReadStdout("\n"), "USR2\n");
  kill(rig.supervisor(), SIGUSR1);
  EXPECT_EQ(rig.ReadStdout("\n"), "USR1\n");
  auto told = rig.Expect<wire::Signalled>(Type::kSignalled);
  EXPECT_EQ(told.signal, static_cast<uint32_t>(SIGUSR1));
  EXPECT_EQ(told.warn_seconds, 90U);
  kill(rig.supervisor(), SIGTERM);
  told = rig.Expect<wire::Signalled>(Type::kSignalled);
  EXPECT_EQ(told.signal, static_cast<uint32_t>(SIGTERM));
  EXPECT_EQ(told.warn_seconds, 0U);
}

TEST(Signals, SigtermMayBeTheWarning) {
  Rig rig;
  rig.settings.warn_signal = SIGTERM;
  rig.settings.warn_seconds = 60;
  Trap(rig);
  kill(rig.supervisor(), SIGTERM);
  EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).warn_seconds, 60U);
}

// The first one may be a warning or a preemption's, and the next one a cancel.
TEST(Signals, EachSigtermIsToldOf) {
  Rig rig;
  rig.settings.warn_signal = SIGTERM;
  rig.settings.warn_seconds = 60;
  Trap(rig);
  for (int count = 0; count < 2; ++count) {
    kill(rig.supervisor(), SIGTERM);
    EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).signal, static_cast<uint32_t>(SIGTERM));
    EXPECT_EQ(rig.ReadStdout("\n"), "TERM\n");
  }
}

TEST(Signals, FromTheProgramToItsParentAreNotSentBack) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1,
            "trap 'echo back' USR1; kill -USR1 $PPID; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.01; done; "
            "echo end");
  rig.ExpectExecuted(1);
  EXPECT_EQ(rig.ReadStdout("end\n"), "end\n");
}

TEST(Signals, ThatComeBetweenTwoGenerationsAreForTheNext) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "exit 1");
  rig.ExpectExecuted(1);
  rig.Expect<wire::Exited>(Type::kExited);
  kill(rig.supervisor(), SIGURG);  // harmless to a program without a handler
  kill(rig.supervisor(), SIGUSR1);
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Start(2, "sleep 60");
  rig.ExpectExecuted(2);
  EXPECT_EQ(WTERMSIG(rig.Expect<wire::Exited>(Type::kExited).wait_status), SIGUSR1);
}

// SIGTERM comes to a program that does `at_term` then.
void TermWhenItIsReady(Rig& rig, const std::string& at_term) {
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "trap '" + at_term + "' TERM; echo ready; while :; do sleep 0.01; done");
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
  kill(rig.supervisor(), SIGTERM);
}

TEST(Signals, AfterSigtermTheProgramMaySaveAndNothingIsStartedAnyMore) {
  Rig rig;
  rig.settings.leave_ms = 600'000;
  TermWhenItIsReady(rig, "echo saved; exit 9");
  EXPECT_EQ(rig.ReadStdout("\n"), "saved\n");
  rig.Expect<wire::Signalled>(Type::kSignalled);
  EXPECT_EQ(WEXITSTATUS(rig.Expect<wire::Exited>(Type::kExited).wait_status), 9);
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Start(2, "echo never");
  rig.Finish(wire::FinishAs::kOwnStatus);
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 9);
  EXPECT_EQ(rig.ReadStdout(""), "");
}

TEST(Signals, AfterSigtermTheSupervisorLeavesAlsoWithoutMusterdsWord) {
  Rig rig;
  rig.settings.leave_ms = 200;
  TermWhenItIsReady(rig, "exit 9");
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 9);
}

TEST(Signals, AfterAWarningBySigtermTheSupervisorWaitsForMusterdsWord) {
  Rig rig;
  rig.settings.leave_ms = 50;
  rig.settings.warn_signal = SIGTERM;
  rig.settings.warn_seconds = 60;
  TermWhenItIsReady(rig, "exit 9");
  rig.Expect<wire::Signalled>(Type::kSignalled);
  rig.Expect<wire::Exited>(Type::kExited);
  EXPECT_FALSE(rig.Next(milliseconds(400))) << "others still save";
  rig.Finish(wire::FinishAs::kZero);
  EXPECT_EQ(rig.Wait(), 0);
}

TEST(Signals, AWarningBySigtermEndsNoTaskThatRunsNothing) {
  Rig rig;
  rig.settings.warn_signal = SIGTERM;
  rig.settings.warn_seconds = 60;
  rig.Launch();
  rig.Welcome();
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  kill(rig.supervisor(), SIGTERM);
  EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).warn_seconds, 60U);
  rig.Finish(wire::FinishAs::kZero);
  EXPECT_EQ(rig.Wait(), 0);
}

TEST(Signals, AfterSigtermMusterdHasTheLastWord) {
  Rig rig;
  TermWhenItIsReady(rig, "exit 9");
  rig.Expect<wire::Signalled>(Type::kSignalled);
  rig.Expect<wire::Exited>(Type::kExited);
  rig.Finish(wire::FinishAs::kZero);
  EXPECT_EQ(rig.Wait(), 0);
}

TEST(Signals, SigtermEndsATaskThatRunsNothing) {
  {
    Rig rig;
    rig.Launch();
    rig.Welcome();
    rig.Stop(1);
    rig.Expect<wire::Stopped>(Type::kStopped);
    kill(rig.supervisor(), SIGTERM);
    EXPECT_EQ(rig.Expect<wire::Signalled>(Type::kSignalled).signal, static_cast<uint32_t>(SIGTERM));
    EXPECT_EQ(WTERMSIG(rig.Wait()), SIGTERM);
  }
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "exit 3");
  rig.ExpectExecuted(1);
  rig.Expect<wire::Exited>(Type::kExited);
  kill(rig.supervisor(), SIGTERM);
  EXPECT_EQ(WTERMSIG(rig.Wait()), SIGTERM);
}

TEST(Signals, DoNotEndTheSupervisor) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Stop(1);  // the answer says that it is there
  rig.Expect<wire::Stopped>(Type::kStopped);
  constexpr int kLastCommon = 31;  // the C library keeps 32 and 33 to itself
  for (int number = 1; number <= kLastCommon; ++number) {
    if (number != SIGKILL && number != SIGSTOP && number != SIGTERM) kill(rig.supervisor(), number);
  }
  kill(rig.supervisor(), SIGRTMIN + 2);
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
}

}  // namespace
}  // namespace muster::supervisor
