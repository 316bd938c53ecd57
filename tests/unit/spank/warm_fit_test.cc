// What of a program and its imports a warm start can take over, and what makes it a cold one: docs/warm-starts.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/spank/warm_rig.h"

namespace muster::supervisor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kThenSleep[] = "\nimport time; print(True, flush=True); time.sleep(600)\n";

class WarmFit : public Warm {
 protected:
  void StartFirst(const std::string& program) {
    Launch();
    StartCold(1, program);
    rig.ReadStdout("True\n");
    GetsOn(1);
  }
  // What the second generation's program, which must be warm, says until "True".
  std::string Second(const std::string& program) {
    StartFirst(program);
    Expect(WarmState::kReady, 1);
    Stop(1);
    Start(2);
    EXPECT_EQ(Expect(WarmState::kWarm, 2), "");
    rig.ExpectExecuted(2);
    return rig.ReadStdout("True\n");
  }
  // Why there is no standby beside it.
  std::string Unfit(const std::string& program) {
    StartFirst(program);
    return Expect(WarmState::kUnfit, 1);
  }
};

TEST_F(WarmFit, AThreadThatAnImportHasStartedLivesOn) {
  environment.Package("ticks", R"(
import threading, time
count = [0]
def tick():
    while True:
        count[0] += 1
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
)");
  Second(std::string("import ticks, time\nbefore = ticks.count[0]\n") +
         "while ticks.count[0] < before + 3: time.sleep(0.001)" + kThenSleep);
}

TEST_F(WarmFit, WhatAnImportHasRegisteredForTheEndIsDoneOnce) {
  environment.Package("ends", "import atexit\natexit.register(print, 'the end', flush=True)\n");
  StartFirst(std::string("import ends") + kThenSleep);
  Expect(WarmState::kReady, 1);
  Stop(1);
  std::ofstream(environment.directory() / "program.py") << "import ends\nprint('short', flush=True)\n";
  Start(2);
  Expect(WarmState::kWarm, 2);
  EXPECT_EQ(rig.ReadStdout("the end\n"), "short\nthe end\n");
}

TEST_F(WarmFit, AProgramThatIsAModule) {
  environment.Package("job", std::string("import slow\nif __name__ == '__main__':\n"
                                         "    print(__spec__.name, slow.value)") +
                                 "\n    print(True, flush=True)\n    import time; time.sleep(600)\n");
  Launch();
  program_ = "PROGRAM=" + environment.Python() + " -m job argument";
  Start(1);
  rig.ExpectExecuted(1);
  EXPECT_THAT(rig.ReadStdout("True\n"), HasSubstr("job 7\n"));
  GetsOn(1);
  Expect(WarmState::kReady, 1);
  Stop(1);
  Start(2);
  EXPECT_EQ(Expect(WarmState::kWarm, 2), "");
  EXPECT_THAT(rig.ReadStdout("True\n"), HasSubstr("job 7\n"));
}

// The child imports __main__ anew, from where Python says that it is.
TEST_F(WarmFit, AProcessIsSpawnedWithAFunctionOfMain) {
  const std::string said = Second(R"(
import multiprocessing, slow, sys
def square(n):
    return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(square, [3]), flush=True)
    import time; print(True, flush=True); time.sleep(600)
)");
  EXPECT_THAT(said, HasSubstr("[9]\n"));
}

// A program may do so before it imports anything more: what watches it must neither fail its import nor call itself.
TEST_F(WarmFit, AProgramThatTakesModulesAndProcAwayImportsAllTheSame) {
  environment.Package("late", "value = 3\n");
  environment.Package("later", "value = 4\n");
  Launch();
  StartCold(1, std::string(R"(
import os, resource, sys
for name in ("resource", "_socket", "fcntl"):
    sys.modules.pop(name, None)
import late
root = os.path.join(os.path.dirname(sys.argv[0]), "root")
os.mkdir(root)
os.rename(late.__file__.replace("late.py", "later.py"), root + "/later.py")
os.chroot(root)
os.chdir("/")
sys.path.insert(0, "/")
import later
print(late.value, later.value, flush=True)
)") + kThenSleep);
  EXPECT_EQ(rig.ReadStdout("True\n"), "3 4\nTrue\n");
}

TEST_F(WarmFit, AnImportThatOpensADeviceIsNone) {
  environment.Package("gpu", "device = open(__file__)\n");
  environment.Append(
      "muster_warm.py",
      "\n_read_link = _link\n"
      "_link = lambda path: _read_link(path).replace(_places()[-1] + '/gpu.py', '/dev/nvidia0')\n");
  EXPECT_EQ(Unfit(std::string("import gpu") + kThenSleep), "what it imports opens a device (/dev/nvidia0)");
}

TEST_F(WarmFit, APackageThatWasInstalledMeanwhileMakesTheStartCold) {
  StartFirst(std::string("import slow") + kThenSleep);
  Expect(WarmState::kReady, 1);
  environment.Package("another", "");
  Stop(1);
  Start(2);
  EXPECT_THAT(Expect(WarmState::kCold, 2), HasSubstr("packages have been installed or removed"));
}

TEST_F(WarmFit, WhatAnExecInheritsIsComparedAndNamed) {
  Launch();
  StartCold(1, std::string("import slow") + kThenSleep);
  rig.ReadStdout("True\n");
  // As if another had changed the task meanwhile: the standby has it from its supervisor.
  std::ofstream("/proc/" + std::to_string(rig.supervisor()) + "/coredump_filter") << "0x3f";
  GetsOn(1);
  EXPECT_THAT(Expect(WarmState::kUnfit, 1),
              AllOf(HasSubstr("coredump_filter is 0000003f in a standby, and 000000"),
                    HasSubstr("in a program that is started cold")));
}

TEST_F(WarmFit, APackageThatImportsWhatIsNotInstalledIsNone) {
  const std::filesystem::path place = environment.directory() / "own";
  std::filesystem::create_directories(place);
  std::ofstream(place / "mine.py") << "";
  environment.Has(place.string());
  environment.Package("uses", "import mine\n");
  EXPECT_EQ(Unfit(std::string("import uses") + kThenSleep),
            "an installed package imports mine from " + (place / "mine.py").string() + ", which is none");
}

}  // namespace
}  // namespace muster::supervisor
