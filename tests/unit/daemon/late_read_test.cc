// What members read of checkpoints while others are committed, removed, or saved anew: through two musterds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "client/muster.h"
#include "daemon/service/checkpoint_changes.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kSoon = std::chrono::seconds(60);
const std::string kNotFound = std::to_string(MUSTER_E_NOT_FOUND) + ": there is no checkpoint ";

// Three checkpoints are kept (the default).
class LateReads : public TwoDaemons {
 protected:
  void SetUp() override {
    store_ = memory_;
    TwoDaemons::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    first_ = std::make_unique<TestMember>(daemons_[0]->socket(), StepHello(31, 0, 2), "n[1-2]");
    second_ = std::make_unique<TestMember>(daemons_[1]->socket(), StepHello(31, 1, 2), "n[1-2]");
    first_->Run();
    second_->Run();
    Commit(10);
    first_->Die();
    first_->ExpectStop();
    second_->ExpectStop();
    EXPECT_EQ(first_->Run().restore_step, 10U);
    EXPECT_EQ(second_->Run().restore_step, 10U);
  }
  // In the generation that runs.
  void Commit(uint64_t step, const std::string& what = "of step ") {
    const std::string content = what + std::to_string(step);
    first_->Save(step, "zero " + content);
    second_->Save(step, "one " + content);
    first_->ExpectCommitted();
    second_->ExpectCommitted();
  }
  void CommitUpTo(uint64_t last) {
    for (uint64_t step = 11; step <= last; ++step) Commit(step);
  }
  void ExpectStartIsRead() {
    EXPECT_EQ(first_->Describe(wire::kNoStep).status, MUSTER_OK) << first_->rest();
    EXPECT_EQ(first_->ReadRange(wire::kNoStep, 1, 0, 3), "one") << first_->rest();
    EXPECT_EQ(first_->Restore(1), "one of step 10");
    EXPECT_EQ(first_->Restore(0), "zero of step 10");
  }
  // The members run on, and what they save is committed. A checkpoint that was said to be bad is marked before that.
  void ExpectNothingHappened(uint64_t next) {
    Commit(next);
    const auto head = catalog_.Load();
    ASSERT_TRUE(head) << head.error().message;
    EXPECT_EQ(head->fence.generation, 2U);
    for (const CheckpointInfo& checkpoint : head->checkpoints)
      EXPECT_TRUE(checkpoint.good) << checkpoint.step << ": " << checkpoint.reason;
  }
  std::vector<uint64_t> Steps() {
    std::vector<uint64_t> steps;
    const auto head = catalog_.Load();
    for (const CheckpointInfo& checkpoint : head->checkpoints) steps.push_back(checkpoint.step);
    return steps;
  }
  CheckpointsOf Ours() { return {memory_, engine_, "u1000", "name-elastic", "31.0"}; }

