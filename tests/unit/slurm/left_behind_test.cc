#include "daemon/slurm/left_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "base/clock.h"
#include "tests/unit/slurm/orphan.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kBefore = 100;  // ticks
constexpr char kStep[] = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_1\n";

// A step with the supervisors 20 and 21 below its slurmstepd; 20 has been killed.
class LeftBehindTest : public testing::Test {
 protected:
  LeftBehindTest() {
    Add(1, 0, "/sbin/init").root = true;
    Add(10, 1, "slurmstepd: [12.0]").root = true;
    Add(21, 10, "slurmstepd: [12.0]").cgroups = kStep;
    supervisors_.seen_ns = BoottimeNs() + 1'000'000'000;
    supervisors_.seen_ns -= supervisors_.seen_ns % 10'000'000;
  }
  LocalProcess& Add(pid_t pid, pid_t parent, const std::string& title = "python3") {
    LocalProcess& process = all_[pid];
    process.parent = parent;
    process.title = title;
    process.began_ticks = kBefore;
    return process;
  }
  LeftBehind Find() {
    return FindLeftBehind(supervisors_, all_, [this](pid_t pid) { return variable_.contains(pid); });
  }

  DeadSupervisors supervisors_{
      .job_id = 12, .step = "0", .variable = "", .dead = {20}, .alive = {21}, .known = {}};
  LocalProcesses all_;
  std::set<pid_t> variable_;  // those that have it
};

TEST_F(LeftBehindTest, IsWhatHasTheVariableAndAllBelowIt) {
  Add(30, 10);
  Add(31, 30);  // it has cleared its environment
  Add(32, 1);   // its parent has ended
  Add(40, 1);
  variable_ = {30, 32};
  EXPECT_THAT(Find().processes, ElementsAre(30, 31, 32));
  EXPECT_EQ(Find().uncertain, 0U);
}

TEST_F(LeftBehindTest, IsWhatIsInTheStepsCgroupThoughItHasOverwrittenItsEnvironment) {
  Add(30, 10).cgroups = kStep;
  Add(31, 1).cgroups = "9:freezer:/slurm/uid_1000/job_12/step_0\n";
  Add(32, 1).cgroups = "0::/system.slice/slurmstepd.scope/job_12/step_1/user/task_1\n";
  Add(33, 1).cgroups = "0::/system.slice/slurmstepd.scope/job_112/step_0/user/task_1\n";
  Add(34, 1).cgroups = "0::/job_12/step_0\n";
  EXPECT_THAT(Find().processes, ElementsAre(30, 31));
}

TEST_F(LeftBehindTest, IsNotATaskEpilogNorSlurmsOwnNorASupervisorWithItsProgram) {
  LocalProcess& epilog = Add(30, 10, "/bin/sh");
  epilog.cgroups = kStep;
  epilog.began_ticks = UINT64_MAX;
  all_[10].cgroups = kStep;
  Add(22, 10, "slurmstepd: [12.0]").cgroups = kStep;  // a supervisor that has not said hello yet
  Add(41, 21).cgroups = kStep;
  Add(42, 41).cgroups = kStep;
  Add(43, 22).cgroups = kStep;
  variable_ = {41, 42, 43};
  EXPECT_THAT(Find().processes, IsEmpty());
  EXPECT_EQ(Find().uncertain, 0U);
}

TEST_F(LeftBehindTest, IsWhatWasLeftBeforeThoughItsVariablesHaveGoneWithItsMemory) {
  Add(30, 1);
  Add(31, 1).began_ticks = kBefore + 1;  // a later process of that number
  supervisors_.known = {{30, kBefore}, {31, kBefore}};
  EXPECT_THAT(Find().processes, ElementsAre(30));
}

// They may be a living supervisor's: they are asked about again.
TEST_F(LeftBehindTest, IsNotCertainOfAProcessWhoseParentIsNotListed) {
  Add(30, 29);
  variable_ = {30};
  EXPECT_THAT(Find().processes, IsEmpty());
  EXPECT_EQ(Find().uncertain, 1U);
}

TEST_F(LeftBehindTest, IsNotCertainWhileTheSupervisorIsStillDying) {
  Add(20, 10, "slurmstepd: [12.0]").cgroups = kStep;
  EXPECT_EQ(Find().uncertain, 1U);
  Add(30, 20).cgroups = kStep;
  EXPECT_THAT(Find().processes, IsEmpty());
  EXPECT_EQ(Find().uncertain, 2U);
  Add(20, 1, "bash").began_ticks = UINT64_MAX;  // another process has its number by now
  all_[30].parent = 10;
  EXPECT_THAT(Find().processes, ElementsAre(30));
  EXPECT_EQ(Find().uncertain, 0U);
}

TEST(KillLeftBehindTest, KillsWhatHasTheVariable) {
  const std::string variable = "MUSTER_TOKEN=of LeftBehindTest";
  const Orphan first(variable);
  const Orphan second(variable);
  const Orphan longer(variable + "s");
  const DeadSupervisors supervisors{.job_id = UINT32_MAX,
                                    .step = "0",
                                    .variable = variable,
                                    .dead = {},
                                    .alive = {},
                                    .seen_ns = BoottimeNs(),
                                    .known = {}};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const StillThere there = KillLeftBehind(supervisors);
  EXPECT_EQ(there.exiting.count, 2);
  EXPECT_EQ(there.exiting.threads, 2U);
  EXPECT_GT(there.exiting.pages, 0U);
  EXPECT_THAT(there.known, UnorderedElementsAre(Key(first.pid()), Key(second.pid())));
  while (KillLeftBehind(supervisors).exiting.count != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(first.Alive());
  EXPECT_FALSE(second.Alive());
  EXPECT_TRUE(longer.Alive());
}

TEST(LocalProcesses, OneThatRunsDoesMoreThanExitUntilItIsDead) {
  EXPECT_FALSE(OnlyExits(::getpid()));
  const Orphan orphan("A=1");
  LocalProcess process = ListLocalProcesses().at(orphan.pid());
  EXPECT_FALSE(OnlyExits(orphan.pid()));
  ++process.began_ticks;
  EXPECT_FALSE(KillLocalProcess(orphan.pid(), process)) << "another process has the number";
  --process.began_ticks;
  EXPECT_TRUE(KillLocalProcess(orphan.pid(), process));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(OnlyExits(child));
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(OnlyExits(child)) << "it cannot be read";
}

}  // namespace
}  // namespace muster
