// A checkpoint that a gang of two saved, restored by a gang of one: through a real musterd, message by message.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ceph/muster.h"
#include "tests/unit/daemon/daemon_rig.h"
#include "tests/unit/daemon/fixtures.h"
#include "tests/unit/daemon/packet_builder.h"
#include "tests/unit/daemon/packet_socket.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using wire::Type;

wire::SupervisorHello Hello(uint32_t job, uint32_t node, uint32_t nodes) {
  wire::SupervisorHello hello{};
  hello.job_id = job;
  hello.uid = 1000;
  hello.gid = 1000;
  hello.node_id = node;
  hello.node_count = nodes;
  hello.task_count = nodes;
  hello.local_task_count = 1;
  hello.task_id = node;
  return hello;
}

uint16_t Number(Type type) {
  return static_cast<uint16_t>(type);
}

// A member: its supervisor, and its program's connection.
class Member {
 public:
  Member(const std::string& socket, wire::SupervisorHello hello, const std::string& nodes)
      : socket_(socket), supervisor_(hello) {
    EXPECT_TRUE(supervisor_.Join(socket, nodes, "name=elastic"));
  }
  // Waits for the start and opens the program's connection.
  wire::ClientWelcome Run() {
    const auto start = supervisor_.Next(Type::kStart);
    EXPECT_TRUE(start);
    if (!start) return {};
    // Not 1 for a gang that goes on with an earlier one's checkpoints.
    generation_ = start->As<wire::Start>().generation;
    supervisor_.Executed(generation_);
    const std::string gang = start->environment.at("MUSTER_GANG");
    const std::string token = start->environment.at("MUSTER_TOKEN");
    wire::ClientHello hello{};
    for (size_t i = 0; i < sizeof hello.token; ++i)
      hello.token[i] = static_cast<uint8_t>(std::stoi(token.substr(2 * i, 2), nullptr, 16));
    hello.generation = generation_;
    hello.rank = static_cast<uint32_t>(std::stoul(start->environment.at("RANK")));
    hello.gang_bytes = static_cast<uint32_t>(gang.size());
    program_ = std::make_unique<PacketSocket>(socket_);
    program_->Send(BuildPacket(hello, Type::kClientHello, gang));
    return program_->Expect<wire::ClientWelcome>(Number(Type::kClientWelcome));
  }
  // With `missing` the memory is shorter than is said, and the save fails.
  void Save(uint64_t step, const std::string& content, size_t missing = 0) {
    wire::Save save{};
    save.step = step;
    save.bytes = content.size() + missing;
    program_->Send(BuildPacket(save, Type::kSave), SealedMemory(content).get());
  }
  void ExpectDurable(int status) {
    const auto durable = program_->Expect<wire::ShardDurable>(Number(Type::kShardDurable));
    EXPECT_EQ(durable.status, status) << program_->rest;
  }
  void ExpectCommitted() {
    ExpectDurable(MUSTER_OK);
    const auto committed = program_->Expect<wire::Committed>(Number(Type::kCommitted));
    EXPECT_EQ(committed.status, MUSTER_OK) << program_->rest;
  }
  void ExpectNotCommitted() {
    const auto committed = program_->Expect<wire::Committed>(Number(Type::kCommitted));
    EXPECT_EQ(committed.status, MUSTER_E_STORE) << program_->rest;
    EXPECT_THAT(program_->rest, HasSubstr("not the 10 that were announced"));
  }
  wire::Described Describe(uint64_t step) {
    wire::Describe describe{};
    describe.step = step;
    program_->Send(BuildPacket(describe, Type::kDescribe));
    return program_->Expect<wire::Described>(Number(Type::kDescribed));
  }
  // The content, or the error's sentence behind its code.
  std::string Restore(uint32_t rank) {
    wire::Restore restore{};
    restore.step = wire::kNoStep;
    restore.rank = rank;
    program_->Send(BuildPacket(restore, Type::kRestore));
    return Restored();
  }
  std::string RestoreAsTheFirstVersion() {
    program_->Send(Fixture("wire_v1/restore.bin"));
    return Restored();
  }
  // The bytes, or the error's sentence behind its code.
  std::string ReadRange(uint64_t step, uint32_t rank, uint64_t offset, uint64_t bytes) {
    wire::ReadRange range{};
    range.step = step;
    range.rank = rank;
    range.offset = offset;
    range.bytes = bytes;
    program_->Send(BuildPacket(range, Type::kReadRange));
    last_ = program_->Expect<wire::RangeRead>(Number(Type::kRangeRead));
    if (last_.status != MUSTER_OK) return fmt::format("{}: {}", last_.status, program_->rest);
    return ReadAll(program_->fd.get(), last_.bytes);
  }
  [[nodiscard]] const wire::RangeRead& last() const { return last_; }
  const std::string& rest() { return program_->rest; }
  void Succeed() {
    Exit();
    ExpectFinish();
  }
  void Exit() { supervisor_.Exited(generation_, 0); }
  void ExpectFinish() { EXPECT_TRUE(supervisor_.Next(Type::kFinish)); }

