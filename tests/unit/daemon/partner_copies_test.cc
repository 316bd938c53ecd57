#include "daemon/partner/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ceph/catalog/digest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kChunk = 4096;
constexpr uint64_t kMaxShard = 64 * kChunk;

class PartnerCopiesTest : public testing::Test {
 protected:
  void SetUp() override {
    Make(16 * kChunk);
    EXPECT_THAT(copies_->Begin("g", 1, {0, 1}, 0, 0), IsEmpty());
  }
  void Make(uint64_t limit) {
    auto memory = ChunkMemory::Make(limit, [this] { return spare_; });
    ASSERT_TRUE(memory);
    memory_ = *memory;
    copies_ = std::make_unique<PartnerCopies>(memory_, kMaxShard);
  }

  // Of one letter a chunk.
  static Shard ShardOf(uint32_t rank, const std::string& content) {
    Shard shard;
    shard.rank = rank;
    shard.bytes = content.size() * kChunk;
    shard.chunk_bytes = kChunk;
    for (const char letter : content) shard.chunks.push_back(DigestOf(std::string(kChunk, letter)));
    return shard;
  }
  static CopyName NameOf(uint64_t generation, uint64_t step, uint32_t rank = 0) {
    return {"g", generation, step, rank};
  }
  Status Offer(const CopyName& name, const std::string& content) {
    PartnerCopies::Dropped dropped;
    return copies_->Offer(name, ShardOf(name.rank, content), &missing_, &dropped);
  }
  Status PutChunk(const CopyName& name, size_t chunk, char letter) {
    auto room = copies_->RoomFor(kChunk);
    if (!room) return room.error();
    const std::string data(kChunk, letter);
    if (Status written = (*room)->Write(0, std::as_bytes(std::span(data))); !written) return written;
    return copies_->Put(name, chunk, *room);
  }
  Status Keep(const CopyName& name, const std::string& content) {
    if (Status offered = Offer(name, content); !offered) return offered;
    const std::vector<uint64_t> missing = missing_;
    for (size_t run = 0; run < missing.size(); run += 2) {
      for (uint64_t chunk = missing[run]; chunk < missing[run] + missing[run + 1]; ++chunk) {
        if (Status put = PutChunk(name, chunk, content[chunk]); !put) return put;
      }
    }
    return {};
  }
  // What is here of a shard: a letter a chunk, '-' where there is none; "": nothing.
  std::string Kept(const CopyName& name) {
    std::string letters;
    for (const auto& chunk : copies_->Find(name).chunks) {
      std::byte first{'-'};
      if (chunk != nullptr) {
        EXPECT_TRUE(chunk->Read(kChunk - 1, std::span(&first, 1)));
      }
      letters += static_cast<char>(first);
    }
    return letters;
  }

  uint64_t spare_ = UINT64_MAX / 2;
  std::shared_ptr<ChunkMemory> memory_;
  std::unique_ptr<PartnerCopies> copies_;
  std::vector<uint64_t> missing_;
};

TEST_F(PartnerCopiesTest, AShardThatWasTakenIsThereByItsName) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "abc"));
  EXPECT_EQ(Kept(NameOf(1, 10)), "abc");
  EXPECT_EQ(copies_->Find(NameOf(1, 10)).shard->chunks.size(), 3U);
  EXPECT_EQ(Kept(NameOf(1, 11)), "");
  EXPECT_EQ(Kept(NameOf(2, 10)), "");
  EXPECT_EQ(Kept(NameOf(1, 10, 1)), "");
  EXPECT_FALSE(copies_->Find({"other", 1, 10, 0}).shard);
}

TEST_F(PartnerCopiesTest, OnlyWhatChangedIsAskedForAndNeedsRoom) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "abcde"));
  ASSERT_TRUE(Offer(NameOf(1, 20), "aXcYe"));
  EXPECT_THAT(missing_, ElementsAre(1, 1, 3, 1));
  EXPECT_EQ(copies_->bytes(), 3 * kChunk);
  ASSERT_TRUE(Keep(NameOf(1, 20), "aXcYe"));
  EXPECT_EQ(Kept(NameOf(1, 20)), "aXcYe");
  EXPECT_EQ(copies_->bytes(), 5 * kChunk);
  EXPECT_EQ(Kept(NameOf(1, 10)), "");
}

