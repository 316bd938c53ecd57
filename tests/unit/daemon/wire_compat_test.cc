// Supervisors and libmuster of the first version, whose messages were recorded, are understood to the last field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/agent/packets.h"
#include "tests/unit/daemon/fixtures.h"

namespace muster {
namespace {

using wire::Type;

std::string Recorded(const std::string& name, Type type) {
  std::string packet = Fixture("wire_v1/" + name + ".bin");
  wire::Header header{};
  EXPECT_EQ(wire::CheckHeader(packet.data(), packet.size(), &header), wire::Check::kOk) << name;
  EXPECT_EQ(header.version, 1) << name;
  EXPECT_EQ(static_cast<Type>(header.type), type) << name;
  return packet;
}

template <typename Body>
Body Read(const std::string& name, Type type) {
  const auto body = ReadPacket<Body>(Recorded(name, type));
  EXPECT_TRUE(body) << name;
  return body.value_or(Body{});
}

void ExpectToken(const uint8_t (&token)[wire::kTokenBytes]) {
  for (size_t i = 0; i < sizeof token; ++i) EXPECT_EQ(token[i], 0xa0 + i);
}

TEST(FirstVersion, ASupervisorsHelloIsRead) {
  const std::string packet = Recorded("supervisor_hello_every_field", Type::kSupervisorHello);
  const auto hello = ReadSupervisorHello(packet);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->body.job_id, 0x01020304U);
  EXPECT_EQ(hello->body.step_id, 3U);
  EXPECT_EQ(hello->body.restart_count, 5U);
  EXPECT_EQ(hello->body.uid, 1234U);
  EXPECT_EQ(hello->body.gid, 2345U);
  EXPECT_EQ(hello->body.node_id, 2U);
  EXPECT_EQ(hello->body.node_count, 4U);
  EXPECT_EQ(hello->body.task_count, 16U);
  EXPECT_EQ(hello->body.local_task_count, 4U);
  EXPECT_EQ(hello->body.task_id, 9U);
  EXPECT_EQ(hello->body.local_id, 1U);
  EXPECT_EQ(hello->body.supervisor_pid, 70001U);
  EXPECT_EQ(hello->body.reconnecting, 1U);
  EXPECT_EQ(static_cast<wire::MemberState>(hello->body.state), wire::MemberState::kExited);
  EXPECT_EQ(hello->body.generation, 0x1122334455667788U);
  EXPECT_EQ(hello->body.child_pid, 31337);
  EXPECT_EQ(hello->body.wait_status, 7 << 8);
  ExpectToken(hello->body.token);
  EXPECT_EQ(hello->body.submission, 0x0123456789abcdefU);
  EXPECT_EQ(hello->body.launched_ns, 0x1122334455667700);
  EXPECT_EQ(hello->node_list, "gpu[001-004]");
  EXPECT_EQ(hello->node_name, "gpu003");
  EXPECT_EQ(hello->options, "restarts=0,name=run.7_b");
  GangJob job = StepOf(*hello);
  ASSERT_TRUE(CompleteStep(hello->body, &job));
  EXPECT_EQ(job.Id(), "16909060.3-r5");
  EXPECT_EQ(job.Key(), "name-run.7_b");
  EXPECT_EQ(job.options.restarts, 0U);
}

TEST(FirstVersion, ASupervisorThatComesBackIsRead) {
  const std::string packet = Recorded("supervisor_hello_reconnecting", Type::kSupervisorHello);
  const auto hello = ReadSupervisorHello(packet);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->body.reconnecting, 1U);
  EXPECT_EQ(static_cast<wire::MemberState>(hello->body.state), wire::MemberState::kRunning);
  EXPECT_EQ(hello->body.generation, 1U);
  EXPECT_EQ(hello->body.child_pid, 4243);
  ExpectToken(hello->body.token);
  EXPECT_EQ(hello->options, "restarts=2,join=30s,role=worker,name=first");
}

TEST(FirstVersion, WhatBecomesOfAMemberIsRead) {
  const auto executed = Read<wire::Executed>("executed", Type::kExecuted);
  EXPECT_EQ(executed.generation, 1U);
  EXPECT_EQ(executed.realtime_ns, 1'700'000'000'123'456'790);
  EXPECT_EQ(executed.pid, 4243);

  const std::string packet = Recorded("exited", Type::kExited);
  const auto exited = ReadExited(packet);
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->body.generation, 1U);
  EXPECT_EQ(exited->body.realtime_ns, 1'700'000'001'123'456'790);
  EXPECT_EQ(exited->body.pid, 4243);
  EXPECT_EQ(exited->body.wait_status, 7 << 8);
  EXPECT_EQ(exited->body.oom_killed, 0U);
  EXPECT_EQ(exited->program, "python3");
  EXPECT_EQ(exited->stderr_tail, "ValueError: first version\n");

  const std::string oom_packet = Recorded("exited_oom", Type::kExited);
  const auto oom = ReadExited(oom_packet);
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->body.wait_status, 9);
  EXPECT_EQ(oom->body.oom_killed, 1U);
  EXPECT_EQ(oom->stderr_tail, "Killed\n");

  const auto stopped = Read<wire::Stopped>("stopped_unkillable", Type::kStopped);
  EXPECT_EQ(stopped.generation, 4U);
  EXPECT_EQ(stopped.realtime_ns, 1'700'000'003'123'456'789);
  EXPECT_EQ(stopped.unkillable, 3U);
  EXPECT_EQ(Read<wire::Stopped>("stopped", Type::kStopped).unkillable, 0U);
  EXPECT_EQ(Read<wire::Signalled>("signalled", Type::kSignalled).signal, 15U);
}

TEST(FirstVersion, WhatAProgramSaysIsRead) {
  const std::string packet = Recorded("client_hello_2", Type::kClientHello);
  const auto hello = ReadClientHello(packet);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->body.generation, 2U);
  EXPECT_EQ(hello->body.rank, 0U);
  ExpectToken(hello->body.token);
  EXPECT_EQ(hello->gang, "21.0");
  const std::string saved = Recorded("save", Type::kSave);
  wire::Save save{};
  ASSERT_TRUE(wire::ReadGrownBody(saved.data(), saved.size(), wire::kFirstSave, &save));
  EXPECT_EQ(save.step, 10U);
  EXPECT_EQ(save.bytes, 4096U);
}

}  // namespace
}  // namespace muster