 private:
  std::string Restored() {
    const auto restored = program_->Expect<wire::Restored>(Number(Type::kRestored));
    if (restored.status != MUSTER_OK) return fmt::format("{}: {}", restored.status, program_->rest);
    return ReadAll(program_->fd.get(), restored.bytes);
  }

  std::string socket_;
  TestSupervisor supervisor_;
  std::unique_ptr<PacketSocket> program_;
  uint64_t generation_ = 0;
  wire::RangeRead last_{};
};

class Reshard : public DaemonFixture {
 protected:
  void SetUp() override {
    DaemonFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    StartDaemon(0);
    StartDaemon(1);
  }

  // Saves step 10 with a member on each node, to the end of the job.
  void SaveWithTwo() {
    Member first(daemons_[0]->socket(), Hello(31, 0, 2), "n[1-2]");
    Member second(daemons_[1]->socket(), Hello(31, 1, 2), "n[1-2]");
    EXPECT_EQ(first.Run().world_size, 2U);
    EXPECT_EQ(second.Run().world_size, 2U);
    first.Save(10, "part zero");
    second.Save(10, "part one");
    first.ExpectCommitted();
    second.ExpectCommitted();
    first.Exit();
    second.Exit();
    first.ExpectFinish();
    second.ExpectFinish();
  }
};

TEST_F(Reshard, AGangOfOneReadsWhatAGangOfTwoSaved) {
  SaveWithTwo();
  Member only(daemons_[0]->socket(), Hello(32, 0, 1), "n1");
  const wire::ClientWelcome welcome = only.Run();
  EXPECT_EQ(welcome.world_size, 1U);
  EXPECT_EQ(welcome.restore_step, 10U);
  EXPECT_EQ(welcome.features & wire::kKnowsShards, wire::kKnowsShards);
  const wire::Described described = only.Describe(wire::kNoStep);
  EXPECT_EQ(described.status, MUSTER_OK) << only.rest();
  EXPECT_EQ(described.step, 10U);
  EXPECT_EQ(described.world_size, 2U);
  EXPECT_EQ(described.bytes, 17U);
  EXPECT_EQ(only.Restore(0), "part zero");
  EXPECT_EQ(only.Restore(1), "part one");
  EXPECT_THAT(only.Restore(2), HasSubstr("-4: the checkpoint of step 10 has no shard of rank 2"));
  const auto refused =
      AllOf(HasSubstr("-4: the checkpoint of step 10 was saved by 2 members, this gang has 1"),
            HasSubstr("muster_restore_open_shard"));
  EXPECT_THAT(only.Restore(wire::kOwnShard), refused);
  EXPECT_THAT(only.RestoreAsTheFirstVersion(), refused);
  EXPECT_EQ(only.Describe(11).status, MUSTER_E_NOT_FOUND);
  // And what it saves is its own gang's.
  only.Save(20, "all of it");
  only.ExpectCommitted();
  EXPECT_EQ(only.Describe(20).world_size, 1U);
  only.Succeed();
}

