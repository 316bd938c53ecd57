// What the program writes to stderr: all of it arrives, and its last bytes are in the report of its death.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "tests/unit/spank/rig.h"

namespace muster::supervisor {
namespace {

using wire::Type;

std::string TailOf(const Packet& packet) {
  const auto exited = packet.As<wire::Exited>();
  return packet.Tail<wire::Exited>().substr(exited.program_bytes, exited.stderr_bytes);
}

TEST(Stderr, PassesUnchangedAndInOrder) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "seq 1 20000 >&2");
  std::string expected;
  for (int i = 1; i <= 20000; ++i) expected += std::to_string(i) + "\n";
  EXPECT_EQ(rig.ReadStderr("\n20000\n"), expected);
}

TEST(Stderr, ADeathIsReportedWithTheProgramsNameAndLastBytes) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "seq 1 5000 >&2; printf 'boom' >&2; kill -SEGV $$");
  rig.ExpectExecuted(1);
  const Packet packet = rig.ExpectPacket(Type::kExited);
  const auto exited = packet.As<wire::Exited>();
  EXPECT_EQ(WTERMSIG(exited.wait_status), SIGSEGV);
  EXPECT_EQ(packet.Tail<wire::Exited>().substr(0, exited.program_bytes), "sh");
  const std::string tail = TailOf(packet);
  EXPECT_EQ(tail.size(), wire::kMaxStderrTail);
  EXPECT_EQ(tail.substr(tail.size() - 14), "4999\n5000\nboom");
}

TEST(Stderr, OfTheLastGenerationIsNotReportedForTheNext) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "echo one >&2; exit 1");
  rig.ExpectExecuted(1);
  EXPECT_EQ(TailOf(rig.ExpectPacket(Type::kExited)), "one\n");
  rig.Stop(1);
  rig.Expect<wire::Stopped>(Type::kStopped);
  rig.Start(2, "echo two >&2; exit 1");
  rig.ExpectExecuted(2);
  EXPECT_EQ(TailOf(rig.ExpectPacket(Type::kExited)), "two\n");
  EXPECT_EQ(rig.ReadStderr("two\n"), "one\ntwo\n");
}

TEST(Stderr, ThatNobodyReadsHoldsUpTheProgramButNotTheSupervisor) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "seq 1 200000 >&2; echo written; sleep 60");
  rig.ExpectExecuted(1);
  int unread = 0;
  EXPECT_TRUE(
      Until([&] { return ioctl(rig.from_stderr.get(), FIONREAD, &unread) == 0 && unread >= 60'000; }));
  rig.Stop(1);
  EXPECT_EQ(rig.Expect<wire::Stopped>(Type::kStopped).unkillable, 0U);
  rig.Start(2, "echo second >&2; sleep 60");
  rig.ExpectExecuted(2);
  // Whole lines of the first, from its first on, then the second's.
  const std::string all = rig.ReadStderr("second\n");
  EXPECT_EQ(all.substr(0, 4), "1\n2\n");
  EXPECT_EQ(all.substr(all.size() - 7), "second\n");
  EXPECT_LT(all.size(), 600'000U);
}

TEST(Stderr, IsFlushedBeforeTheTaskEnds) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "head -c 60000 /dev/zero | tr '\\0' x >&2; head -c 100000 /dev/zero | tr '\\0' y >&2; exit 0");
  rig.ExpectExecuted(1);
  std::string all = rig.ReadStderr("y");
  rig.Expect<wire::Exited>(Type::kExited);
  rig.Finish();
  all += rig.ReadStderr("");
  EXPECT_EQ(all, std::string(60000, 'x') + std::string(100000, 'y'));
  EXPECT_EQ(rig.Wait(), 0);
}

TEST(Stderr, AReportComesBehindWhatTheProgramWrote) {
  Rig rig;
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "echo mine >&2; exit 1");
  rig.ExpectExecuted(1);
  rig.Expect<wire::Exited>(Type::kExited);
  const std::string text = "muster: " + std::string(40'000, 'r') + "\n";
  wire::Report body{};
  body.text_bytes = static_cast<uint32_t>(text.size());
  wire::SetHeader(&body, Type::kReport, text.size());
  const std::string packet = std::string(reinterpret_cast<const char*>(&body), sizeof(body)) + text;
  rig.Send(packet.data(), packet.size());
  rig.Finish();
  EXPECT_EQ(rig.ReadStderr(""), "mine\n" + text);
  EXPECT_EQ(WEXITSTATUS(rig.Wait()), 1);
}

TEST(Stderr, ToAFileIsAppendedAsItIs) {
  char path[] = "/tmp/muster-stderr-XXXXXX";
  const UniqueFd file(mkstemp(path));
  Rig rig;
  rig.in_task = [&] { dup2(file.get(), STDERR_FILENO); };
  rig.Launch();
  rig.Welcome();
  rig.Start(1, "seq 1 30000 >&2");
  rig.ExpectExecuted(1);
  rig.Expect<wire::Exited>(Type::kExited);
  rig.Finish();
  EXPECT_EQ(rig.Wait(), 0);
  EXPECT_EQ(lseek(file.get(), 0, SEEK_END), 168'894);
  unlink(path);
}

}  // namespace
}  // namespace muster::supervisor
