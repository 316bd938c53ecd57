// min=N: fewer nodes are enough; grow=yes: more are taken back at a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/daemon/gang_rig.h"

namespace muster::gang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GangElastic : public ::testing::Test {
 protected:
  static Settings Growing() {
    Settings settings = Rig::WithSpares(3, 2, 0, 2);
    settings.grow = true;
    return settings;
  }
  GangElastic() { rig.Run(); }
  void LoseOne() {
    rig.Silence(1);
    rig.StopAll();
    rig.ExecuteAll();
  }
  Rig rig{Growing()};
};

TEST_F(GangElastic, WithoutASpareItGoesOnWithFewerNodesAndNewRanks) {
  rig.Silence(1);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2));
  EXPECT_EQ(rig.gang.WorldSize(), 4U);
  EXPECT_EQ(rig.gang.members()[4].rank, 2U);
  EXPECT_FALSE(rig.gang.members()[2].rank);
  EXPECT_THAT(rig.NoteOf("placement"), HasSubstr("without n1"));
}

TEST_F(GangElastic, BelowMinThereIsNoRoom) {
  LoseOne();
  rig.Silence(0);
  rig.StopAll();
  EXPECT_EQ(rig.gang.state(), State::kRequeueing);
  EXPECT_THAT(rig.Did<ReportToJob>()->text,
              HasSubstr("1 of the 2 nodes that it needs are left, and no spare"));
}

TEST_F(GangElastic, ASpareIsTakenBeforeItShrinks) {
  Rig with(Rig::WithSpares(4, 1, 1, 2));
  with.Run();
  with.Silence(0);
  with.StopAll();
  EXPECT_THAT(with.gang.active(), ElementsAre(3, 1, 2));
}

TEST_F(GangElastic, MinStartsWithoutThoseThatDoNotJoinInTime) {
  Rig late(Rig::WithSpares(3, 1, 0, 2));
  late.Join(0);
  late.Join(2);
  EXPECT_EQ(late.gang.state(), State::kJoining);
  late.Feed(TimerFired{Timer::kJoin});
  EXPECT_EQ(late.gang.state(), State::kStarting);
  EXPECT_THAT(late.gang.active(), ElementsAre(0, 2));
}

TEST_F(GangElastic, ItGrowsAtTheNextCheckpointWhenANodeIsBack) {
  LoseOne();
  rig.Join(1, MemberState::kStopped, 1);
  EXPECT_EQ(rig.gang.state(), State::kRunning) << "nothing is stopped for it before a checkpoint";
  EXPECT_THAT(rig.NoteOf("growing"), HasSubstr("n1 is added"));
  ASSERT_TRUE(rig.Did<TellMembers>());
  EXPECT_TRUE(rig.Did<TellMembers>()->save);
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
  rig.StopAll();
  ASSERT_TRUE(rig.Did<StartGeneration>());
  EXPECT_TRUE(rig.Did<StartGeneration>()->durable);
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 1));
  EXPECT_EQ(rig.gang.user_faults(), 0U);
}

TEST_F(GangElastic, GrowthIsNoRestartWithoutProgress) {
  LoseOne();
  for (uint32_t i = 0; i < 3 * kMaxRestartsWithoutProgress; ++i) {
    rig.Join(1, MemberState::kStopped, 1);
    rig.Feed(CheckpointCommitted{1});
    rig.StopAll();
    rig.ExecuteAll();
    ASSERT_EQ(rig.gang.state(), State::kRunning) << i;
    ASSERT_EQ(rig.gang.active().size(), 3U);
    rig.Feed(TimerFired{Timer::kProgress});
    LoseOne();
  }
}

TEST_F(GangElastic, AFaultBringsTheGrowthForward) {
  LoseOne();
  rig.Join(1, MemberState::kStopped, 1);
  rig.Exit(0, ExitCode(1));
  rig.StopAll();
  EXPECT_THAT(rig.gang.active(), ElementsAre(0, 2, 1));
  rig.ExecuteAll();
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning) << "it has grown already";
}

TEST_F(GangElastic, ACheckpointAfterTheNodeHasGoneAgainStopsNothing) {
  LoseOne();
  rig.Join(1, MemberState::kStopped, 1);
  rig.Feed(NodeLeft{1});
  rig.Feed(CheckpointCommitted{10});
  EXPECT_EQ(rig.gang.state(), State::kRunning);
  rig.Join(1, MemberState::kStopped, 1);
  rig.Feed(CheckpointCommitted{11});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangElastic, ANodeThatIsBackWhileTheGenerationStartsIsTakenAtACheckpointToo) {
  rig.Silence(1);
  rig.StopAll();
  rig.Join(1, MemberState::kStopped, 1);
  rig.ExecuteAll();
  rig.Feed(CheckpointCommitted{1});
  EXPECT_EQ(rig.gang.state(), State::kStopping);
}

TEST_F(GangElastic, WithoutGrowItStaysSmall) {
  Rig fixed(Rig::WithSpares(3, 2, 0, 2));
  fixed.Run();
  fixed.Silence(1);
  fixed.StopAll();
  fixed.ExecuteAll();
  fixed.Join(1, MemberState::kStopped, 1);
  EXPECT_FALSE(fixed.Did<TellMembers>());
  fixed.Feed(CheckpointCommitted{10});
  EXPECT_EQ(fixed.gang.state(), State::kRunning);
  EXPECT_TRUE(fixed.gang.IsSpare(1));
}

TEST_F(GangElastic, AnExcludedNodeThatIsGivenBackMakesItGrow) {
  rig.Feed(NodeSick{1, "GPU 3 fell off the bus"});
  rig.StopAll();
  rig.ExecuteAll();
  ASSERT_EQ(rig.gang.active().size(), 2U);
  rig.Feed(NodeReturned{1});
  EXPECT_NE(rig.NoteOf("growing"), "");
  rig.Feed(CheckpointCommitted{10});
  rig.StopAll();
  EXPECT_EQ(rig.gang.active().size(), 3U);
}

}  // namespace
}  // namespace muster::gang
