// Warm starts with a real Python: an environment of its own that has muster-warm.pth and a few packages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/spank/warm_rig.h"

namespace muster::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
constexpr char kProgram[] = R"(
import os, sys, slow
print(os.environ["MUSTER_GENERATION"], slow.value, os.environ["SLURM_TASK_PID"] == str(os.getpid()), flush=True)
sys.stdin.read()
import time; time.sleep(600)
)";

TEST_F(Warm, TheNextProgramsAreTheStandbysAndHaveImportedItAll) {
  Launch();
  pid_t program = StartCold(1, kProgram, {"MUSTER_GENERATION=1", "MUSTER_TOKEN=a"});
  EXPECT_EQ(rig.ReadStdout("True\n"), "slow is imported\n1 7 True\n");
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    GetsOn(generation);
    Expect(WarmState::kReady, generation);
    const pid_t standby = Standby(program);
    Stop(generation);
    const std::string next = std::to_string(generation + 1);
    Start(generation + 1, {"MUSTER_GENERATION=" + next, "MUSTER_TOKEN=b"});
    Expect(WarmState::kWarm, generation + 1);
    program = rig.ExpectExecuted(generation + 1);
    EXPECT_EQ(program, standby);
    EXPECT_EQ(rig.ReadStdout("True\n"), "slow is imported\n" + next + " 7 True\n");
  }
}

TEST_F(Warm, WhatOneGenerationsEnvironmentSetsAnotherOnesUnsets) {
  rig.in_task = [] {
    setenv("USERS", "own", 1);
    setenv("OLD", "old", 1);
  };
  Launch();
  StartCold(1, R"(
import os, slow, time
print([os.environ.get(key) for key in ("A", "OLD", "USERS", "MINE", "GONE")], os.getpgid(0) == os.getpid(), flush=True)
time.sleep(600)
)",
            {"A=1", "OLD=new", "USERS?=muster", "MINE?=x", "GONE=y"});
  EXPECT_THAT(rig.ReadStdout("True\n"), HasSubstr("['1', 'new', 'own', 'x', 'y'] True"));
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"A=2", "USERS?=muster", "MINE?=z", "GONE"});
  Expect(WarmState::kWarm, 2);
  rig.ExpectExecuted(2);
  EXPECT_THAT(rig.ReadStdout("True\n"), HasSubstr("['2', 'old', 'own', 'z', None] True"));
}