TEST_F(PartnerCopiesTest, ACopyThatDidNotArriveWholeServesWithWhatItHas) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "abc"));
  ASSERT_TRUE(Offer(NameOf(1, 20), "aXY"));
  ASSERT_TRUE(PutChunk(NameOf(1, 20), 2, 'Y'));
  EXPECT_EQ(Kept(NameOf(1, 20)), "a-Y");
  EXPECT_THAT(ChunkRuns(copies_->Find(NameOf(1, 20)).chunks, true), ElementsAre(0, 1, 2, 1));
  // The same shard again, by another connection: what came is not asked for again.
  ASSERT_TRUE(Offer(NameOf(1, 20), "aXY"));
  EXPECT_THAT(missing_, ElementsAre(1, 1));
}

TEST_F(PartnerCopiesTest, AnOlderShardDoesNotTakeTheNewestsPlace) {
  ASSERT_TRUE(Keep(NameOf(1, 20), "ab"));
  const Status older = Offer(NameOf(1, 10), "xy");
  ASSERT_FALSE(older);
  EXPECT_EQ(older.error().code, Errc::kConflict);
  EXPECT_EQ(Kept(NameOf(1, 20)), "ab");
}

TEST_F(PartnerCopiesTest, AStaleGenerationIsRefusedAndWhatItIsSendingGoesNowhere) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "ab"));
  ASSERT_TRUE(Offer(NameOf(1, 20), "cd"));
  ASSERT_THAT(copies_->Begin("g", 2, {0, 1}, 1, 20), IsEmpty());
  EXPECT_EQ(PutChunk(NameOf(1, 20), 0, 'c').error().code, Errc::kConflict);
  EXPECT_EQ(Offer(NameOf(1, 30), "ef").error().code, Errc::kConflict);
  ASSERT_TRUE(Keep(NameOf(2, 30), "gh"));
  EXPECT_THAT(copies_->Begin("g", 1, {0}, 0, 0), IsEmpty());
  EXPECT_EQ(Kept(NameOf(2, 30)), "gh");
}

TEST_F(PartnerCopiesTest, AGenerationKeepsTheCopiesOfWhatItStartsFromOnly) {
  ASSERT_TRUE(Keep(NameOf(1, 10, 0), "ab"));
  ASSERT_TRUE(Keep(NameOf(1, 20, 1), "cd"));
  EXPECT_EQ(copies_->Begin("g", 2, {0}, 1, 20).size(), 2U);
  EXPECT_EQ(Kept(NameOf(1, 10, 0)), "");
  EXPECT_EQ(Kept(NameOf(1, 20, 1)), "cd");
  // Another generation from the same checkpoint.
  EXPECT_THAT(copies_->Begin("g", 3, {0}, 1, 20), IsEmpty());
  EXPECT_EQ(Kept(NameOf(1, 20, 1)), "cd");
  // This node is not rank 1's partner any more: of no use once there is a newer checkpoint.
  EXPECT_THAT(copies_->Committed("g", 2), IsEmpty());
  EXPECT_EQ(copies_->Committed("g", 3).size(), 2U);
  EXPECT_EQ(Kept(NameOf(1, 20, 1)), "");
  EXPECT_EQ(copies_->bytes(), 0U);
}

TEST_F(PartnerCopiesTest, WhatWillBeReplacedStaysAfterACommitForTheChunksThatDoNotChange) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "abc"));
  EXPECT_THAT(copies_->Begin("g", 2, {0}, 1, 10), IsEmpty());
  EXPECT_THAT(copies_->Committed("g", 2), IsEmpty());
  ASSERT_TRUE(Offer(NameOf(2, 20), "abX"));
  EXPECT_THAT(missing_, ElementsAre(2, 1));
}

TEST_F(PartnerCopiesTest, AnEndedGangLeavesNothing) {
  ASSERT_TRUE(Keep(NameOf(1, 10), "abc"));
  EXPECT_EQ(copies_->End("g").size(), 3U);
  EXPECT_EQ(copies_->bytes(), 0U);
  EXPECT_EQ(Offer(NameOf(1, 20), "abc").error().code, Errc::kConflict);
  EXPECT_THAT(copies_->End("g"), IsEmpty());
}