  // Of rank 0, saved by a generation.
  std::string ChunkOf(uint64_t step, uint64_t generation) {
    Fence fence = catalog_.Load()->fence;
    fence.generation = generation;
    return ChunkName(ShardPrefix("name-elastic", step, fence, 0), 0);
  }
  // The second member asks for the first's shard, and its musterd is not answered before the chunk is gone.
  void AskSlowly(uint64_t step, uint64_t generation) {
    const std::string object = ChunkOf(step, generation);
    ASSERT_TRUE(memory_->Locked([&](auto& objects) { return objects.contains(object); })) << object;
    slow_ = object;
    memory_->SetFault([this, object](const std::string& operation, const std::string& name) -> Status {
      if (operation != "read" || name != object) return {};
      reached_.set_value();
      EXPECT_EQ(go_.get_future().wait_for(kSoon), std::future_status::ready);
      return {};
    });
    second_->AskRange(step, 0, 0, 100);
    ASSERT_EQ(reached_.get_future().wait_for(kSoon), std::future_status::ready);
  }
  std::string AnswerWhenItIsGone() {
    const auto end = std::chrono::steady_clock::now() + kSoon;
    const auto there = [&] {
      const auto names = memory_->List("u1000", slow_);
      return !names || !names->empty();
    };
    while (there() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(there());
    go_.set_value();
    const std::string answer = second_->Range();
    memory_->SetFault(nullptr);
    return answer;
  }

  const std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
  Catalog catalog_{memory_, "u1000", "name-elastic"};
  Engine engine_{memory_, {}};
  std::unique_ptr<TestMember> first_;
  std::unique_ptr<TestMember> second_;
  std::string slow_;
  std::promise<void> reached_;
  std::promise<void> go_;
};

TEST_F(LateReads, WhatAGenerationStartedFromIsThereAsLongAsItRuns) {
  CommitUpTo(15);
  EXPECT_THAT(Steps(), ElementsAre(10, 13, 14, 15));
  ExpectStartIsRead();
  // The next generation starts from another one.
  ExpectNothingHappened(16);
  second_->Die();
  first_->ExpectStop();
  second_->ExpectStop();
  EXPECT_EQ(first_->Run().restore_step, 16U);
  EXPECT_EQ(second_->Run().restore_step, 16U);
  Commit(17);
  EXPECT_THAT(Steps(), ElementsAre(15, 16, 17));
}

TEST_F(LateReads, WhatAGenerationStartedFromIsKnownToACoordinatorThatTakesOver) {
  daemons_[0].reset();
  daemons_[1].reset();
  StartDaemon(0);
  StartDaemon(1);
  first_->Rejoin();
  second_->Rejoin();
  first_->GreetAgain();
  second_->GreetAgain();
  CommitUpTo(15);
  EXPECT_THAT(Steps(), ElementsAre(10, 13, 14, 15));
  ExpectStartIsRead();
  ExpectNothingHappened(16);
}

TEST_F(LateReads, WhatRetentionHasRemovedIsNotFound) {
  CommitUpTo(15);
  EXPECT_EQ(first_->Describe(11).status, MUSTER_E_NOT_FOUND);
  EXPECT_THAT(first_->ReadRange(11, 1, 0, 3), HasSubstr(kNotFound + "11"));
  EXPECT_THAT(first_->Restore(1, 11), HasSubstr(kNotFound + "11"));
  ExpectNothingHappened(16);
}

TEST_F(LateReads, WhatIsRemovedWhileItIsReadIsNotFound) {
  CommitUpTo(12);
  AskSlowly(11, 2);
  for (const uint64_t step : {13, 14, 15}) Commit(step);
  EXPECT_THAT(AnswerWhenItIsGone(), HasSubstr(kNotFound + "11"));
  ExpectNothingHappened(16);
}

// Its step names another checkpoint then, which is as good as its own chunks are.
TEST_F(LateReads, WhatIsSavedAnewWhileItIsReadIsReadAnew) {
  AskSlowly(10, 1);
  Commit(10, "anew of step ");
  EXPECT_EQ(AnswerWhenItIsGone(), "zero anew of step 10");
  EXPECT_EQ(first_->Restore(1), "one anew of step 10");
  ExpectNothingHappened(11);
}

// Nor does it send the gang back, though it is of the step from which that started, when it is damaged.
TEST_F(LateReads, WhatThisGenerationHasSavedIsTheProgramsOwnQuestion) {
  Commit(10, "anew of step ");
  const std::string object = ChunkOf(10, 2);
  memory_->Locked([&](auto& objects) { objects.at(object).front() ^= 1; });
  EXPECT_THAT(second_->Restore(0), HasSubstr(std::to_string(MUSTER_E_CORRUPT) + ": "));
  ExpectNothingHappened(11);
}

TEST_F(LateReads, APersonMayDeleteWhatAGenerationStartedFromButPruningKeepsIt) {
  CommitUpTo(15);
  EXPECT_EQ((*PruneCheckpoints(Ours(), 1))["removed"], nlohmann::json({13}));
  EXPECT_THAT(Steps(), ElementsAre(10, 14, 15));
  ExpectStartIsRead();
  EXPECT_TRUE(DeleteCheckpoint(Ours(), 10));
  EXPECT_EQ(first_->Describe(wire::kNoStep).status, MUSTER_E_NOT_FOUND);
  EXPECT_THAT(first_->ReadRange(10, 1, 0, 3), HasSubstr(kNotFound + "10"));
  EXPECT_THAT(first_->Restore(1), HasSubstr(kNotFound + "10"));
  ExpectNothingHappened(16);
}

}  // namespace
}  // namespace muster
