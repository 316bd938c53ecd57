// One generation after another in the same task.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using wire::FinishAs;
using wire::MemberState;
using wire::Type;

TEST(Generations, TheFirstHelloSaysThatNothingRunsYet) {
  Rig rig;
  rig.settings.identity.hello.job_id = 17;
  rig.settings.identity.options = "restarts=2";
  const auto hello = rig.Launch();
  EXPECT_EQ(hello.job_id, 17U);
  EXPECT_EQ(hello.reconnecting, 0U);
  EXPECT_EQ(hello.state, static_cast<uint32_t>(MemberState::kWaiting));
  EXPECT_EQ(hello.options_bytes, 10U);
  EXPECT_EQ(hello.supervisor_pid, static_cast<uint32_t>(rig.supervisor()));
}

TEST(Generations, TheExecIsReportedOnceTheProgramIsThere) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  const int64_t before = RealtimeNs();
  rig.Start(1, "sleep 60");
  const auto executed = rig.Expect<wire::Executed>(Type::kExecuted);
  EXPECT_EQ(executed.generation, 1U);
  EXPECT_GT(executed.realtime_ns, before);
  EXPECT_LE(executed.realtime_ns, RealtimeNs());
  EXPECT_TRUE(IsAlive(executed.pid));
}

TEST(Generations, ADeathBeforeTheExecIsADeathWithoutAnExec) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "");  // the task leaves with 127 as slurmstepd does when there is no such program
  const auto exited = rig.Expect<wire::Exited>(Type::kExited);
  EXPECT_EQ(WEXITSTATUS(exited.wait_status), 127);
}

TEST(Generations, TheEnvironmentIsSetOverwrittenAndUnset) {
  Rig rig;
  rig.in_task = [] {
    setenv("OLD", "old", 1);
    setenv("GONE", "here", 1);
    setenv("MINE", "own", 1);
  };
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "echo \"[$RANK][$OLD][${GONE-unset}][$EMPTY][$SLURM_TASK_PID = $$][$MINE][$THEIRS]\"",
            {"MINE?=given", "THEIRS?==a:1,b=2", "RANK=3", "OLD=a=b", "GONE", "EMPTY="});
  const pid_t pid = rig.ExpectExecuted(1);
  const std::string number = std::to_string(pid);
  EXPECT_EQ(rig.ReadStdout("\n"), "[3][a=b][unset][][" + number + " = " + number + "][own][=a:1,b=2]\n");
}

// What the user has set for two tasks, each in two generations.
TEST(Generations, AVariableThatTheUserHasSetOtherwiseIsNamedOnceByTheFirstTask) {
  for (const uint32_t task : {0U, 3U}) {
    Rig rig;
    rig.settings.identity.hello.task_id = task;
    rig.in_task = [] {
      setenv("MINE", "=own", 1);
      setenv("ALIKE", "same", 1);
      setenv("LONG", std::string(600, 'x').c_str(), 1);
    };
    rig.Launch();
    rig.Welcome();
    std::string said;
    for (const uint64_t generation : {1, 2}) {
      rig.Start(generation, "echo begun >&2; sleep 600",
                {"MINE?==a:1,b=2", "ALIKE?=same", "OTHER?=given", "LONG?=x", "MINE_TOO=set"});
      rig.ExpectExecuted(generation);
      said += rig.ReadStderr("begun\n");
      rig.Stop(generation);
      rig.Expect<wire::Stopped>(Type::kStopped);
    }
    EXPECT_EQ(
        said,
        (task == 0 ? "muster: MINE==own is yours, and stays; Muster's is =a:1,b=2 (muster net env)\n" : "") +
            std::string("begun\nbegun\n"));
  }
}

TEST(Generations, AnEnvironmentThatIsNotOneStartsNothing) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  wire::Start start{};
  wire::SetHeader(&start, Type::kStart);
  start.generation = 1;
  start.environment_bytes = 100;
  rig.Send(&start, sizeof(start));  // without a descriptor
  const auto exited = rig.Expect<wire::Exited>(Type::kExited);
  EXPECT_EQ(WEXITSTATUS(exited.wait_status), 125);
  EXPECT_NE(rig.ReadStderr("\n").find("environment"), std::string::npos);
}

TEST(Generations, TheNextGenerationTakesTheSameTaskAndReadsNoStdin) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "read line; echo \"first $line\"; exit 4");
  EXPECT_EQ(write(rig.to_stdin.get(), "hello\nleft\n", 11), 11);
  rig.ExpectExecuted(1);
  EXPECT_EQ(rig.ReadStdout("\n"), "first hello\n");
  const auto exited = rig.Expect<wire::Exited>(Type::kExited);
  EXPECT_EQ(WEXITSTATUS(exited.wait_status), 4);
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
  rig.Start(2, "read line || echo 'no stdin'");
  rig.ExpectExecuted(2);
  EXPECT_EQ(rig.ReadStdout("\n"), "no stdin\n");
  EXPECT_EQ(rig.Expect<wire::Exited>(Type::kExited).generation, 2U);
}

TEST(Generations, NobodyButTheProgramHoldsItsStdin) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "exec 0</dev/null; echo closed; sleep 60");
  EXPECT_EQ(rig.ReadStdout("\n"), "closed\n");
  const auto before = signal(SIGPIPE, SIG_IGN);
  EXPECT_TRUE(Until([&] { return write(rig.to_stdin.get(), "x", 1) < 0 && errno == EPIPE; }));
  signal(SIGPIPE, before);
}

