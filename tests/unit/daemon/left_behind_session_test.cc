// A supervisor that is killed leaves processes of its program behind: through two musterds.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <memory>
#include <string>

#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/slurm/orphan.h"

namespace muster {
namespace {

using wire::Type;

// Holds a process in the kernel when SIGKILL has ended it, as a driver does that waits for its hardware.
class HeldAtItsEnd {
 public:
  explicit HeldAtItsEnd(const Orphan& process) : pid_(process.pid()) {
    const long held = ::ptrace(PTRACE_SEIZE, pid_, nullptr, PTRACE_O_TRACEEXIT);
    EXPECT_EQ(held, 0);
  }
  ~HeldAtItsEnd() { LetGo(); }
  HeldAtItsEnd(const HeldAtItsEnd&) = delete;
  HeldAtItsEnd& operator=(const HeldAtItsEnd&) = delete;

  void LetGo() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, __WALL), pid_);
    EXPECT_EQ(::ptrace(PTRACE_CONT, pid_, nullptr, nullptr), 0);
    EXPECT_EQ(::waitpid(pid_, nullptr, __WALL), pid_);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

// Two tasks on n1 and one on n2, which goes on alone.
class LeftBehindSession : public TwoDaemons {
 protected:
  static wire::SupervisorHello Hello(uint32_t task) {
    wire::SupervisorHello hello = StepHello(14, task < 2 ? 0 : 1, 2);
    hello.task_id = task;
    hello.local_id = task < 2 ? task : 0;
    hello.task_count = 3;
    hello.local_task_count = task < 2 ? 2 : 1;
    return hello;
  }
  void SetUp() override {
    TwoDaemons::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (const uint32_t task : {0, 1, 2})
      ASSERT_TRUE(members_[task].Join(daemons_[task < 2 ? 0 : 1]->socket(), "n[1-2]", "min=1"));
    for (TestSupervisor& member : members_) {
      const auto start = member.Next(Type::kStart);
      ASSERT_TRUE(start);
      member.Executed(1);
      tokens_.push_back("MUSTER_TOKEN=" + start->environment.at("MUSTER_TOKEN"));
    }
  }
  void ExpectStop(uint32_t task) {
    ASSERT_TRUE(members_[task].Next(Type::kStop));
    members_[task].Stopped(1);
  }
  void ExpectNextGeneration(uint32_t task) {
    const auto start = members_[task].Next(Type::kStart);
    ASSERT_TRUE(start);
    EXPECT_EQ(start->As<wire::Start>().generation, 2U);
  }

  TestSupervisor members_[3] = {TestSupervisor(Hello(0)), TestSupervisor(Hello(1)), TestSupervisor(Hello(2))};
  std::vector<std::string> tokens_;  // of their programs' environments
};

TEST_F(LeftBehindSession, IsKilledBeforeTheNextGenerationStarts) {
  const Orphan grandchild(tokens_[1]);
  const Orphan of_another_gang("MUSTER_TOKEN=00112233445566778899aabbccddeeff");
  members_[1].Leave();
  ExpectStop(0);
  ExpectStop(2);
  ExpectNextGeneration(2);
  EXPECT_FALSE(grandchild.Alive());
  EXPECT_TRUE(of_another_gang.Alive());
}

constexpr std::chrono::minutes kUnkillableAfter(1);

TEST_F(LeftBehindSession, IsWaitedForAMomentWhenTheKernelHasNotDoneWithIt) {
  const Orphan grandchild(tokens_[1]);
  HeldAtItsEnd held(grandchild);
  members_[1].Leave();
  ExpectStop(0);
  ExpectStop(2);
  clock_.Move(std::chrono::seconds(1));
  EXPECT_TRUE(members_[2].Silent(200));
  held.LetGo();
  ExpectNextGeneration(2);
}

TEST_F(LeftBehindSession, IsNotWaitedForWhenItOnlyExits) {
  const Orphan grandchild(tokens_[1]);
  const HeldAtItsEnd held(grandchild);
  members_[1].Leave();
  ExpectStop(0);
  ExpectStop(2);
  // A later look finds what one before it has killed.
  for (int i = 0; i < 40 && members_[2].Silent(100); ++i) clock_.Move(std::chrono::seconds(1));
  ExpectNextGeneration(2);
  EXPECT_TRUE(grandchild.Alive());
}

TEST_F(LeftBehindSession, IsNotWaitedForWhenItIsStuckInTheKernel) {
  const Orphan grandchild(tokens_[1]);
  const HeldAtItsEnd held(grandchild);
  members_[1].Leave();
  ExpectStop(0);
  ExpectStop(2);
  clock_.Move(kUnkillableAfter);
  ExpectNextGeneration(2);
  EXPECT_TRUE(grandchild.Alive());
}

// Neither musterd nor supervisor was there to see it.
TEST_F(LeftBehindSession, IsKilledTooWhenTheSupervisorDiesWhileItsMusterdIsRestarted) {
  const Orphan grandchild(tokens_[1]);
  daemons_[0].reset();
  members_[1].Leave();
  StartDaemon(0);
  ASSERT_TRUE(members_[0].Rejoin(daemons_[0]->socket(), wire::MemberState::kRunning, 1));
  clock_.Move(kReconnect);
  ExpectStop(0);
  ExpectStop(2);
  ExpectNextGeneration(2);
  EXPECT_FALSE(grandchild.Alive());
}

}  // namespace
}  // namespace muster
