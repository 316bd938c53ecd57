#include "daemon/agent/held_shards.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace muster {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

UniqueFd Memory() {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}

class HeldShardsTest : public testing::Test {
 protected:
  // A member's save out of one of its two memories.
  std::shared_ptr<StagedMemory> Save(uint32_t rank, uint64_t generation, uint64_t step,
                                     const UniqueFd& memory, uint64_t bytes = 100) {
    HeldShards::Dropped dropped;
    auto staged = held_.Take(rank, UniqueFd(::dup(memory.get())), &dropped);
    EXPECT_TRUE(staged);
    Shard shard;
    shard.rank = rank;
    shard.bytes = bytes;
    EXPECT_TRUE(held_.Hold({generation, step, 2, shard, *staged}).empty());
    return *staged;
  }

  HeldShards held_;
  const UniqueFd a_ = Memory();
  const UniqueFd b_ = Memory();
};

TEST_F(HeldShardsTest, WhatEarlierGenerationsHaveLeftOfARankIsDroppedForItsNextSave) {
  const auto before = Save(0, 1, 10, a_);
  Save(1, 1, 10, b_);
  EXPECT_TRUE(held_.DropBefore(0, 1).empty());
  EXPECT_EQ(held_.DropBefore(0, 2), HeldShards::Dropped{before});
  EXPECT_EQ(held_.Find(0, 1, 10), nullptr);
  EXPECT_NE(held_.Find(1, 1, 10), nullptr);
  EXPECT_TRUE(held_.DropBefore(5, 2).empty());
}

TEST_F(HeldShardsTest, AMemoryThatComesAgainIsTheSameAndWhatItHeldIsGone) {
  const auto first = Save(0, 1, 10, a_);
  const auto second = Save(0, 1, 20, b_);
  EXPECT_NE(first, second);
  EXPECT_NE(held_.Find(0, 1, 10), nullptr);
  EXPECT_EQ(Save(0, 1, 30, a_), first);
  EXPECT_EQ(held_.Find(0, 1, 10), nullptr);
  EXPECT_NE(held_.Find(0, 1, 20), nullptr);
  EXPECT_NE(held_.Find(0, 1, 30), nullptr);
}

TEST_F(HeldShardsTest, NoMoreMemoriesAreKeptThanAMemberHas) {
  HeldShards::Dropped dropped;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(held_.Take(0, Memory(), &dropped));
  EXPECT_EQ(dropped.size(), 3U);
  EXPECT_FALSE(held_.Take(0, UniqueFd(), &dropped));
}

// A program may open its handle anew, or hand memory over that no library made.
TEST_F(HeldShardsTest, NoMoreShardsAreHeldThanAMemberHasMemories) {
  HeldShards::Dropped dropped;
  const auto slow = held_.Take(0, UniqueFd(::dup(a_.get())), &dropped);
  ASSERT_TRUE(slow);
  for (uint64_t step = 10; step < 15; ++step) Save(0, 1, step, Memory());
  for (uint64_t step = 10; step < 13; ++step) EXPECT_EQ(held_.Find(0, 1, step), nullptr) << step;
  EXPECT_NE(held_.Find(0, 1, 13), nullptr);
  EXPECT_NE(held_.Find(0, 1, 14), nullptr);
  // A write that has taken longer than those of two newer memories.
  EXPECT_EQ(held_.Hold({1, 9, 2, {}, *slow}), HeldShards::Dropped{*slow});
  EXPECT_EQ(held_.Find(0, 1, 9), nullptr);
}

TEST_F(HeldShardsTest, ACommitLetsGoOfWhatIsOlder) {
  Save(0, 1, 10, a_);
  Save(0, 1, 20, b_);
  Save(1, 1, 10, Memory());
  EXPECT_EQ(held_.Committed(1, 20).size(), 2U);
  EXPECT_EQ(held_.Find(0, 1, 10), nullptr);
  EXPECT_EQ(held_.Find(1, 1, 10), nullptr);
  EXPECT_NE(held_.Find(0, 1, 20), nullptr);
  // Steps of another generation are others, whatever their numbers.
  Save(0, 2, 15, a_);
  EXPECT_EQ(held_.Committed(2, 15).size(), 1U);
  EXPECT_NE(held_.Find(0, 2, 15), nullptr);
  EXPECT_EQ(held_.Find(0, 1, 20), nullptr);
}

TEST_F(HeldShardsTest, AGenerationKeepsWhatItStartsFromAndNothingElse) {
  Save(0, 1, 10, a_);
  Save(0, 1, 20, b_);
  Save(1, 1, 10, Memory());
  Save(1, 1, 20, Memory());
  EXPECT_EQ(held_.Begin(1, 10, kNoLimit).size(), 4U + 2) << "four memories, and two shards";
  EXPECT_NE(held_.Find(0, 1, 10), nullptr);
  EXPECT_NE(held_.Find(1, 1, 10), nullptr);
  EXPECT_EQ(held_.Find(0, 1, 20), nullptr);
  // The one after it starts from the same.
  EXPECT_TRUE(held_.Begin(1, 10, kNoLimit).empty());
  EXPECT_NE(held_.Find(0, 1, 10), nullptr);
  EXPECT_EQ(held_.Drop(0, 1, 10).size(), 1U);
  EXPECT_EQ(held_.Find(0, 1, 10), nullptr);
  EXPECT_EQ(held_.Begin(0, 0, kNoLimit).size(), 1U);
  EXPECT_EQ(held_.Find(1, 1, 10), nullptr);
}

TEST_F(HeldShardsTest, NoMoreIsKeptThanAllowed) {
  for (uint32_t rank = 0; rank < 4; ++rank) Save(rank, 1, 10, Memory(), 100);
  (void)held_.Begin(1, 10, 250);
  EXPECT_NE(held_.Find(0, 1, 10), nullptr);
  EXPECT_NE(held_.Find(1, 1, 10), nullptr);
  EXPECT_EQ(held_.Find(2, 1, 10), nullptr);
  EXPECT_EQ(held_.Find(3, 1, 10), nullptr);
  (void)held_.Begin(1, 10, 0);
  EXPECT_EQ(held_.Find(0, 1, 10), nullptr);
}

}  // namespace
}  // namespace muster
