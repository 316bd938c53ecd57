#include "daemon/coordinator/record_of_gang.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/unit/daemon/gang_rig.h"

namespace muster {
namespace {

using gang::Rig;

constexpr char kHost[] = "n1";

GangJob Job() {
  GangJob job;
  job.job_id = 12;
  job.submission = 7;
  job.launched_ns = 5;
  job.task_count = 5;
  job.hosts = {"n0", "n1", "n2", "n3", "n4"};
  return job;
}

// Each of its fields is another than that of a gang that begins.
gang::Memory Old() {
  gang::Memory memory;
  memory.generation = 6;
  memory.running = true;
  memory.user_fault_times = {3, 4};
  memory.progress_since_user_fault = true;
  memory.restarts["user"] = 2;
  memory.restarts_without_progress = 2;
  memory.max_step = 80;
  memory.last_signature = "exit 1";
  memory.active = {3, 1};
  memory.before = {1, 2};
  memory.placed = 5;
  memory.lost = {2};
  memory.ended = {4};
  memory.away = {1};
  memory.excluded = {{0, "sick"}};
  memory.draining = {{3, "drained"}};
  memory.task_counts = {1, 1, 1, 1, 1};
  memory.succeeding = true;
  memory.terminating = true;
  memory.warned = gang::CauseClass::kPreemption;
  return memory;
}

class RecordOfGang : public ::testing::Test {
 protected:
  // Through the store's text.
  GangRecord Recorded(const gang::Gang* gang) {
    const std::string host = kHost;
    const GangRecord record = RecordOf({job_, host, fence_, gang, starts_, terms_});
    auto read = GangRecord::Decode(record.Encode());
    EXPECT_TRUE(read) << read.error().message;
    return read ? *std::move(read) : GangRecord();
  }

  const GangJob job_ = Job();
  RecordFence fence_;
  Starts starts_;
  Terms terms_{1, {1, 2, 3, 4, 0}, {}};
};

TEST_F(RecordOfGang, TheNextCoordinatorsStateMachineRemembersAllThatThisOneDoes) {
  const Rig rig(Rig::SettingsOf(5, 1), Old());
  const gang::Memory before = rig.gang.Remember();
  const gang::Memory after = MemoryOf(Recorded(&rig.gang));
  EXPECT_EQ(after.generation, 6U);
  EXPECT_TRUE(after.running);
  EXPECT_EQ(after.user_fault_times, Old().user_fault_times);
  EXPECT_TRUE(after.progress_since_user_fault);
  EXPECT_EQ(after.restarts, Old().restarts);
  EXPECT_EQ(after.restarts_without_progress, 2U);
  EXPECT_EQ(after.max_step, 80U);
  EXPECT_EQ(after.last_signature, "exit 1");
  EXPECT_EQ(after.active, Old().active);
  EXPECT_EQ(after.before, Old().before);
  EXPECT_EQ(after.placed, 5U);
  EXPECT_EQ(after.lost, Old().lost);
  EXPECT_EQ(after.ended, before.ended);
  EXPECT_EQ(after.ended, Old().ended);
  EXPECT_EQ(after.away, before.away);
  EXPECT_EQ(after.excluded, Old().excluded);
  EXPECT_EQ(after.draining, Old().draining);
  EXPECT_EQ(after.task_counts, Old().task_counts);
  EXPECT_TRUE(after.succeeding);
  EXPECT_TRUE(after.terminating);
  EXPECT_EQ(after.warned, Old().warned);
  EXPECT_FALSE(after.requeueing);
}

TEST_F(RecordOfGang, TheNodesBeforeAreRememberedWhileAGenerationOnOthersStarts) {
  Rig rig(Rig::WithSpares(3, 1, 1));
  rig.Run();
  rig.Exit(0, 1 << 8);
  for (const uint32_t node : {0, 2}) rig.Stopped(node);
  rig.Exiting(1);
  rig.Feed(gang::TimerFired{gang::Timer::kExiting});
  const gang::Memory memory = MemoryOf(Recorded(&rig.gang));
  EXPECT_EQ(memory.before, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(memory.placed, 2U);
}

TEST_F(RecordOfGang, ARequeueIsRemembered) {
  gang::Memory memory = Old();
  memory.requeueing = true;
  const Rig rig(Rig::SettingsOf(5, 1), memory);
  GangRecord record = Recorded(&rig.gang);
  record.state = gang::ToString(gang::State::kRequeueing);
  EXPECT_TRUE(MemoryOf(record).requeueing);
}

TEST_F(RecordOfGang, TheNextTermAsksTheWitnessesOfAllTermsAndStartsFromTheSameCheckpoint) {
  const Rig rig(Rig::SettingsOf(5, 1), Old());
  terms_.Take({}, Terms::Found{{{0, 1, 2}, {{3}}}, {}}, rig.gang, {});
  starts_.SetFrom(40);
  fence_.Take({9, 6});
  const GangRecord record = Recorded(&rig.gang);
  EXPECT_TRUE(record.IsOf(job_));
  EXPECT_EQ(record.term, 9U);
  EXPECT_EQ(record.coordinator, kHost);
  const auto terms = TermsOf(record);
  ASSERT_TRUE(terms);
  EXPECT_EQ(terms->sets.witnesses, terms_.sets().witnesses);
  EXPECT_EQ(terms->sets.former, terms_.sets().former);
  EXPECT_EQ(terms->away, record.away);
  Starts next;
  next.SetNewest(50);
  Inherit(record, &next);
  EXPECT_EQ(next.from(), 40U);
  EXPECT_TRUE(next.Prepare(6, 10).inherited);
  EXPECT_EQ(next.from(), 40U);
}

TEST_F(RecordOfGang, UnderTheRecordOfAGangThatJoinsNothingHasRun) {
  const GangRecord record = Recorded(nullptr);
  EXPECT_TRUE(Is(record, gang::State::kJoining));
  EXPECT_FALSE(MemoryOf(record).running);
  EXPECT_FALSE(TermsOf(record));
  Starts starts;
  Inherit(record, &starts);
  EXPECT_FALSE(starts.from());
}

}  // namespace
}  // namespace muster
