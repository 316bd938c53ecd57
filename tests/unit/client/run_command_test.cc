// torchrun's command line, as muster-run reads it.
#include "client/run/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace muster::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

using Environment = std::map<std::string, std::string>;

Result<CommandLine> Read(const std::vector<std::string>& words, const Environment& environment = {}) {
  return ReadCommandLine(words, [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

// What is executed: "python" before what Python is given; or the error.
std::string Executed(const std::string& text, const Environment& environment = {}) {
  const auto line = Read(Words(text), environment);
  if (!line) return "error: " + line.error().message;
  std::string executed = line->python ? "python" : "";
  for (const std::string& word : line->program) executed += (executed.empty() ? "" : " ") + word;
  return executed;
}

std::string Processes(const std::string& text, const Environment& environment = {}) {
  const auto line = Read(Words(text), environment);
  return line ? line->processes : "error: " + line.error().message;
}

TEST(CommandLine, TheProgramAndItsArgumentsAreLeftAsTheyAre) {
  EXPECT_EQ(Executed("train.py"), "python train.py");
  EXPECT_EQ(Executed("train.py --nnodes 3 -m x"), "python train.py --nnodes 3 -m x");
  EXPECT_EQ(Executed("--nnodes 2 train.py --lr=1e-3"), "python train.py --lr=1e-3");
  EXPECT_EQ(Executed("--nnodes=2 -- -odd.py -x"), "python -odd.py -x");
  EXPECT_EQ(Executed("- a"), "python - a");
}

TEST(CommandLine, ModulesAndProgramsThatAreNoPython) {
  EXPECT_EQ(Executed("-m package.train --x"), "python -m package.train --x");
  EXPECT_EQ(Executed("--nnodes 2 --module package.train"), "python -m package.train");
  EXPECT_EQ(Executed("--no-python ./run a"), "./run a");
  EXPECT_EQ(Executed("--no_python bash run.sh"), "bash run.sh");
  EXPECT_EQ(Executed("--run-path /x/train.py a"), "python /x/train.py a");
  EXPECT_EQ(Executed("--run_path --no-python /x/train.py"), "python /x/train.py");
  EXPECT_EQ(Executed("-m --no-python train"), "error: --module and --no-python exclude each other");
}

// As published sbatch files have them.
TEST(CommandLine, WhatMusterAndSlurmAnswerIsIgnored) {
  for (const char* flags : {
           "--nnodes 4 --nproc_per_node 8 --rdzv_backend c10d --rdzv_endpoint node1:29500 --rdzv_id 7",
           "--nnodes=1:4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node1:29500 --rdzv-id=7",
           "--rdzv_conf timeout=900,is_host=1 --max_restarts 3 --monitor_interval 5 --start_method fork",
           "--rdzv-conf=timeout=900 --max-restarts=3 --monitor-interval=0.5 --start-method=spawn",
           "--standalone --nproc-per-node 8 --role trainer --log-dir /logs -r 3 -t 3",
           "--local-ranks-filter 0 --role rank --tee 3 --redirects=1:3",
           "-r3 -t=0:1,1:2 --log_dir=/logs --local_ranks_filter=0,1 --local_addr 10.0.0.1",
           "--node_rank -1 --master_addr node1 --master_port 29500 --local-addr=node1",
           "--node-rank=0 --master-addr=node1 --master-port=29500",
           "--signals-to-handle SIGUSR1 --shutdown_timeout 30 --duplicate-stdout-filters a,b",
       }) {
    EXPECT_EQ(Executed(std::string(flags) + " train.py 1"), "python train.py 1") << flags;
  }
}

TEST(CommandLine, WhatCannotBeHadIsRefusedWithTheReason) {
  EXPECT_EQ(Executed("--numa-binding=node train.py"),
            "error: --numa-binding cannot be had: Slurm binds tasks: use srun --cpu-bind and --mem-bind");
  EXPECT_THAT(Executed("--numa_binding node train.py"), HasSubstr("error: --numa_binding cannot be had"));
  EXPECT_THAT(Executed("--virtual-local-rank train.py"), HasSubstr("cannot be had: the program chooses"));
  EXPECT_THAT(Executed("--logs-specs mine train.py"), HasSubstr("cannot be had: no launcher runs"));
  EXPECT_THAT(Executed("--event-log-handler=mine train.py"), HasSubstr("cannot be had: no launcher runs"));
}

TEST(CommandLine, TorchrunsVariablesStandForFlags) {
  EXPECT_EQ(Processes("train.py", {{"PET_NPROC_PER_NODE", "8"}, {"PET_NNODES", "2"}}), "8");
  EXPECT_EQ(Processes("--nproc-per-node=4 train.py", {{"PET_NPROC_PER_NODE", "8"}}), "4");
  EXPECT_EQ(Executed("package.train", {{"PET_MODULE", "1"}}), "python -m package.train");
  EXPECT_EQ(Executed("./run", {{"PET_NO_PYTHON", "1"}, {"PET_MODULE", "0"}}), "./run");
  EXPECT_EQ(Executed("train.py", {{"PET_NPROC_PER_NODE", ""}}),
            "error: PET_NPROC_PER_NODE has no value; a variable of the script may be empty");
  EXPECT_EQ(Executed("train.py", {{"PET_MODULE", "yes"}}), "error: PET_MODULE is neither 0 nor 1");
  EXPECT_THAT(Executed("train.py", {{"PET_VIRTUAL_LOCAL_RANK", "1"}}),
              HasSubstr("error: PET_VIRTUAL_LOCAL_RANK cannot be had"));
  EXPECT_EQ(Executed("train.py", {{"PET_NUMA_BINDING", "node"}}), "python train.py") << "torchrun reads none";
}

TEST(CommandLine, AnUnknownFlagIsNamedWithTheNearest) {
  EXPECT_EQ(Executed("--nproc 8 train.py"),
            "error: torchrun has no flag --nproc; the nearest is --nproc-per-node");
  EXPECT_EQ(Executed("--nnode=2 train.py"), "error: torchrun has no flag --nnode; the nearest is --nnodes");
  EXPECT_EQ(Executed("--rdvz_endpoint x train.py"),
            "error: torchrun has no flag --rdvz_endpoint; the nearest is --rdzv-endpoint");
  EXPECT_EQ(Executed("--max-restart 1 train.py"),
            "error: torchrun has no flag --max-restart; the nearest is --max-restarts");
  EXPECT_THAT(Executed("-x train.py"), HasSubstr("torchrun has no flag -x"));
}

TEST(CommandLine, WhatIsMissingIsNamed) {
  EXPECT_EQ(Executed(""), "error: there is no program to run: muster-run [torchrun's flags] train.py");
  EXPECT_THAT(Executed("--nnodes 2"), HasSubstr("there is no program"));
  EXPECT_THAT(Executed("--nnodes 2 --"), HasSubstr("there is no program"));
  EXPECT_EQ(Executed("--nnodes"), "error: --nnodes has no value; a variable of the script may be empty");
  EXPECT_EQ(Executed("--nnodes --nproc-per-node=8 train.py"),
            "error: --nnodes has no value; a variable of the script may be empty");
  EXPECT_THAT(Executed("--nproc_per_node= train.py"), HasSubstr("--nproc_per_node has no value"));
  EXPECT_EQ(Executed("--standalone=1 train.py"), "error: --standalone takes no value");
  EXPECT_EQ(Executed("-mtrain"), "error: --module takes no value");
}

TEST(CommandLine, HelpNamesEveryFlag) {
  for (const char* word : {"-h", "--help", "--nnodes 2 --help"}) {
    const auto line = Read(Words(word));
    ASSERT_TRUE(line);
    EXPECT_TRUE(line->help);
  }
  const std::string usage = Usage();
  for (const char* flag : {"--nproc-per-node VALUE", "-m, --module", "--no-python", "--rdzv-endpoint VALUE",
                           "-r, --redirects VALUE", "-t, --tee VALUE", "--numa-binding"})
    EXPECT_THAT(usage, HasSubstr(flag));
}

TEST(CommandLine, AWordMayHaveSpacesAndBeEmpty) {
  const auto line = Read({"--rdzv-id", "", "train.py", "", "a b"});
  ASSERT_TRUE(line);
  EXPECT_THAT(line->program, ElementsAre("train.py", "", "a b"));
}

TEST(Processes, TheNumberIsRead) {
  EXPECT_EQ(Processes("train.py"), "");
  EXPECT_EQ(Processes("--nproc_per_node 8 train.py"), "8");
  EXPECT_EQ(Processes("--nproc-per-node=gpu train.py"), "gpu");
}

std::string Checked(const std::string& processes, uint32_t tasks, const std::string& gpus = "") {
  const Status status = CheckProcesses(processes, tasks, gpus);
  return status ? "good" : status.error().message;
}

TEST(Processes, OneForEachTaskIsGood) {
  EXPECT_EQ(Checked("", 8), "good");
  EXPECT_EQ(Checked("8", 8), "good");
  EXPECT_EQ(Checked("1", 8), "good");
  EXPECT_EQ(Checked("gpu", 4, "4"), "good");
  EXPECT_EQ(Checked("auto", 1, "1"), "good");
}

TEST(Processes, AnotherNumberNamesTheLineToChange) {
  EXPECT_EQ(Checked("8", 1),
            "--nproc-per-node=8 means 8 processes on this node, but the gang has 1 task here, one for each "
            "process: "
            "write #SBATCH --ntasks-per-node=8");
  EXPECT_THAT(Checked("2", 4), HasSubstr("has 4 tasks here"));
  EXPECT_THAT(Checked("gpu", 1, "8"), HasSubstr("write #SBATCH --ntasks-per-node=8"));
  EXPECT_THAT(Checked("auto", 8, "1"), HasSubstr("write #SBATCH --ntasks-per-node=1"));
}

TEST(Processes, WhatIsNoNumberIsRefused) {
  EXPECT_THAT(Checked("gpu", 8), HasSubstr("which Slurm does not say: write their number"));
  for (const char* processes : {"cpu", "xpu", "0", "-1", "8x", "99999999999"})
    EXPECT_THAT(Checked(processes, 1), HasSubstr("is no number of processes")) << processes;
}

}  // namespace
}  // namespace muster::run
