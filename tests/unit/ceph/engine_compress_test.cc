// Shards that are compressed on their way to the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/chunk_samples.h"
#include "tests/unit/ceph/engine_rig.h"
#include "tests/unit/ceph/memory_store.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr size_t kChunk = 64 * 1024;

EngineOptions Compressing(bool compress = true) {
  EngineOptions options = Small();
  options.chunk_bytes = kChunk;
  options.compress = compress;
  return options;
}

class EngineCompress : public testing::Test {
 protected:
  static size_t Encoded(const Shard& shard) {
    size_t count = 0;
    for (uint64_t i = 0; i < shard.chunks.size(); ++i) count += shard.EncodingOf(i).width != 0 ? 1 : 0;
    return count;
  }
  void ExpectSizesAreTheObjects(const Shard& shard) {
    for (uint64_t i = 0; i < shard.chunks.size(); ++i) {
      const std::string* object = store_->Bytes(shard.ObjectOf(i));
      ASSERT_NE(object, nullptr) << i;
      EXPECT_EQ(object->size(), shard.StoredBytesOf(i)) << i;
    }
  }
  void ExpectReads(Engine& engine, const Shard& shard, const std::string& bytes) {
    const auto memory = Read(engine, shard);
    ASSERT_TRUE(memory) << memory.error().message;
    EXPECT_TRUE(Contents(*memory) == bytes);
  }

  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Engine engine_{store_, Compressing()};
  Engine plain_engine_{store_, Compressing(false)};
};

TEST_F(EngineCompress, WhatCompressesIsStoredSmallerAndReadBack) {
  const std::string bytes =
      Float32Bytes(10 * kChunk) + TextBytes(3 * kChunk) + Bfloat16Bytes(3 * kChunk + 17);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard) << shard.error().message;
  EXPECT_EQ(Encoded(*shard), shard->chunks.size() - 1)
      << "the last one is too short, whenever it has its turn";
  ExpectSizesAreTheObjects(*shard);
  EXPECT_EQ(shard->bytes, bytes.size());
  EXPECT_EQ(shard->chunks[1], DigestOf(std::string_view(bytes).substr(kChunk, kChunk))) << "of plain bytes";
  ExpectReads(engine_, *shard, bytes);
  ExpectReads(plain_engine_, *shard, bytes);
}

TEST_F(EngineCompress, PartsAreReadOutOfCompressedChunks) {
  const std::string bytes = Float32Bytes(4 * kChunk + 99);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  ASSERT_GT(Encoded(*shard), 0U);
  for (const size_t begin : {size_t{0}, size_t{1}, kChunk, 2 * kChunk - 3, bytes.size() - 5}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{5}, kChunk + 7, 3 * kChunk}) {
      if (begin + size > bytes.size()) continue;
      const auto memory = ReadRange(engine_, *shard, begin, size);
      ASSERT_TRUE(memory) << memory.error().message;
      EXPECT_TRUE(Contents(*memory) == bytes.substr(begin, size)) << begin << " " << size;
    }
  }
}

TEST_F(EngineCompress, WhatDoesNotCompressIsStoredAsItIs) {
  const std::string bytes = NoiseBytes(5 * kChunk + 1);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  EXPECT_TRUE(shard->encodings.empty());
  EXPECT_TRUE(*store_->Bytes(shard->ObjectOf(1)) == bytes.substr(kChunk, kChunk));
  ExpectReads(engine_, *shard, bytes);
}