TEST(Generations, TheTaskEndsAsTheProgramDid) {
  for (const char* script : {"exit 0", "exit 3", "kill -USR1 $$", "kill -KILL $$"}) {
    Rig rig;
    rig.Launch();
    rig.Welcome();
    rig.Start(1, script);
    rig.ExpectExecuted(1);
    const auto exited = rig.Expect<wire::Exited>(Type::kExited);
    rig.Finish();
    EXPECT_EQ(rig.Wait(), exited.wait_status) << script;
  }
}

TEST(Generations, TheTaskEndsAsMusterdSays) {
  {
    Rig rig;
    rig.Launch();
    rig.Welcome();
    rig.Start(1, "exit 3");
    rig.ExpectExecuted(1);
    rig.Expect<wire::Exited>(Type::kExited);
    rig.Finish(FinishAs::kZero);
    EXPECT_EQ(rig.Wait(), 0);
  }
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "sleep 60");
  rig.ExpectExecuted(1);
  rig.Finish(FinishAs::kCode, 42);
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 42);
}

TEST(Generations, AnOldGenerationIsNeitherStartedNorStopped) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(5, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(5);
  rig.Stop(4);
  rig.Start(5, "exit 1");
  rig.Start(6, "exit 1");  // generation 5 runs
  EXPECT_FALSE(rig.Next(std::chrono::milliseconds(200)));
  EXPECT_TRUE(IsAlive(pid));
}

void Refuse(Rig& rig, const std::string& text) {
  wire::Refused body{};
  body.text_bytes = static_cast<uint32_t>(text.size());
  wire::SetHeader(&body, Type::kRefused, text.size());
  const std::string packet = std::string(reinterpret_cast<const char*>(&body), sizeof(body)) + text;
  rig.Send(packet.data(), packet.size());
}

TEST(Generations, ARefusalIsShownAndEndsTheTask) {
  Rig rig;
  rig.Launch();
  Refuse(rig, "this node's musterd is too old");
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 1);
  EXPECT_EQ(rig.ReadStderr(""), "muster: this node's musterd is too old\n");
}

TEST(Generations, ARefusalIsShownThoughMusterdHearsNothingAnyMore) {
  Rig rig;
  rig.Launch();
  EXPECT_EQ(shutdown(rig.connection.get(), SHUT_RD), 0);
  rig.Welcome();
  const UniqueFd page(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(page.get(), wire::kBeatPageBytes), 0);
  EXPECT_EQ(pwrite(page.get(), &wire::kBeatPageMagic, sizeof(wire::kBeatPageMagic), 0), 8);
  EXPECT_EQ(fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  wire::BeatPageHandover handover{};
  wire::SetHeader(&handover, Type::kBeatPage);
  rig.Send(&handover, sizeof(handover), page.get());  // which it answers
  Refuse(rig, "the gang's record cannot be read");
  rig.Disconnect();
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 1);
  EXPECT_EQ(rig.ReadStderr(""), "muster: the gang's record cannot be read\n");
}

TEST(Generations, TheProgramHasItsOwnProcessGroupAndDefaultSignals) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "grep -E 'SigBlk|SigIgn' /proc/self/status; echo end; sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  EXPECT_EQ(getpgid(pid), pid);
  EXPECT_EQ(rig.ReadStdout("end\n"), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nend\n");
}

TEST(Generations, TheProgramHasNoDescriptorOfTheSupervisors) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  // What the test itself has inherited and hands on is not the supervisor's, and the loader opens and closes some of its
  // own.
  std::string others;
  EXPECT_TRUE(Until([&] {
    others.clear();
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      const int fd = std::stoi(entry.path().filename());
      if (fd > STDERR_FILENO && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0) others += " " + std::to_string(fd);
    }
    return others.empty();
  })) << others;
}

TEST(Generations, TheSupervisorsDeathIsTheProgramsDeath) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  kill(rig.supervisor(), SIGKILL);
  EXPECT_TRUE(Until([&] { return !IsAlive(pid); }));
}

TEST(Generations, SiblingsDescriptorsAreNotKeptOpen) {
  Rig rig;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);  // as slurmstepd's ends of another task's stdin
  rig.Launch();
  rig.Welcome();
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);  // the end, although the supervisor inherited a copy
  close(ends[0]);
}

TEST(Generations, RestartsLeakNoDescriptorAndNoZombie) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  const auto descriptors = [&] {
    return std::distance(
        std::filesystem::directory_iterator("/proc/" + std::to_string(rig.supervisor()) + "/fd"), {});
  };
  ptrdiff_t before = 0;
  for (uint64_t generation = 1; generation <= 50; ++generation) {
    rig.Start(generation, "setsid sleep 60 & sleep 60");
    rig.ExpectExecuted(generation);
    rig.Stop(generation);
    EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).generation, generation);
    if (generation == 1) before = descriptors();
  }
  EXPECT_EQ(descriptors(), before);
  std::ifstream children("/proc/" + std::to_string(rig.supervisor()) + "/task/" +
                         std::to_string(rig.supervisor()) + "/children");
  std::string left;
  children >> left;
  EXPECT_EQ(left, "");
}

}  // namespace
}  // namespace muster::supervisor
