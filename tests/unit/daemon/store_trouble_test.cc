// Gangs whose store does not do what it is asked to, and members that ask too much of it: through two musterds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "client/muster.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr auto kSoonEnough = std::chrono::seconds(60);

class StoreTrouble : public TwoDaemons {
 protected:
  void SetUp() override {
    store_ = memory_;
    TwoDaemons::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    first_ = std::make_unique<TestMember>(daemons_[0]->socket(), StepHello(31, 0, 2), "n[1-2]");
    second_ = std::make_unique<TestMember>(daemons_[1]->socket(), StepHello(31, 1, 2), "n[1-2]");
    Run();
  }
  // Gives the step that the generation starts from.
  uint64_t Run() {
    const uint64_t step = first_->Run().restore_step;
    EXPECT_EQ(second_->Run().restore_step, step);
    return step;
  }
  void ExpectStop() {
    first_->ExpectStop();
    second_->ExpectStop();
  }
  void Commit(uint64_t step) {
    const std::string content = " of step " + std::to_string(step);
    first_->Save(step, "zero" + content);
    second_->Save(step, "one" + content);
    first_->ExpectCommitted();
    second_->ExpectCommitted();
  }
  // What the store says when the gang's head is to be changed.
  void RefuseChanges(const std::shared_ptr<std::atomic<int>>& times, Errc code) {
    memory_->SetFault([times, code](const std::string& operation, const std::string& name) -> Status {
      if (operation != "update_head" || !name.starts_with("gang/") || times->fetch_sub(1) <= 0) return {};
      return Error{code, "the store refuses"};
    });
  }
  // Calls `look` with the bytes of a shard's object; false when it is not there.
  bool WithObjectOf(uint64_t step, uint32_t rank, const std::function<void(std::string&)>& look) {
    return memory_->Locked([&](std::map<std::string, std::string>& objects) {
      for (auto& [name, bytes] : objects) {
        const auto of = ParseObjectName("name-elastic", name);
        if (!of || of->step != step || !name.ends_with("/" + std::to_string(rank) + ".0")) continue;
        look(bytes);
        return true;
      }
      return false;
    });
  }
  bool HasObjectOf(uint64_t step, uint32_t rank) {
    return WithObjectOf(step, rank, [](const std::string& /*bytes*/) {});
  }

  const std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
  std::unique_ptr<TestMember> first_;
  std::unique_ptr<TestMember> second_;
};

TEST_F(StoreTrouble, ACheckpointThatCannotBeMarkedBadAtOnceLeavesTheOneBeforeIt) {
  Commit(10);
  Commit(20);
  first_->Die();
  ExpectStop();
  ASSERT_EQ(Run(), 20U);
  ASSERT_TRUE(WithObjectOf(20, 1, [](std::string& bytes) { bytes.front() ^= 1; }));
  const auto times = std::make_shared<std::atomic<int>>(2);
  RefuseChanges(times, Errc::kUnavailable);
  EXPECT_THAT(first_->Restore(1), HasSubstr(std::to_string(MUSTER_E_CORRUPT) + ": "));
  ExpectStop();
  EXPECT_EQ(Run(), 10U);
  EXPECT_LE(*times, 0);
  EXPECT_EQ(first_->Restore(1), "one of step 10");
}

