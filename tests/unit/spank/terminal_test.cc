// A task whose stdio is a pseudo terminal, as under srun --pty.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <utmp.h>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using wire::Type;

class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(openpty(&ours_, &theirs_, nullptr, nullptr, nullptr), 0);
    fcntl(ours_, F_SETFD, FD_CLOEXEC);
    rig.in_task = [this] { login_tty(theirs_); };
    rig.Launch();
    close(theirs_);
    rig.from_stdout.reset(ours_);
    rig.Welcome();
  }
  void Press(const char* text) {
    EXPECT_EQ(write(ours_, text, strlen(text)), static_cast<ssize_t>(strlen(text)));
  }

  Rig rig;

 private:
  int ours_ = -1;
  int theirs_ = -1;
};

TEST_F(Terminal, IsTheProgramsOwnOnAllThreeDescriptors) {
  rig.Start(1, "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all three; sleep 60");
  rig.ExpectExecuted(1);
  EXPECT_EQ(rig.ReadStdout("\n"), "all three\r\n");
}

TEST_F(Terminal, CtrlCReachesTheProgramOnce) {
  rig.Start(1, "trap 'echo caught' INT; echo ready; while :; do sleep 0.01; done");
  rig.ExpectExecuted(1);
  rig.ReadStdout("ready\r\n");
  Press("\x03");
  EXPECT_EQ(rig.ReadStdout("caught\r\n"), "^Ccaught\r\n");
  Press("x\n");  // whatever follows now is not a second "caught"
  EXPECT_EQ(rig.ReadStdout("x\r\n"), "x\r\n");
}

TEST_F(Terminal, OfAKilledGenerationIsPutInOrderForTheNext) {
  rig.Start(1, "stty -echo -onlcr; setsid true; set -m; sh -c 'echo job $$; sleep 60' & fg");
  rig.ExpectExecuted(1);
  rig.ReadStdout("job");
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
  // Writing to the terminal with its settings of the start, from the foreground: no SIGTTOU with tostop.
  rig.Start(2, "stty tostop <&1 && echo second && sleep 60");
  rig.ExpectExecuted(2);
  EXPECT_NE(rig.ReadStdout("second\r\n").find("second\r\n"), std::string::npos);
}

}  // namespace
}  // namespace muster::supervisor
