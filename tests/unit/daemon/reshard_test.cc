// A checkpoint that a gang of two saved, restored by a gang of one: through a real musterd, message by message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/muster.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Reshard : public TwoDaemons {
 protected:
  // Saves step 10 with a member on each node, to the end of the job.
  void SaveWithTwo() {
    TestMember first(daemons_[0]->socket(), StepHello(31, 0, 2), "n[1-2]");
    TestMember second(daemons_[1]->socket(), StepHello(31, 1, 2), "n[1-2]");
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
  TestMember only(daemons_[0]->socket(), StepHello(32, 0, 1), "n1");
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

// The age of the newest checkpoint is what a fault would cost the gang.
TEST_F(Reshard, TheCheckpointOfAnEarlierGangIsNotToldAsThisGangs) {
  SaveWithTwo();
  TestMember only(daemons_[0]->socket(), StepHello(32, 0, 1), "n1");
  EXPECT_EQ(only.Run().restore_step, 10U);
  EXPECT_FALSE(Told(32).checkpoint);
  only.Succeed();
}

TEST_F(Reshard, AGangOfOneReadsPartsOfWhatAGangOfTwoSaved) {
  SaveWithTwo();
  TestMember only(daemons_[0]->socket(), StepHello(32, 0, 1), "n1");
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
  TestMember only(daemons_[0]->socket(), StepHello(32, 0, 1), "n1");
  EXPECT_EQ(only.Run().restore_step, wire::kNoStep);
  EXPECT_EQ(only.Describe(wire::kNoStep).status, MUSTER_E_NOT_FOUND);
  EXPECT_THAT(only.Restore(0), HasSubstr("-5: "));
  EXPECT_THAT(only.ReadRange(wire::kNoStep, 0, 0, 1), HasSubstr("-5: gang 32.0 has no checkpoint yet"));
  only.Succeed();
}

}  // namespace
}  // namespace muster
