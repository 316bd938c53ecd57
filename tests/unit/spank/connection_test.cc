// musterd goes, comes back, or says nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using std::chrono::milliseconds;
using wire::MemberState;
using wire::Type;

TEST(Reconnect, LeavesTheProgramAloneAndSaysWhereItIs) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(4, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(4);
  rig.Disconnect();
  const auto hello = rig.Accept();
  EXPECT_EQ(hello.reconnecting, 1U);
  EXPECT_EQ(hello.state, static_cast<uint32_t>(MemberState::kRunning));
  EXPECT_EQ(hello.generation, 4U);
  EXPECT_EQ(hello.child_pid, pid);
  EXPECT_EQ(hello.token[0], 7);
  rig.Welcome();
  EXPECT_FALSE(rig.Next(milliseconds(100)));
  EXPECT_TRUE(IsAlive(pid));
  rig.Stop(4);
  rig.Expect<wire::Stopped>(Type::kStopped);
}

TEST(Reconnect, TellsADeathOfTheMeantimeWithItsCircumstances) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "read line; echo last words >&2; exit 6");
  const pid_t pid = rig.ExpectExecuted(1);
  rig.Disconnect();
  EXPECT_EQ(write(rig.to_stdin.get(), "\n", 1), 1);
  EXPECT_TRUE(Until([&] { return !IsAlive(pid); }));
  const auto hello = rig.Accept();
  EXPECT_EQ(hello.state, static_cast<uint32_t>(MemberState::kExited));
  EXPECT_EQ(WEXITSTATUS(hello.wait_status), 6);
  rig.Welcome();
  const Packet packet = rig.ExpectPacket(Type::kExited);
  EXPECT_EQ(packet.As<wire::Exited>().wait_status, hello.wait_status);
  EXPECT_NE(packet.Tail<wire::Exited>().find("last words\n"), std::string::npos);
}

TEST(Reconnect, AfterStoppedSaysStopped) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "sleep 60");
  rig.ExpectExecuted(1);
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().state, static_cast<uint32_t>(MemberState::kStopped));
  rig.Welcome();
  rig.Start(2, "echo again; sleep 60");
  EXPECT_EQ(rig.ReadStdout("\n"), "again\n");
}

TEST(Reconnect, BeforeTheFirstWelcomeIsAFirstHelloAgain) {
  Rig rig;
  rig.Launch();
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().reconnecting, 0U);
}

TEST(Reconnect, ASigtermOfTheMeantimeIsToldAfterwards) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "trap : TERM; echo ready; while :; do sleep 0.01; done");
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
  rig.Disconnect();
  kill(rig.supervisor(), SIGTERM);
  rig.Accept();
  rig.Welcome();
  rig.Expect<wire::Signalled>(Type::kSignalled);
}

// The musterd that is back does not know what the one before was told.
TEST(Reconnect, ASignalThatWasToldOfIsToldAgain) {
  Rig rig;
  rig.settings.warn_signal = SIGUSR1;
  rig.settings.warn_seconds = 90;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "trap 'echo saves' USR1; echo ready; while :; do sleep 0.01; done");
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\n");
  kill(rig.supervisor(), SIGUSR1);
  rig.Expect<wire::Signalled>(Type::kSignalled);
  rig.Disconnect();
  rig.Accept();
  rig.Welcome();
  const auto told = rig.Expect<wire::Signalled>(Type::kSignalled);
  EXPECT_EQ(told.signal, static_cast<uint32_t>(SIGUSR1));
  EXPECT_EQ(told.warn_seconds, 90U);
}

TEST(Reconnect, WhenMusterdStaysAwayTheProgramIsKilledAndTheTaskWaitsOn) {
  Rig rig;
  rig.Launch();
  rig.Welcome(0, 200);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  rig.Close();
  rig.Disconnect();
  EXPECT_TRUE(Until([&] { return !IsAlive(pid); }));
  EXPECT_NE(rig.ReadStderr("\n").find("musterd has gone"), std::string::npos);
  EXPECT_TRUE(IsAlive(rig.supervisor()));
}

