// A whole session of a supervisor and a program of the first version, replayed from recorded bytes to today's musterd.
// What musterd answers is read with the bodies of then.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "client/muster.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/fixtures.h"
#include "tests/unit/daemon/fixtures/wire_v1/first_version.h"
#include "tests/unit/daemon/packet_socket.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
namespace first = first_version;

// Where the first version's hellos have the token that musterd gave.
constexpr size_t kSupervisorToken = 88;
constexpr size_t kClientToken = 16;

// Sends a recorded message, with the token where the first version has it when there is one to be put in.
void Play(PacketSocket& peer, const std::string& name, int fd = -1) {
  peer.Send(Fixture("wire_v1/" + name + ".bin"), fd);
}
void PlayWithToken(PacketSocket& peer, const std::string& name, size_t at, const uint8_t (&token)[16]) {
  std::string bytes = Fixture("wire_v1/" + name + ".bin");
  std::memcpy(bytes.data() + at, token, sizeof token);
  peer.Send(bytes);
}

class FirstVersionSession : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    StartDaemon(0);
  }

  // The environment of a Start, by name.
  static std::string Variable(PacketSocket& peer, const first::Start& start, const std::string& name) {
    const std::string block = ReadAll(peer.fd.get(), start.environment_bytes);
    for (size_t at = 0; at < block.size();) {
      const std::string entry(block.c_str() + at);
      if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
      at += entry.size() + 1;
    }
    return "(none)";
  }
};

TEST_F(FirstVersionSession, IsServedFromHelloToFinish) {
  PacketSocket supervisor(daemons_[0]->socket());
  Play(supervisor, "supervisor_hello");
  const auto welcome = supervisor.Expect<first::Welcome>();
  auto start = supervisor.Expect<first::Start>();
  EXPECT_EQ(start.generation, 1U);
  EXPECT_EQ(start.rank, 0U);
  EXPECT_EQ(Variable(supervisor, start, "MUSTER_GANG"), "21.0");
  EXPECT_EQ(Variable(supervisor, start, "MUSTER_GENERATION"), "1");
  EXPECT_EQ(Variable(supervisor, start, "RANK"), "0");
  EXPECT_EQ(Variable(supervisor, start, "WORLD_SIZE"), "1");
  EXPECT_EQ(Variable(supervisor, start, "MUSTER_TOKEN").size(), 32U);
  Play(supervisor, "executed");

  PacketSocket program(daemons_[0]->socket());
  PlayWithToken(program, "client_hello", kClientToken, welcome.token);
  auto in = program.Expect<first::ClientWelcome>();
  EXPECT_EQ(in.generation, 1U);
  EXPECT_EQ(in.restore_step, first::kNoStep);
  EXPECT_EQ(in.rank, 0U);
  EXPECT_EQ(in.world_size, 1U);
  EXPECT_GT(in.max_shard_bytes, 4096U);
  Play(program, "restore");
  EXPECT_EQ(program.Expect<first::Restored>().status, MUSTER_E_NOT_FOUND);
  EXPECT_THAT(program.rest, HasSubstr("no checkpoint"));
  const std::string content(4096, 's');
  const UniqueFd memory = SealedMemory(content);
  Play(program, "save", memory.get());
  const auto durable = program.Expect<first::ShardDurable>();
  EXPECT_EQ(durable.step, 10U);
  EXPECT_EQ(durable.status, MUSTER_OK) << program.rest;
  const auto committed = program.Expect<first::Committed>();
  EXPECT_EQ(committed.step, 10U);
  EXPECT_EQ(committed.status, MUSTER_OK) << program.rest;
  Play(program, "restore_step");
  const auto restored = program.Expect<first::Restored>();
  EXPECT_EQ(restored.status, MUSTER_OK) << program.rest;
  EXPECT_EQ(restored.step, 10U);
  EXPECT_EQ(restored.bytes, content.size());
  EXPECT_EQ(ReadAll(program.fd.get(), restored.bytes), content);

  Play(supervisor, "exited");
  const auto stop = supervisor.ExpectAfterReports<first::Stop>();
  EXPECT_EQ(stop.generation, 1U);
  Play(supervisor, "stopped");

  start = supervisor.ExpectAfterReports<first::Start>();
  EXPECT_THAT(supervisor.reports, HasSubstr("| ValueError: first version"));
  EXPECT_EQ(start.generation, 2U);
  EXPECT_THAT(Variable(supervisor, start, "MUSTER_RESTART_CAUSE"), HasSubstr("exited with code 7"));
  // A program that has outlived its generation is told so.
  const auto stale = program.Expect<first::Refused>();
  EXPECT_EQ(stale.reason, 5U);
  EXPECT_EQ(stale.text_bytes, program.rest.size());
  EXPECT_TRUE(program.Ended());
  Play(supervisor, "executed_2");
  PacketSocket again(daemons_[0]->socket());
  PlayWithToken(again, "client_hello_2", kClientToken, welcome.token);
  in = again.Expect<first::ClientWelcome>();
  EXPECT_EQ(in.generation, 2U);
  EXPECT_EQ(in.restore_step, 10U);
  Play(again, "restore");
  EXPECT_EQ(again.Expect<first::Restored>().status, MUSTER_OK) << again.rest;
  EXPECT_EQ(ReadAll(again.fd.get(), content.size()), content);

  Play(supervisor, "signalled");
  Play(supervisor, "exited_2");
  EXPECT_EQ(supervisor.ExpectAfterReports<first::Finish>().as, 0U);
}

TEST_F(FirstVersionSession, GoesOnAfterMusterdHasBeenUpgradedUnderIt) {
  first::Welcome welcome{};
  {
    PacketSocket supervisor(daemons_[0]->socket());
    Play(supervisor, "supervisor_hello");
    welcome = supervisor.Expect<first::Welcome>();
    (void)supervisor.Expect<first::Start>();
    Play(supervisor, "executed");
    daemons_[0].reset();
  }
  StartDaemon(0);
  PacketSocket supervisor(daemons_[0]->socket());
  PlayWithToken(supervisor, "supervisor_hello_reconnecting", kSupervisorToken, welcome.token);
  const auto again = supervisor.Expect<first::Welcome>();
  EXPECT_EQ(std::memcmp(again.token, welcome.token, sizeof welcome.token), 0);
  Play(supervisor, "exited");
  EXPECT_EQ(supervisor.ExpectAfterReports<first::Stop>().generation, 1U);
  Play(supervisor, "stopped");
  EXPECT_EQ(supervisor.ExpectAfterReports<first::Start>().generation, 2U);
  Play(supervisor, "exited_2");
  EXPECT_EQ(supervisor.ExpectAfterReports<first::Finish>().as, 0U);
}

}  // namespace
}  // namespace muster
