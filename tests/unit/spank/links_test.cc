// The process that measures this node's links before the first generation.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using wire::Type;

class LinksTest : public testing::Test {
 protected:
  void SetUp() override {
    rig_.Launch();
    rig_.Welcome();
  }

  void Order(uint64_t test, const std::string& program, bool full = false, const std::string& more = "") {
    std::string block = "MUSTER_LINKS_PROGRAM=" + program + '\0';
    if (!more.empty()) block += more + '\0';
    const UniqueFd memory(memfd_create("environment", MFD_CLOEXEC));
    ASSERT_EQ(write(memory.get(), block.data(), block.size()), static_cast<ssize_t>(block.size()));
    wire::TestLinks body{};
    wire::SetHeader(&body, Type::kTestLinks);
    body.test = test;
    body.full = full ? 1 : 0;
    body.environment_bytes = static_cast<uint32_t>(block.size());
    rig_.Send(&body, sizeof(body), memory.get());
  }
  void ExpectAnswer(uint64_t test, int status, const std::string& text) {
    const Packet packet = rig_.ExpectPacket(Type::kLinksTested);
    const auto answer = packet.As<wire::LinksTested>();
    EXPECT_EQ(answer.test, test);
    EXPECT_EQ(answer.wait_status, status) << packet.Tail<wire::LinksTested>();
    EXPECT_EQ(packet.Tail<wire::LinksTested>(), text);
  }
  // The task's children.
  [[nodiscard]] std::string Children() const {
    const std::string pid = std::to_string(rig_.supervisor());
    std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
    std::string pids;
    std::getline(file, pids);
    return pids;
  }

  Rig rig_;
};

TEST_F(LinksTest, MusterdHearsWhatItPrintsAndHowItEnds) {
  Order(7, "/bin/echo");
  ExpectAnswer(7, 0, "net test --json\n");
  Order(8, "/bin/echo", true);
  ExpectAnswer(8, 0, "net test --json --full\n");
  Order(9, "/bin/echo", true, "MUSTER_LINKS_SETTINGS=/etc/muster/roce.yaml");
  ExpectAnswer(9, 0, "net test --json --full --settings etc/muster/roce.yaml\n");
}

TEST_F(LinksTest, WhatCannotBeStartedSaysWhy) {
  Order(1, "/no/such/program");
  ExpectAnswer(1, 1 << 8, "cannot start /no/such/program: No such file or directory");
}

TEST_F(LinksTest, AnOrderWithoutAProgramIsAnsweredToo) {
  Order(1, "/bin/echo");
  ExpectAnswer(1, 0, "net test --json\n");
  wire::TestLinks body{};
  wire::SetHeader(&body, Type::kTestLinks);
  body.test = 2;
  body.environment_bytes = 100;
  rig_.Send(&body, sizeof(body));
  ExpectAnswer(2, -1, "");
}

TEST_F(LinksTest, ItsEnvironmentIsWhatMusterdSays) {
  // `env` looks for a command "net" in its own PATH.
  Order(1, "/usr/bin/env", false, "PATH=/nowhere");
  const Packet packet = rig_.ExpectPacket(Type::kLinksTested);
  EXPECT_EQ(packet.As<wire::LinksTested>().wait_status, 127 << 8);
  EXPECT_NE(packet.Tail<wire::LinksTested>().find("net"), std::string::npos);
}

TEST_F(LinksTest, OneThatFloodsIsHeldUpAndEndsWithTheGenerationsStart) {
  Order(1, MUSTER_FAKE_LINKS);
  ASSERT_TRUE(Until([&] { return !Children().empty(); }));
  rig_.Start(1, "echo runs; sleep 60");
  rig_.ExpectExecuted(1);
  EXPECT_NE(rig_.ReadStdout("runs\n").find("runs"), std::string::npos);
  EXPECT_TRUE(Until([&] { return Children().find(' ') == Children().rfind(' '); }))
      << "the program alone is left: " << Children();
}

TEST_F(LinksTest, ANewTestEndsTheOneBefore) {
  Order(1, MUSTER_FAKE_LINKS);
  ASSERT_TRUE(Until([&] { return !Children().empty(); }));
  Order(2, "/bin/echo");
  ExpectAnswer(2, 0, "net test --json\n");
  EXPECT_TRUE(Until([&] { return Children().empty(); })) << Children();
}

TEST_F(LinksTest, TheTasksInputIsNotRead) {
  Order(1, "/bin/cat");  // cat: net: No such file or directory
  rig_.ExpectPacket(Type::kLinksTested);
  ASSERT_EQ(write(rig_.to_stdin.get(), "line\n", 5), 5);
  rig_.Start(1, "read a; echo got $a");
  rig_.ExpectExecuted(1);
  EXPECT_NE(rig_.ReadStdout("got line\n").find("got line"), std::string::npos);
}

TEST_F(LinksTest, WhileTheProgramRunsNothingIsTested) {
  rig_.Start(1, "echo runs; read a; exit 3");
  rig_.ExpectExecuted(1);
  Order(1, "/bin/echo");
  ASSERT_EQ(write(rig_.to_stdin.get(), "\n", 1), 1);
  EXPECT_EQ(rig_.Expect<wire::Exited>(Type::kExited).wait_status, 3 << 8);
}

TEST_F(LinksTest, ATaskThatIsEndedTakesItAlong) {
  Order(1, MUSTER_FAKE_LINKS);
  ASSERT_TRUE(Until([&] { return !Children().empty(); }));
  const pid_t child = std::stoi(Children());
  rig_.Finish(wire::FinishAs::kCode, 1);
  EXPECT_EQ(rig_.Wait(), 1 << 8);
  EXPECT_TRUE(Until([&] { return !IsAlive(child); }));
}

// A root of its own without anything in it: no program, no loader, no library.
class LinksInAContainer : public LinksTest {
 protected:
  LinksInAContainer() {
    rig_.enter = [path = empty_.path()] {
      if (chroot(path.c_str()) != 0 || chdir("/") != 0) _exit(99);
    };
  }

  TemporaryDirectory empty_;
};

TEST_F(LinksInAContainer, ItRunsWithTheHostsLibraries) {
  Order(7, "/bin/echo");
  ExpectAnswer(7, 0, "net test --json\n");
}

}  // namespace
}  // namespace muster::supervisor