// The samples promise much, the rest does not keep it: what is stored is the chunk as it was.
TEST_F(EngineCompress, AChunkWhoseSamplesMisleadIsStoredAsItIs) {
  EngineOptions options = Compressing();
  options.chunk_bytes = 1 << 20;
  Engine engine(store_, options);
  std::string bytes = NoiseBytes(1 << 20);
  for (const size_t at : {size_t{0}, ((size_t{1} << 20) - 16'384) / 2, (size_t{1} << 20) - 16'384})
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), 16'384, '\0');
  const auto shard = Write(engine, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  EXPECT_TRUE(shard->encodings.empty());
  EXPECT_TRUE(*store_->Bytes(shard->ObjectOf(0)) == bytes);
}

TEST_F(EngineCompress, NothingIsCompressedUnasked) {
  const std::string bytes = TextBytes(3 * kChunk);
  const auto shard = Write(plain_engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  EXPECT_TRUE(shard->encodings.empty());
  EXPECT_TRUE(*store_->Bytes(shard->ObjectOf(0)) == bytes.substr(0, kChunk));
}

TEST_F(EngineCompress, SharedChunksAreEncodedAsTheirObjectsAre) {
  for (const bool first_compresses : {true, false}) {
    Engine& first = first_compresses ? engine_ : plain_engine_;
    Engine& second = first_compresses ? plain_engine_ : engine_;
    std::string bytes = Float32Bytes(4 * kChunk);
    const auto base = Write(first, Memory(bytes), bytes.size(), 0, first_compresses ? 100 : 300);
    ASSERT_TRUE(base);
    bytes.replace(2 * kChunk, 100, NoiseBytes(100));
    const auto shard = Write(second, Memory(bytes), bytes.size(), 0, first_compresses ? 101 : 301,
                             {std::make_shared<const Shard>(*base), 1000});
    ASSERT_TRUE(shard) << shard.error().message;
    for (const uint64_t chunk : {0, 1, 3}) {
      EXPECT_EQ(shard->ObjectOf(chunk), base->ObjectOf(chunk));
      EXPECT_EQ(shard->EncodingOf(chunk), base->EncodingOf(chunk));
      EXPECT_EQ(shard->EncodingOf(chunk).width != 0, first_compresses);
    }
    EXPECT_EQ(shard->PrefixOf(2), shard->prefix);
    EXPECT_EQ(shard->EncodingOf(2).width != 0, !first_compresses);
    ExpectSizesAreTheObjects(*shard);
    ExpectReads(second, *shard, bytes);
  }
}

TEST_F(EngineCompress, TheMemoryOfACompressedShardIsStillKnown) {
  const std::string bytes = TextBytes(3 * kChunk);
  auto memory = StagedMemory::Take(Memory(bytes));
  ASSERT_TRUE(memory);
  std::promise<Result<Shard>> written;
  engine_.WriteShard("u1", ShardPrefix("k", 100, kFence, 0), 0, **memory, bytes.size(), {},
                     [&](Result<Shard> shard) { written.set_value(std::move(shard)); });
  const auto shard = written.get_future().get();
  ASSERT_TRUE(shard);
  ASSERT_GT(Encoded(*shard), 0U);
  std::promise<Status> checked;
  engine_.CheckStaged(*shard, **memory, [&](Status status) { checked.set_value(std::move(status)); });
  const Status status = checked.get_future().get();
  EXPECT_TRUE(status) << status.error().message;
}

TEST_F(EngineCompress, DamageToACompressedChunkIsFoundAndNamed) {
  const std::string bytes = Float32Bytes(3 * kChunk);
  const auto shard = Write(engine_, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard);
  ASSERT_NE(shard->EncodingOf(1).width, 0U);
  std::string& object = *store_->Bytes(shard->ObjectOf(1));
  const std::string good = object;
  const auto damaged = [&](const char* what, const std::string& stored, const char* why) {
    object = stored;
    const auto memory = Read(engine_, *shard);
    ASSERT_FALSE(memory) << what;
    EXPECT_EQ(memory.error().code, Errc::kCorrupt) << what;
    EXPECT_THAT(memory.error().message, HasSubstr("object u1/" + shard->ObjectOf(1) + " in memory")) << what;
    EXPECT_THAT(memory.error().message, HasSubstr(why)) << what;
    object = good;
  };
  damaged("cut off", good.substr(0, good.size() - 1), "is cut off");
  damaged("longer", good + "x", "is too long");
  damaged("no frame", NoiseBytes(good.size()), "no zstd frame of 65536 bytes");
  damaged("empty", "", "is cut off");
  std::string flipped = good;
  flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 1);
  damaged("a flipped bit", flipped, " ");
  EXPECT_TRUE(Read(engine_, *shard));

  // The manifest is wrong about the width: every byte is there, in other places.
  Shard other = *shard;
  other.encodings[1].width = shard->EncodingOf(1).width == 2 ? 4 : 2;
  const auto memory = Read(engine_, other);
  ASSERT_FALSE(memory);
  EXPECT_THAT(memory.error().message, HasSubstr("has digest"));
}

TEST_F(EngineCompress, AChunkThatIsTriedAgainIsEncodedAgain) {
  const std::string bytes = Float32Bytes(8 * kChunk);
  std::atomic<int> failures{12};
  store_->SetFault([&](const std::string& operation, const std::string&) {
    return operation == "write" && failures-- > 0 ? Status(Error{Errc::kUnavailable, "timed out"}) : Status();
  });
  EngineOptions options = Compressing();
  options.attempts = 100;
  Engine engine(store_, options);
  const auto shard = Write(engine, Memory(bytes), bytes.size());
  ASSERT_TRUE(shard) << shard.error().message;
  EXPECT_LT(failures, 0);
  EXPECT_EQ(Encoded(*shard), 8U);
  ExpectSizesAreTheObjects(*shard);
  ExpectReads(engine, *shard, bytes);
}

// Threads take turns with the codecs, and shards with the buffers.
TEST_F(EngineCompress, ManyShardsAtOnceAreReadBack) {
  EngineOptions options = Compressing();
  options.threads = 4;
  Engine engine(store_, options);
  constexpr uint32_t kShards = 6;
  std::vector<std::string> contents;
  std::vector<std::shared_ptr<StagedMemory>> memories;
  std::vector<std::promise<Result<Shard>>> written(kShards);
  for (uint32_t rank = 0; rank < kShards; ++rank) {
    contents.push_back(rank % 3 == 2 ? NoiseBytes(5 * kChunk, rank) : Float32Bytes(5 * kChunk, rank));
    memories.push_back(*StagedMemory::Take(Memory(contents.back())));
  }
  for (uint32_t rank = 0; rank < kShards; ++rank) {
    engine.WriteShard("u1", ShardPrefix("k", 100, kFence, rank), rank, *memories[rank], contents[rank].size(),
                      {},
                      [&written, rank](Result<Shard> shard) { written[rank].set_value(std::move(shard)); });
  }
  for (uint32_t rank = 0; rank < kShards; ++rank) {
    const auto shard = written[rank].get_future().get();
    ASSERT_TRUE(shard);
    EXPECT_EQ(Encoded(*shard) == 0, rank % 3 == 2);
    ExpectReads(engine, *shard, contents[rank]);
  }
}

}  // namespace
}  // namespace muster