// A directory on a full disk; in RADOS heads have room of their own.
TEST_F(StoreTrouble, AFullStoreEndsNoGangAndWhatItHasToKeepIsWrittenWhenThereIsRoom) {
  Commit(10);
  const auto times = std::make_shared<std::atomic<int>>(1'000'000);
  RefuseChanges(times, Errc::kExhausted);
  daemons_[1].reset();  // which coordinates
  StartDaemon(1);
  second_->Rejoin();
  const auto asked = [&] { return 1'000'000 - *times; };
  const auto end = steady_clock::now() + kSoonEnough;
  while (asked() < 2 && steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_GE(asked(), 2);
  *times = 0;
  second_->GreetAgain();
  Commit(11);
  *times = 2;
  first_->Die();
  ExpectStop();
  EXPECT_EQ(Run(), 11U);
  Commit(12);
}

// Old checkpoints go slowly; who commits faster waits for that, but not who has to start again.
TEST_F(StoreTrouble, TheRecordOfARestartWaitsForNoRemovals) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future();
  memory_->SetFault([gone](const std::string& operation, const std::string& /*name*/) -> Status {
    if (operation == "remove") gone.wait();
    return {};
  });
  // Three are kept, one is being removed, and four may wait: the last commit is done, and nobody begins another.
  for (uint64_t step = 1; step <= 9; ++step) Commit(step);
  first_->Die();
  ExpectStop();
  EXPECT_EQ(Run(), 9U);
  const auto recorded = [&] {
    const auto head = Catalog(memory_, "u1000", "name-elastic").Load();
    return head && head->fence.generation == 2;
  };
  const auto end = steady_clock::now() + kSoonEnough / 3;
  while (!recorded() && steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(recorded());
  go.set_value();
  Commit(10);
}

// Removed, they would be missing when it does.
TEST_F(StoreTrouble, WhatACommitMayStillListWhenTheGangEndsIsNotRemoved) {
  Commit(10);
  memory_->SetFault([](const std::string& operation, const std::string& name) -> Status {
    if (operation != "write" || !name.ends_with("/manifest")) return {};
    return Error{Errc::kUnavailable, "the store does not answer"};
  });
  for (TestMember* member : {first_.get(), second_.get()}) {
    member->Save(11, "complete");
    member->ExpectDurable(MUSTER_OK);
  }
  for (TestMember* member : {first_.get(), second_.get()}) member->Exit();
  for (TestMember* member : {first_.get(), second_.get()}) member->ExpectFinish();
  first_.reset();
  second_.reset();
  std::this_thread::sleep_for(std::chrono::seconds(4));  // the end removes after two
  EXPECT_TRUE(HasObjectOf(11, 0));
  EXPECT_TRUE(HasObjectOf(11, 1));
}

TEST_F(StoreTrouble, ASaveThatIsDelayedIsSaidToBeSoOnTheNextConnectionToo) {
  const auto refused = std::make_shared<std::atomic<bool>>(true);
  memory_->SetFault([refused](const std::string& operation, const std::string&) -> Status {
    if (operation != "write" || !*refused) return {};
    return Error{Errc::kExhausted, "the store is full"};
  });
  const std::string content = "zero";
  const UniqueFd memory = SealedMemory(content);
  first_->HandOver(1, content.size(), memory);
  EXPECT_THAT(first_->ExpectDelayed(), HasSubstr("the store is full"));
  first_->GreetAgain();
  first_->HandOver(1, content.size(), memory);
  EXPECT_THAT(first_->ExpectDelayed(), HasSubstr("the store is full"));
  *refused = false;
}

// A read that was asked for over a connection that has broken answers nobody: the member has asked again.
TEST_F(StoreTrouble, TheAnswerToAnEarlierConnectionIsNotTakenForTheNextQuestions) {
  first_->Save(1, "0123456789");
  second_->Save(1, "abcdefghij");
  first_->ExpectCommitted();
  second_->ExpectCommitted();
  std::promise<void> release;
  const auto asked = std::make_shared<std::atomic<int>>(0);
  memory_->SetFault([asked, go = release.get_future().share()](const std::string& operation,
                                                               const std::string& name) -> Status {
    if (operation == "read" && name.ends_with(".0") && ++*asked == 1) go.wait();
    return {};
  });
  first_->AskRange(1, 0, 0, 3);
  const auto end = steady_clock::now() + kSoonEnough;
  while (*asked < 1 && steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  first_->GreetAgain();
  first_->AskRange(1, 0, 0, 3);
  EXPECT_EQ(first_->Range(), "012");
  first_->AskRange(1, 1, 5, 3);
  release.set_value();
  EXPECT_EQ(first_->Range(), "fgh");
  EXPECT_EQ(first_->Describe(1).world_size, 2U) << "nothing else was said";
}

// muster-door has died, and not musterd. A member that is told of an error would write its next step over the memory.
TEST_F(StoreTrouble, ASaveThatIsHandedOverAgainWhileItIsWrittenIsAnsweredWhenItIs) {
  std::promise<void> release;
  memory_->SetFault(
      [go = release.get_future().share()](const std::string& operation, const std::string&) -> Status {
        if (operation == "write") go.wait();
        return {};
      });
  const std::string content = "zero";
  const UniqueFd memory = SealedMemory(content);
  first_->HandOver(1, content.size(), memory);
  first_->GreetAgain();
  first_->HandOver(1, content.size(), memory);
  EXPECT_EQ(first_->Describe(wire::kNoStep).status, MUSTER_E_NOT_FOUND)
      << "the next answer is not of the save";
  release.set_value();
  second_->Save(1, "one");
  first_->ExpectCommitted();
  second_->ExpectCommitted();
}

TEST_F(StoreTrouble, AConnectionThatComesAgainHasNoMoreSavesOnTheirWayThanOneThatStays) {
  std::promise<void> release;
  const auto held = std::make_shared<std::atomic<int>>(0);
  memory_->SetFault(
      [held, go = release.get_future().share()](const std::string& operation, const std::string&) -> Status {
        if (operation != "write") return {};
        ++*held;
        go.wait();
        return {};
      });
  first_->Save(1, "a");
  first_->Save(2, "b");
  const auto end = steady_clock::now() + kSoonEnough;
  while (*held < 2 && steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(*held, 2);
  first_->GreetAgain();
  first_->Save(3, "c");
  first_->ExpectDurable(MUSTER_E_BUSY);
  release.set_value();
}

// A directory that is not mounted on one of the nodes: the manifest would name a shard that no other node can read.
TEST_F(StoreTrouble, NoCheckpointIsMadeOfShardsInTwoStores) {
  Commit(1);
  daemons_[0].reset();
  const auto other = std::make_shared<MemoryStore>();
  other->SetId("memory:2");
  store_ = other;
  StartDaemon(0);
  first_->Return();
  EXPECT_THAT(first_->Restore(0, 1), HasSubstr("this node has another store")) << "which has no checkpoint";
  second_->Save(2, "one");
  second_->ExpectDurable(MUSTER_OK);
  first_->Save(2, "zero");
  first_->ExpectDurable(MUSTER_E_STORE);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE),
                HasSubstr("this node has another store (memory, memory:2)"));
  EXPECT_TRUE(other->objects().empty()) << "nothing was written there";
}

TEST_F(StoreTrouble, AMemberThatSavesAloneIsToldBeforeItFillsTheStore) {
  clock_.Stop();
  for (uint64_t step = 1; step <= 64; ++step) {
    first_->Save(step, "alone");
    first_->ExpectDurable(MUSTER_OK);
  }
  // As one whose coordinator may have been away a moment ago.
  first_->Save(65, "alone");
  first_->ExpectDurable(MUSTER_OK);
  clock_.Move(std::chrono::seconds(11));
  first_->Save(66, "alone");
  first_->ExpectDurable(MUSTER_E_INVALID);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("64 saves of rank 0 wait for other members'"));
}

}  // namespace
}  // namespace muster
