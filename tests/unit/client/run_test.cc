// The program muster-run: what it executes, and with which environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace muster {
namespace {

using testing::HasSubstr;

struct Done {
  int code = -1;
  std::string out;  // and what it says on stderr
};

class Run : public testing::Test {
 protected:
  Run() {
    std::string name = std::filesystem::temp_directory_path() / "muster-run-XXXXXX";
    if (mkdtemp(name.data()) != nullptr) directory_ = name;
    std::ofstream(directory_ / "show.py") << "import os, sys\n"
                                             "print(sys.argv[1:], sys.orig_argv[1:], sys.flags.isolated)\n"
                                             "for key in sys.argv[1:]: print(key, os.environ.get(key))\n";
  }
  ~Run() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  // `variables` as env(1) takes them; the words may be quoted for the shell.
  [[nodiscard]] Done Execute(const std::string& words, const std::string& variables) const {
    const std::string command = "cd " + directory_.string() + " && exec env -i PATH=/usr/bin:/bin " +
                                variables + " " + MUSTER_RUN + " " + words + " 2>&1";
    Done done;
    FILE* pipe = popen(command.c_str(), "r");
    char bytes[4096];
    for (size_t got = 0; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) done.out.append(bytes, got);
    const int status = pclose(pipe);
    if (WIFEXITED(status)) done.code = WEXITSTATUS(status);
    return done;
  }
  [[nodiscard]] Done InGang(const std::string& words, const std::string& variables = "") const {
    return Execute(words, "MUSTER_GANG=7.0 LOCAL_WORLD_SIZE=2 " + variables);
  }
  std::filesystem::path directory_;
};

TEST_F(Run, PythonHasTheProgramAndItsArguments) {
  const Done done = InGang("--nnodes=2 --nproc_per_node 2 show.py 'a b' --nnodes=3");
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.out, HasSubstr("['a b', '--nnodes=3'] ['-u', 'show.py', 'a b', '--nnodes=3'] 0"));
}

TEST_F(Run, AModuleIsFoundInTheWorkingDirectory) {
  EXPECT_THAT(InGang("-m show x").out, HasSubstr("['x'] ['-u', '-m', 'show', 'x']"));
}

TEST_F(Run, TheExitCodeIsTheProgramsOwn) {
  EXPECT_EQ(InGang("--no-python sh -c 'exit 7'").code, 7);
}

TEST_F(Run, VariablesThatTorchrunSetsAreSetUnlessTheyAre) {
  constexpr char kWords[] = "show.py OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING";
  EXPECT_THAT(InGang(kWords).out, HasSubstr("OMP_NUM_THREADS 1\nTORCH_NCCL_ASYNC_ERROR_HANDLING 1\n"));
  EXPECT_THAT(InGang(kWords, "OMP_NUM_THREADS=5 TORCH_NCCL_ASYNC_ERROR_HANDLING=3").out,
              HasSubstr("OMP_NUM_THREADS 5\nTORCH_NCCL_ASYNC_ERROR_HANDLING 3\n"));
  EXPECT_THAT(InGang(kWords, "LOCAL_WORLD_SIZE=1").out, HasSubstr("OMP_NUM_THREADS None"));
}

TEST_F(Run, TheFirstPythonInPathIsTaken) {
  std::filesystem::create_directories(directory_ / "bin/python3");  // no file
  std::filesystem::create_directories(directory_ / "environment/bin");
  std::filesystem::create_symlink("/usr/bin/python3", directory_ / "environment/bin/python3");
  std::ofstream(directory_ / "which.py") << "import sys; print(sys.orig_argv[0])";
  const std::string path = directory_.string() + "/bin:" + directory_.string() + "/environment/bin:/usr/bin";
  EXPECT_EQ(InGang("which.py", "PATH=" + path).out, directory_.string() + "/environment/bin/python3\n");
  EXPECT_EQ(InGang("which.py", "PYTHON_EXEC=/usr/bin/python3 PATH=" + path).out, "/usr/bin/python3\n");
}

TEST_F(Run, WithoutAPythonThereIsASentence) {
  const Done done = InGang("show.py", "PATH=/nowhere");
  EXPECT_EQ(done.code, 127);
  EXPECT_THAT(done.out, HasSubstr("muster-run: PATH has no python3: activate"));
  EXPECT_EQ(InGang("--no-python ./none").code, 127);
  EXPECT_EQ(InGang("--no-python ./show.py").code, 126);
}

TEST_F(Run, OutsideOfAGangItSaysHowToRunIt) {
  const Done done = Execute("show.py", "");
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.out, "muster-run: this is no task of a gang: start it with srun --gang, or use torchrun\n");
  EXPECT_EQ(Execute("--help", "").code, 0);
}

TEST_F(Run, WhatCannotBeHadExecutesNothing) {
  const Done done = InGang("--nproc-per-node=8 show.py");
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.out, HasSubstr("muster-run: --nproc-per-node=8 means 8 processes on this node"));
  EXPECT_THAT(done.out, HasSubstr("write #SBATCH --ntasks-per-node=8\n"));
  EXPECT_THAT(InGang("--nproc-per-node=gpu show.py", "SLURM_GPUS_ON_NODE=4").out,
              HasSubstr("--ntasks-per-node=4"));
  EXPECT_EQ(InGang("--nproc show.py").code, 2);
}

TEST_F(Run, OnlyPythonIsAnnouncedForWarmStarts) {
  std::ofstream(directory_ / "show.sh") << "echo $MUSTER_WARM";
  // The shell stands in for Python, whose hook would take the variable away.
  EXPECT_THAT(InGang("show.sh", "MUSTER_WARM=name PYTHON_EXEC=/bin/sh").out,
              testing::MatchesRegex("name run [0-9]+:[0-9]+\n"));
  EXPECT_EQ(InGang("--no-python sh -c 'echo $MUSTER_WARM'", "MUSTER_WARM=name").out, "name\n");
  EXPECT_THAT(InGang("show.py MUSTER_WARM").out, HasSubstr("MUSTER_WARM None"));
}

}  // namespace
}  // namespace muster