TEST_F(Warm, AVariableThatAnImportHadReadMakesTheStartCold) {
  environment.Package("reads", "import os\nrank = os.environ.get('RANK')\n");
  Launch();
  StartCold(1, "import reads, time; print(reads.rank, flush=True); time.sleep(600)", {"RANK=3"});
  EXPECT_EQ(rig.ReadStdout("\n"), "3\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"RANK=4"});
  EXPECT_THAT(Expect(WarmState::kCold, 2), HasSubstr("RANK has changed, which an import had read"));
  EXPECT_EQ(rig.ReadStdout("\n"), "4\n");
}

// As tqdm and HF's packages do: they want those with a prefix of their own.
TEST_F(Warm, AnImportThatLooksThroughAllVariablesDoesNotMeanThoseThatDifferAtEveryStart) {
  environment.Package("sweeps", R"(
import os
mine = {key: value for key, value in os.environ.items() if key.startswith("SWEEPS_")}
copies = [dict(os.environ), os.environ.copy(), list(os.environ.values())]
)");
  Launch();
  const auto told = [](int generation, const std::string& more) {
    const std::string number = std::to_string(generation);
    return std::vector<std::string>{"MUSTER_GENERATION=" + number, "MASTER_PORT=2000" + number,
                                    "MUSTER_TOKEN=" + number, more};
  };
  StartCold(1, "import sweeps, time; print(sweeps.mine, flush=True); time.sleep(600)", told(1, "SWEEPS_A=1"));
  EXPECT_EQ(rig.ReadStdout("\n"), "{'SWEEPS_A': '1'}\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, told(2, "SWEEPS_A=1"));
  EXPECT_EQ(Expect(WarmState::kWarm, 2), "");
  rig.ExpectExecuted(2);
  EXPECT_EQ(rig.ReadStdout("\n"), "{'SWEEPS_A': '1'}\n");
  GetsOn(2);
  Expect(WarmState::kReady, 2);
  Stop(2);
  Start(3, told(3, "SWEEPS_A=2"));
  EXPECT_THAT(Expect(WarmState::kCold, 3), HasSubstr("SWEEPS_A has changed, which an import had read"));
  EXPECT_EQ(rig.ReadStdout("\n"), "{'SWEEPS_A': '2'}\n");
}

TEST_F(Warm, AVariableThatDiffersAtEveryStartAndIsReadByNameMakesTheStartCold) {
  environment.Package("reads", "import os\nport = [os.environ.get('MASTER_PORT'), list(os.environ)][0]\n");
  Launch();
  StartCold(1, "import reads, time; print(reads.port, flush=True); time.sleep(600)", {"MASTER_PORT=1"});
  EXPECT_EQ(rig.ReadStdout("\n"), "1\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"MASTER_PORT=2"});
  EXPECT_THAT(Expect(WarmState::kCold, 2), HasSubstr("MASTER_PORT has changed, which an import had read"));
  EXPECT_EQ(rig.ReadStdout("\n"), "2\n");
}

TEST_F(Warm, AVariableThatIsReadAtLoadMakesTheStartCold) {
  Launch();
  StartCold(1, "import slow, time; print('runs', flush=True); time.sleep(600)", {"OMP_NUM_THREADS=3"});
  rig.ReadStdout("runs\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"OMP_NUM_THREADS=4"});
  EXPECT_THAT(Expect(WarmState::kCold, 2), HasSubstr("OMP_NUM_THREADS has changed"));
}

TEST_F(Warm, WhatTheProgramSetsBeforeAnImportIsSetForItAgain) {
  environment.Package("reads", "import os\nvalue = os.environ.get('SETTING')\n");
  Launch();
  StartCold(1, R"(
import os
print(os.environ.get("SETTING"), flush=True)
os.environ["SETTING"] = "mine"
import reads, time
print("and", reads.value, flush=True)
time.sleep(600)
)");
  EXPECT_EQ(rig.ReadStdout("and mine\n"), "None\nand mine\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2);
  Expect(WarmState::kWarm, 2);
  EXPECT_EQ(rig.ReadStdout("and mine\n"), "None\nand mine\n");
}

TEST_F(Warm, WhereMemoryIsShortForImportsThereIsNoStandby) {
  environment.Package("big", "data = b'x' * (64 << 20)\nimport small\n");
  environment.Package("small", "");
  environment.Package("late", "");
  environment.Append("muster_warm.py", "\n_free_memory = lambda: 200 << 20\n");
  Launch();
  StartCold(
      1, "import big\ndata = b'x' * (256 << 20)\nimport late, time\nprint(True, flush=True)\ntime.sleep(600)",
      {"LOCAL_WORLD_SIZE=2"});
  rig.ReadStdout("True\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"LOCAL_WORLD_SIZE=3"});
  Expect(WarmState::kWarm, 2);
  rig.ExpectExecuted(2);
  rig.ReadStdout("True\n");
  GetsOn(2);
  const std::string why = Expect(WarmState::kUnfit, 2);
  EXPECT_THAT(why, MatchesRegex("200 MiB of memory are free, and standbys want 25[6-9] MiB here: "
                                "a program's imports take 6[45] MiB"));
  Stop(2);
  StartCold(3, "print(True)");
}

TEST_F(Warm, ADeadStandbyIsNoFaultAndTheNextStartIsCold) {
  Launch();
  const pid_t program = StartCold(1, "import slow, time; print('runs', flush=True); time.sleep(600)");
  rig.ReadStdout("runs\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  kill(Standby(program), SIGKILL);
  EXPECT_THAT(Expect(WarmState::kUnfit, 1), HasSubstr("its standby was killed by signal 9"));
  EXPECT_TRUE(IsAlive(program));
  Stop(1);
  Start(2);
  EXPECT_THAT(Expect(WarmState::kCold, 2), HasSubstr("its standby was killed by signal 9"));
}

TEST_F(Warm, AScriptThatBecomesPythonIsNoProgramForIt) {
  static const char* const kExecuted[] = {"sh", "-c", "exec python3 program.py", nullptr};
  rig.settings.arguments = kExecuted;
  Launch();
  rig.Start(1, "exec " + environment.Program("import slow, time; time.sleep(600)"));
  rig.ExpectExecuted(1);
  EXPECT_THAT(Expect(WarmState::kUnfit, 1), HasSubstr("Python is not what Slurm executes"));
}

class WarmRun : public Warm {
 protected:
  // As Slurm executes it: muster-run with the program, behind `before`.
  void StartRun(const std::string& text, std::vector<std::string> before = {}) {
    const std::string words = environment.Program(text);
    program_file_ =
        words.substr(environment.Python().size() + 1, words.rfind(' ') - environment.Python().size() - 1);
    slurm_ = std::move(before);
    for (const char* word : {"muster-run", "--nnodes=2", program_file_.c_str(), "argument"})
      slurm_.emplace_back(word);
    for (const std::string& word : slurm_) arguments_.push_back(word.c_str());
    arguments_.push_back(nullptr);
    rig.settings.arguments = arguments_.data();
    Launch();
    program_ = "PROGRAM=" MUSTER_RUN " --nnodes=2 " + program_file_ + " argument";
    Start(1, {"MUSTER_GANG=7.0", "LOCAL_WORLD_SIZE=2", "PYTHON_EXEC=" + python_});
    rig.ExpectExecuted(1);
  }
  std::string python_ = environment.Python();
  std::string program_file_;
  std::vector<std::string> slurm_;
  std::vector<const char*> arguments_;
};

TEST_F(WarmRun, ItsProgramIsStartedWarmAsThatOfPythonItself) {
  StartRun(R"(
import os, sys, slow
print(sys.argv[1:], sys.orig_argv[1:2], os.environ["OMP_NUM_THREADS"], os.environ.get("MUSTER_WARM"), sys.prefix, flush=True)
import time; time.sleep(600)
)");
  const std::string said =
      "slow is imported\n['argument'] ['-u'] 1 None " + environment.directory().string() + "\n";
  EXPECT_EQ(rig.ReadStdout(environment.directory().string() + "\n"), said);
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2, {"MUSTER_GANG=7.0", "LOCAL_WORLD_SIZE=2", "PYTHON_EXEC=" + python_});
  Expect(WarmState::kWarm, 2);
  rig.ExpectExecuted(2);
  EXPECT_EQ(rig.ReadStdout(environment.directory().string() + "\n"), said);
}

TEST_F(WarmRun, AScriptInPythonsPlaceIsNoProgramForIt) {
  python_ = environment.directory() / "wrapper";
  std::ofstream(python_) << "#!/bin/sh\nexec " << environment.Python() << " \"$@\"\n";
  std::filesystem::permissions(python_, std::filesystem::perms::owner_all);
  StartRun("import slow, time; time.sleep(600)");
  EXPECT_THAT(Expect(WarmState::kUnfit, 1), HasSubstr("Python is not what Slurm executes"));
}

TEST_F(WarmRun, AScriptThatBecomesMusterRunIsNoProgramForIt) {
  StartRun("import slow, time; time.sleep(600)", {"bash", "run.sh"});
  EXPECT_THAT(Expect(WarmState::kUnfit, 1), HasSubstr("Python is not what Slurm executes"));
}

TEST_F(Warm, ASweepSparesTheStandbyAndNothingElse) {
  Launch();
  const pid_t program = StartCold(1, R"(
import slow, subprocess, sys, time
child = subprocess.Popen(["setsid", "sleep", "600"])
print("child", child.pid, "end", flush=True)
time.sleep(600)
)");
  const std::string said = rig.ReadStdout("end");
  const pid_t child = std::stoi(said.substr(said.find("child ") + 6));
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  const pid_t standby = Standby(program);
  Stop(1);
  EXPECT_FALSE(IsAlive(program));
  EXPECT_FALSE(IsAlive(child));
  EXPECT_TRUE(IsAlive(standby));
}

TEST_F(Warm, TheStandbyEndsWithTheGangAndWithTheSupervisor) {
  Launch();
  const pid_t program = StartCold(1, "import slow, time; print('runs', flush=True); time.sleep(600)");
  rig.ReadStdout("runs\n");
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  const pid_t standby = Standby(program);
  EXPECT_TRUE(IsAlive(standby));
  rig.Finish(wire::FinishAs::kZero);
  EXPECT_EQ(rig.Wait(), 0);
  EXPECT_FALSE(IsAlive(standby));
}

TEST_F(Warm, WithoutTheKeyThereIsNoSocketAndNoVariable) {
  rig.settings.identity.options = "";
  Launch();
  rig.Start(1, "echo [$MUSTER_WARM]; sleep 60");
  rig.ExpectExecuted(1);
  EXPECT_EQ(rig.ReadStdout("\n"), "[]\n");
  GetsOn(1);
  EXPECT_FALSE(rig.Next(std::chrono::milliseconds(200)));
}

}  // namespace
}  // namespace muster::supervisor