// Else it would wait for the others for ever.
TEST_F(Reshard, AMemberWhoseShardComesAfterAnothersSaveHasFailedIsTold) {
  Member first(daemons_[0]->socket(), Hello(31, 0, 2), "n[1-2]");
  Member second(daemons_[1]->socket(), Hello(31, 1, 2), "n[1-2]");
  first.Run();
  second.Run();
  first.Save(10, "part zero", 1);
  first.ExpectDurable(MUSTER_E_INVALID);
  first.ExpectNotCommitted();
  second.ExpectNotCommitted();
  second.Save(10, "part one");
  second.ExpectDurable(MUSTER_OK);
  second.ExpectNotCommitted();
  first.ExpectNotCommitted();
  // Both know now: what they save of the step is another try.
  first.Save(10, "part zero");
  first.ExpectDurable(MUSTER_OK);
  first.Save(11, "part zero");
  second.Save(11, "part one");
  first.ExpectCommitted();
  second.ExpectCommitted();
}

TEST_F(Reshard, AGangOfOneReadsPartsOfWhatAGangOfTwoSaved) {
  SaveWithTwo();
  Member only(daemons_[0]->socket(), Hello(32, 0, 1), "n1");
  EXPECT_EQ(only.Run().features & wire::kKnowsRanges, wire::kKnowsRanges);
  EXPECT_EQ(only.ReadRange(wire::kNoStep, 0, 5, 3), "zer");
  EXPECT_EQ(only.last().step, 10U);
  EXPECT_EQ(only.last().offset, 5U);
  EXPECT_EQ(only.last().shard_bytes, 9U);
  const uint64_t checkpoint = only.last().checkpoint;
  EXPECT_EQ(only.ReadRange(10, 1, 5, UINT64_MAX), "one");
  EXPECT_EQ(only.last().shard_bytes, 8U);
  EXPECT_EQ(only.last().checkpoint, checkpoint);
  EXPECT_EQ(only.ReadRange(10, 1, 8, 10), "");
  EXPECT_THAT(only.ReadRange(10, 1, 9, 1), HasSubstr("-4: the shard of rank 1 has 8 bytes, none at 9"));
  EXPECT_THAT(only.ReadRange(10, 2, 0, 1), HasSubstr("-4: the checkpoint of step 10 has no shard of rank 2"));
  EXPECT_THAT(only.ReadRange(10, wire::kOwnShard, 0, 1),
              HasSubstr("-4: the checkpoint of step 10 has no shard"));
  EXPECT_THAT(only.ReadRange(11, 0, 0, 1), HasSubstr("-5: "));
  // The same step of another generation would be another checkpoint; so is another step.
  only.Save(20, "all of it");
  only.ExpectCommitted();
  EXPECT_EQ(only.ReadRange(20, 0, 4, 2), "of");
  EXPECT_NE(only.last().checkpoint, checkpoint);
  only.Succeed();
}

TEST_F(Reshard, WithoutACheckpointThereIsNothingToDescribe) {
  Member only(daemons_[0]->socket(), Hello(32, 0, 1), "n1");
  EXPECT_EQ(only.Run().restore_step, wire::kNoStep);
  EXPECT_EQ(only.Describe(wire::kNoStep).status, MUSTER_E_NOT_FOUND);
  EXPECT_THAT(only.Restore(0), HasSubstr("-5: "));
  EXPECT_THAT(only.ReadRange(wire::kNoStep, 0, 0, 1), HasSubstr("-5: gang 32.0 has no checkpoint yet"));
  only.Succeed();
}

}  // namespace
}  // namespace muster