TEST_F(PartnerCopiesTest, MoreThanTheLimitIsRefusedAndOthersAreNotTouched) {
  Make(4 * kChunk);
  EXPECT_THAT(copies_->Begin("g", 1, {0, 1}, 0, 0), IsEmpty());
  ASSERT_TRUE(Keep(NameOf(1, 10, 1), "ab"));
  const Status refused = Offer(NameOf(1, 10, 0), "cde");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("partner_memory"));
  EXPECT_EQ(Kept(NameOf(1, 10, 1)), "ab");
  // What an old copy has is free for the new one: no more than one of each is needed.
  ASSERT_TRUE(Keep(NameOf(1, 10, 0), "cd"));
  ASSERT_TRUE(Keep(NameOf(1, 20, 0), "ef"));
  EXPECT_EQ(copies_->bytes(), 4 * kChunk);
  EXPECT_EQ(copies_->RoomFor(1).error().code, Errc::kExhausted);
}

TEST_F(PartnerCopiesTest, MemoryThatTheNodeCannotSpareIsNotTaken) {
  spare_ = kChunk;
  EXPECT_EQ(Offer(NameOf(1, 10), "ab").error().code, Errc::kExhausted);
  EXPECT_TRUE(Keep(NameOf(1, 10), "a"));
}

TEST_F(PartnerCopiesTest, WhoIsNotThePartnerIsTold) {
  EXPECT_EQ(Offer(NameOf(1, 10, 2), "ab").error().code, Errc::kDenied);
  EXPECT_EQ(Offer({"other", 1, 10, 0}, "ab").error().code, Errc::kConflict);
}

TEST_F(PartnerCopiesTest, NumbersThatDoNotFitAreRefused) {
  PartnerCopies::Dropped dropped;
  const auto code = [&](const Shard& shard) {
    const Status offered = copies_->Offer(NameOf(1, 10), shard, &missing_, &dropped);
    return offered ? std::nullopt : std::optional(offered.error().code);
  };
  const Shard good = ShardOf(0, "abc");
  EXPECT_EQ(code(good), std::nullopt);
  for (const auto& spoil : std::vector<void (*)(Shard&)>{
           [](Shard& shard) { shard.bytes = 0; }, [](Shard& shard) { shard.bytes = UINT64_MAX; },
           [](Shard& shard) { shard.bytes = kMaxShard + 1; }, [](Shard& shard) { shard.chunk_bytes = 0; },
           [](Shard& shard) { shard.chunk_bytes = UINT64_MAX; },
           [](Shard& shard) { shard.chunks.pop_back(); }, [](Shard& shard) { shard.chunks.emplace_back(); },
           [](Shard& shard) { shard.rank = 1; }}) {
    Shard bad = good;
    spoil(bad);
    EXPECT_EQ(code(bad), Errc::kInvalid);
  }
  EXPECT_EQ(copies_->Put(NameOf(1, 10), 3, *copies_->RoomFor(kChunk)).error().code, Errc::kInvalid);
  EXPECT_EQ(copies_->Put(NameOf(1, 10), 0, *copies_->RoomFor(kChunk - 1)).error().code, Errc::kInvalid);
}

TEST_F(PartnerCopiesTest, AChunkHasItsOwnBytesOnly) {
  const auto one = copies_->RoomFor(10);
  const auto two = copies_->RoomFor(10);
  const std::string data(10, 'x');
  EXPECT_TRUE((*one)->Write(0, std::as_bytes(std::span(data))));
  EXPECT_FALSE((*one)->Write(1, std::as_bytes(std::span(data))));
  std::string read(10, '?');
  EXPECT_TRUE((*two)->Write(9, std::as_bytes(std::span(data).first(1))));
  EXPECT_TRUE((*one)->Read(0, std::as_writable_bytes(std::span(read))));
  EXPECT_EQ(read, data);
  EXPECT_FALSE((*one)->Read(10, std::as_writable_bytes(std::span(read).first(1))));
}

}  // namespace
}  // namespace muster