// As in a crash loop: each process of musterd would give the program as much time again.
TEST(Reconnect, AMusterdThatIsBackWithoutALeaseGivesNoTimeToRunOn) {
  Rig rig;
  rig.Launch();
  rig.Welcome(60'000, 1'000);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  const int64_t began = MonotonicMs();
  rig.Disconnect();
  rig.Accept();
  rig.Welcome(60'000, 60'000);
  EXPECT_FALSE(rig.Next(milliseconds(100)));
  rig.Disconnect();
  rig.Accept();
  rig.Welcome(60'000, 60'000);
  EXPECT_TRUE(Until([&] { return !IsAlive(pid); }));
  EXPECT_GE(MonotonicMs() - began, 1'000);
  EXPECT_NE(rig.ReadStderr("\n").find("musterd has gone"), std::string::npos);
}

// A program runs, and its musterd has gone and is back without a lease. Gives the program's pid.
pid_t RunAndReturn(Rig& rig) {
  rig.Launch();
  rig.Welcome(60'000, 500);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  rig.Disconnect();
  rig.Accept();
  rig.Welcome(60'000, 500);
  return pid;
}

TEST(Reconnect, ABeatThatALeaseStandsBehindEndsTheTimeWithoutMusterd) {
  Rig rig;
  const pid_t pid = RunAndReturn(rig);
  wire::Beat beat{};
  wire::SetHeader(&beat, Type::kBeat);
  beat.leased = 1;
  rig.Send(&beat, sizeof beat);
  EXPECT_FALSE(rig.Next(milliseconds(1'000)));
  EXPECT_TRUE(IsAlive(pid));
}

TEST(Reconnect, WhenMusterdNeverComesBackTheTaskFailsAndNamesTheUnit) {
  Rig rig;
  rig.settings.give_up_ms = 200;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "sleep 60");
  rig.ExpectExecuted(1);
  rig.Close();
  rig.Disconnect();
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 1);
  const std::string text = rig.ReadStderr("");
  EXPECT_NE(text.find("musterd.service"), std::string::npos) << text;
  EXPECT_NE(text.find("musterd.sock"), std::string::npos) << text;
}

TEST(Reconnect, FollowsAMusterdThatDoesNotAnswerItsHello) {
  Rig rig;
  rig.settings.welcome_ms = 100;
  rig.Launch();  // and no Welcome
  EXPECT_EQ(rig.Accept().reconnecting, 0U);
}

TEST(Reconnect, FollowsAPacketThatIsNotMusters) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Send("rubbish", 7);
  EXPECT_EQ(rig.Accept().reconnecting, 1U);
}

TEST(Reconnect, APacketAboveTheLimitIsRefused) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  wire::Report body{};
  const size_t tail = wire::kMaxMessage;
  wire::SetHeader(&body, Type::kReport, tail);
  std::string packet(sizeof(body) + tail, 'x');
  memcpy(packet.data(), &body, sizeof(body));
  rig.Send(packet.data(), packet.size());
  EXPECT_EQ(rig.Accept().reconnecting, 1U);
}

TEST(Reconnect, AnUnknownMessageOfANewerMusterdIsPassedOver) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  wire::Stop body{};
  wire::SetHeader(&body, static_cast<Type>(60));
  rig.Send(&body, sizeof(body));
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
}

// Else its program would be killed when musterd is there again: by musterd's clock it has been away for too long.
TEST(Reconnect, OneThatWasSuspendedMeanwhileSaysSoUntilItIsWelcome) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Stop(1);  // signals come to it from now on
  rig.Expect<wire::Stopped>(Type::kStopped);
  kill(rig.supervisor(), SIGTSTP);
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().reconnecting, static_cast<uint32_t>(wire::Known::kReconnecting));
  kill(rig.supervisor(), SIGCONT);
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().reconnecting, static_cast<uint32_t>(wire::Known::kResumed));
  rig.Welcome();
  rig.Stop(2);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Disconnect();
  EXPECT_EQ(rig.Accept().reconnecting, static_cast<uint32_t>(wire::Known::kReconnecting));
}

// Long enough for a program to be started within it on a busy machine.
constexpr uint32_t kLeaseMs = 4000;

