// Launchers inside of a gang are named once, with the line to change.
#include "spank-plugin/supervisor/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// "NAME PROCESSES", "none". A "~" stands for a blank within a word.
std::string Found(const std::string& command) {
  std::istringstream stream(command);
  std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  std::vector<const char*> arguments;
  for (std::string& word : words) {
    for (char& c : word) c = c == '~' ? ' ' : c;
    arguments.push_back(word.c_str());
  }
  arguments.push_back(nullptr);
  const Launcher launcher = LauncherIn(arguments.data());
  return launcher.name == nullptr ? "none" : launcher.name + (" " + std::to_string(launcher.processes));
}

TEST(Launcher, ItIsFoundInEveryFormThatScriptsHave) {
  EXPECT_EQ(Found("torchrun --nnodes 4 --nproc_per_node 8 train.py"), "torchrun 8");
  EXPECT_EQ(Found("/opt/env/bin/torchrun --nproc-per-node=4 train.py"), "torchrun 4");
  EXPECT_EQ(Found("python3 /opt/env/bin/torchrun train.py"), "torchrun 0");
  EXPECT_EQ(Found("torchrun --nproc-per-node=gpu -m train"), "torchrun 0");
  EXPECT_EQ(Found("python -m torch.distributed.run --nproc-per-node 2 train.py"),
            "python -m torch.distributed.run 2");
  EXPECT_EQ(Found("python -u -m torch.distributed.launch train.py"), "python -m torch.distributed.run 0");
  EXPECT_EQ(Found("accelerate launch --num_processes 8 train.py"), "accelerate launch 0");
  EXPECT_EQ(Found("python -m accelerate.commands.launch train.py"), "accelerate launch 0");
  EXPECT_EQ(Found("/env/bin/deepspeed train.py --deepspeed"), "deepspeed 0");
  EXPECT_EQ(Found("numactl --cpunodebind=0 torchrun train.py"), "torchrun 0");
  EXPECT_EQ(Found("env A=1 apptainer exec --nv image.sif torchrun train.py"), "torchrun 0");
}

TEST(Launcher, ItIsFoundInTheWordsOfAShell) {
  EXPECT_EQ(Found("bash -c torchrun~--nproc_per_node=8~train.py~--x"), "torchrun 8");
  EXPECT_EQ(Found("bash -lc source~env.sh;~python~prepare.py&&exec~torchrun~train.py"), "torchrun 0");
  EXPECT_EQ(Found("/bin/sh -ec accelerate~launch~train.py"), "accelerate launch 0");
  EXPECT_EQ(Found("bash -c torchrun~--nproc-per-node~2~train.py;~echo~--nproc-per-node=9"), "torchrun 2");
}

TEST(Launcher, WhatAProgramIsToldIsNone) {
  for (const char* command :
       {"python train.py torchrun", "python -m train torchrun", "train --launcher torchrun",
        "python train.py --deepspeed c", "muster-run --nproc-per-node=8 train.py torchrun", "accelerate env",
        "bash run.sh torchrun.py", "bash -c python~train.py~torchrun", "bash -c exec~train~--with~torchrun",
        "bash -c true x torchrun", "sleep 1", "my-torchrun"})
    EXPECT_EQ(Found(command), "none") << command;
  const char* none[] = {nullptr};
  EXPECT_EQ(LauncherIn(none).name, nullptr);
  EXPECT_EQ(LauncherIn(nullptr).name, nullptr);
}

class LauncherRig : public ::testing::Test {
 protected:
  // Two generations; what the task says on stderr.
  std::string Run(uint32_t task) {
    static const char* const kArguments[] = {"torchrun", "--nproc_per_node=8", "train.py", nullptr};
    rig.settings.arguments = kArguments;
    rig.settings.identity.hello.task_id = task;
    rig.Launch();
    rig.Welcome();
    for (uint64_t generation : {1, 2}) {
      rig.Start(generation, "echo generation $G >&2; sleep 600", {"G=" + std::to_string(generation)});
      rig.ExpectExecuted(generation);
      said += rig.ReadStderr("generation " + std::to_string(generation) + "\n");
      rig.Stop(generation);
      rig.Expect<wire::Stopped>(wire::Type::kStopped);
    }
    return said;
  }
  Rig rig;
  std::string said;
};

TEST_F(LauncherRig, TheFirstTaskSaysItOnceAndTheProgramRuns) {
  EXPECT_EQ(
      Run(0),
      "muster: torchrun starts processes that Muster does not know, and checkpoints do not work for: write "
      "muster-run in its place, and #SBATCH --ntasks-per-node=8 for the 8 processes of a node\n"
      "generation 1\ngeneration 2\n");
}

TEST_F(LauncherRig, TheOthersSayNothing) {
  EXPECT_THAT(Run(3), Not(HasSubstr("torchrun")));
}

}  // namespace
}  // namespace muster::supervisor
