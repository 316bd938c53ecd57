// What daemons of the first version say to one another, as recorded, means the same today.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/proto/muster.pb.h"
#include "tests/unit/daemon/fixtures.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

template <typename Message>
Message Recorded(const std::string& name, const std::string& gang = "21.0") {
  Message message;
  EXPECT_TRUE(message.ParseFromString(Fixture("proto_v1/" + name + ".pb"))) << name;
  EXPECT_EQ(message.gang(), gang) << name;
  return message;
}

constexpr int64_t kTime = 1'700'000'000'123'456'789;

void ExpectExit(const v1::MemberExited& exited, const std::string& stderr_tail) {
  EXPECT_EQ(exited.task(), 3U);
  EXPECT_EQ(exited.generation(), 3U);
  EXPECT_EQ(exited.status(), 7 << 8);
  EXPECT_EQ(exited.pid(), 99);
  EXPECT_TRUE(exited.oom_killed());
  EXPECT_TRUE(exited.supervisor_lost());
  EXPECT_EQ(exited.time_ns(), kTime);
  EXPECT_EQ(exited.program(), "train");
  EXPECT_EQ(exited.stderr_tail(), stderr_tail);
}

TEST(FirstVersionsAgent, ItsRegistrationIsRead) {
  const auto message = Recorded<v1::AgentMessage>("register", "21.0-r1");
  ASSERT_EQ(message.kind_case(), v1::AgentMessage::kRegister);
  const v1::Register& r = message.register_();
  EXPECT_EQ(r.job_id(), 21U);
  EXPECT_EQ(r.step_id(), 0U);
  EXPECT_EQ(r.restart_count(), 1U);
  EXPECT_EQ(r.uid(), 1000U);
  EXPECT_EQ(r.gid(), 1001U);
  EXPECT_EQ(r.node(), 1U);
  EXPECT_EQ(r.node_count(), 2U);
  EXPECT_EQ(r.task_count(), 4U);
  EXPECT_EQ(r.node_name(), "n2");
  EXPECT_EQ(r.node_list(), "n[1-2]");
  EXPECT_EQ(r.options(), "restarts=2,name=first");
  EXPECT_EQ(r.lease_port(), 20001U);
  ASSERT_EQ(r.members_size(), 2);
  EXPECT_EQ(r.members(0).task(), 2U);
  EXPECT_EQ(r.members(0).local_id(), 0U);
  EXPECT_EQ(r.members(0).state(), 1U);
  EXPECT_EQ(r.members(0).generation(), 3U);
  EXPECT_FALSE(r.members(0).has_exited());
  EXPECT_EQ(r.members(1).local_id(), 1U);
  EXPECT_EQ(r.members(1).state(), 3U);
  EXPECT_EQ(r.members(1).unkillable(), 2U);
  ExpectExit(r.members(1).exited(), "caf\xe9\n");
}

TEST(FirstVersionsAgent, WhatItReportsIsRead) {
  const auto executed = Recorded<v1::AgentMessage>("executed").executed();
  EXPECT_THAT(executed.tasks(), ElementsAre(2, 3));
  EXPECT_EQ(executed.generation(), 3U);
  EXPECT_EQ(executed.time_ns(), kTime);
  ExpectExit(Recorded<v1::AgentMessage>("exited").exited(), "Killed\n");
  const auto stopped = Recorded<v1::AgentMessage>("stopped").stopped();
  EXPECT_EQ(stopped.generation(), 3U);
  EXPECT_EQ(stopped.lease_port(), 20002U);
  EXPECT_EQ(stopped.unkillable(), 1U);
  const auto terminating = Recorded<v1::AgentMessage>("terminating").terminating();
  EXPECT_EQ(terminating.task(), 3U);
  EXPECT_EQ(terminating.signal(), 15U);
}

TEST(FirstVersionsAgent, ItsCheckpointsAreRead) {
  const auto written = Recorded<v1::AgentMessage>("shard_written").shard_written();
  EXPECT_EQ(written.generation(), 3U);
  EXPECT_EQ(written.step(), 900U);
  EXPECT_EQ(written.shard().rank(), 3U);
  EXPECT_EQ(written.shard().bytes(), 20U);
  EXPECT_EQ(written.shard().chunk_bytes(), 16U);
  EXPECT_EQ(written.shard().prefix(), "data/name-first/900.1.3/3");
  EXPECT_EQ(written.shard().digests(), "0123456789abcdefFEDCBA9876543210");
  EXPECT_EQ(written.error(), "no\xff");
  const auto bad = Recorded<v1::AgentMessage>("checkpoint_bad").checkpoint_bad();
  EXPECT_EQ(bad.task(), 3U);
  EXPECT_EQ(bad.generation(), 3U);
  EXPECT_EQ(bad.step(), 900U);
  EXPECT_EQ(bad.reason(), "chunk 1");
}

TEST(FirstVersionsCoordinator, ItsStartIsRead) {
  const auto message = Recorded<v1::CoordinatorMessage>("start");
  ASSERT_EQ(message.kind_case(), v1::CoordinatorMessage::kStart);
  const v1::Start& start = message.start();
  EXPECT_EQ(start.term(), 7U);
  EXPECT_EQ(start.generation(), 3U);
  ASSERT_EQ(start.nodes_size(), 2);
  EXPECT_EQ(start.nodes(0).name(), "n1");
  EXPECT_THAT(start.nodes(0).ranks(), ElementsAre(0, 1));
  EXPECT_EQ(start.nodes(0).lease_port(), 20000U);
  EXPECT_EQ(start.nodes(1).name(), "n2");
  EXPECT_THAT(start.nodes(1).ranks(), ElementsAre(2, 3));
  EXPECT_EQ(start.nodes(1).lease_port(), 20001U);
  EXPECT_TRUE(start.restore());
  EXPECT_EQ(start.restore_step(), 900U);
  EXPECT_EQ(start.key(), "name-first");
  EXPECT_EQ(start.cause(), "rank 3 \xff");
}

TEST(FirstVersionsCoordinator, WhatItOrdersIsRead) {
  EXPECT_EQ(Recorded<v1::CoordinatorMessage>("stop").stop().generation(), 3U);
  const auto finish = Recorded<v1::CoordinatorMessage>("finish").finish();
  EXPECT_TRUE(finish.succeeded());
  EXPECT_TRUE(finish.has_cause());
  EXPECT_EQ(finish.cause(), 3U);
  EXPECT_TRUE(finish.has_code());
  EXPECT_EQ(finish.code(), 7);
  const auto report = Recorded<v1::CoordinatorMessage>("report").report();
  EXPECT_EQ(report.task(), 3U);
  EXPECT_EQ(report.text(), "muster: \xff\n");
  const auto committed = Recorded<v1::CoordinatorMessage>("committed").committed();
  EXPECT_EQ(committed.generation(), 3U);
  EXPECT_EQ(committed.step(), 900U);
  EXPECT_EQ(committed.error(), "full");
  EXPECT_EQ(Recorded<v1::CoordinatorMessage>("refused").refused().text(), "term 8");
}

}  // namespace
}  // namespace muster