TEST(Lease, SilenceOnAnOpenSocketKillsTheProgram) {
  Rig rig;
  rig.Launch();
  rig.Welcome(kLeaseMs);
  rig.Start(1, "setsid sleep 60 & echo $!; sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  const pid_t helper = std::stoi(rig.ReadStdout("\n"));
  const auto exited = rig.Expect<wire::Exited>(Type::kExited);  // news to musterd: it did not order this
  EXPECT_EQ(WTERMSIG(exited.wait_status), SIGKILL);
  EXPECT_TRUE(Until([&] { return !IsAlive(pid) && !IsAlive(helper); }));
  EXPECT_NE(rig.ReadStderr("\n").find("silent"), std::string::npos);
  // The member can run again.
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Start(2, "echo again; exit 0");
  EXPECT_EQ(rig.ReadStdout("again\n"), "again\n");
}

TEST(Lease, AnyMessageRenewsIt) {
  Rig rig;
  rig.Launch();
  rig.Welcome(kLeaseMs);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  for (int i = 0; i < 15; ++i) {
    EXPECT_FALSE(rig.Next(milliseconds(kLeaseMs / 10)));
    rig.Stop(0);  // of a generation long past
  }
  EXPECT_TRUE(IsAlive(pid));
}

// musterd's page of beats, as the test writes it.
class Page {
 public:
  explicit Page(int seals = F_SEAL_SHRINK) : fd(memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(fd.get(), wire::kBeatPageBytes), 0);
    EXPECT_TRUE(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    Write(0, wire::kBeatPageMagic);
  }
  void Beat() const { Write(8, static_cast<uint64_t>(MonotonicMs()) * 1'000'000); }
  void Leased() const { Write(16, 1); }
  UniqueFd fd;

 private:
  void Write(off_t at, uint64_t value) const {
    EXPECT_EQ(pwrite(fd.get(), &value, sizeof(value), at), static_cast<ssize_t>(sizeof(value)));
  }
};

void HandOver(Rig& rig, const Page& page) {
  wire::BeatPageHandover body{};
  wire::SetHeader(&body, Type::kBeatPage);
  rig.Send(&body, sizeof(body), page.fd.get());
}

TEST(Lease, BeatsOnAPageRenewItAndEndWhenTheyDo) {
  Rig rig;
  rig.Launch();
  rig.Welcome(kLeaseMs);
  const Page page;
  HandOver(rig, page);
  rig.Expect<wire::BeatPageHandover>(Type::kBeatPageRead);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  for (int i = 0; i < 15; ++i) {
    page.Beat();
    EXPECT_FALSE(rig.Next(milliseconds(kLeaseMs / 10)));
  }
  EXPECT_TRUE(IsAlive(pid));
  const auto exited = rig.Expect<wire::Exited>(Type::kExited);
  EXPECT_EQ(WTERMSIG(exited.wait_status), SIGKILL);
  EXPECT_NE(rig.ReadStderr("\n").find("silent"), std::string::npos);
}

TEST(Lease, ThePageOfAConnectionThatHasEndedCountsNoMore) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  const Page page;
  HandOver(rig, page);
  rig.Expect<wire::BeatPageHandover>(Type::kBeatPageRead);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  rig.Disconnect();
  rig.Accept();
  rig.Welcome(300);
  EXPECT_TRUE(Until([&] {
    page.Beat();
    return !IsAlive(pid);
  }));
}

TEST(Lease, APageSaysThatALeaseStandsBehindItsBeats) {
  Rig rig;
  const pid_t pid = RunAndReturn(rig);
  const Page page;
  page.Leased();
  HandOver(rig, page);
  rig.Expect<wire::BeatPageHandover>(Type::kBeatPageRead);
  EXPECT_FALSE(rig.Next(milliseconds(1'000)));
  EXPECT_TRUE(IsAlive(pid));
  rig.Disconnect();  // now the time without musterd begins anew
  rig.Accept();
  rig.Welcome(60'000, 60'000);
  EXPECT_TRUE(Until([&] { return !IsAlive(pid); }));
}

TEST(Lease, APageThatMayShrinkUnderItsReaderIsLeftAlone) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  HandOver(rig, Page(0));
  HandOver(rig, Page(F_SEAL_GROW));
  EXPECT_FALSE(rig.Next(milliseconds(100)));
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
}

TEST(Lease, OfZeroNeverEnds) {
  Rig rig;
  rig.Launch();
  rig.Welcome(0);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  EXPECT_FALSE(rig.Next(milliseconds(500)));
  EXPECT_TRUE(IsAlive(pid));
}

TEST(Lease, StandsStillWhileTheJobIsSuspended) {
  Rig rig;
  rig.Launch();
  rig.Welcome(kLeaseMs);
  rig.Start(1, "trap : TSTP; while :; do sleep 0.05; done");
  const pid_t pid = rig.ExpectExecuted(1);
  kill(rig.supervisor(), SIGTSTP);
  EXPECT_FALSE(rig.Next(milliseconds(2 * kLeaseMs)));
  EXPECT_TRUE(IsAlive(pid));
  kill(rig.supervisor(), SIGCONT);
  EXPECT_EQ(WTERMSIG(rig.Expect<wire::Exited>(Type::kExited).wait_status), SIGKILL);  // it runs again
}

TEST(Lease, StartsAnewAfterTheSupervisorItselfWasStopped) {
  Rig rig;
  rig.Launch();
  rig.Welcome(kLeaseMs);
  rig.Start(1, "sleep 60");
  const pid_t pid = rig.ExpectExecuted(1);
  kill(rig.supervisor(), SIGSTOP);
  EXPECT_FALSE(rig.Next(milliseconds(2 * kLeaseMs)));
  kill(rig.supervisor(), SIGCONT);
  EXPECT_FALSE(rig.Next(milliseconds(kLeaseMs / 10)));
  EXPECT_TRUE(IsAlive(pid));
  EXPECT_EQ(WTERMSIG(rig.Expect<wire::Exited>(Type::kExited).wait_status), SIGKILL);
}

}  // namespace
}  // namespace muster::supervisor
