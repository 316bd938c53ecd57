#include "daemon/proto/shard_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ceph/catalog/object_names.h"
#include "daemon/config/config.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

TEST(ShardMessage, SaysAllOfAShard) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 2);
  Shard& shard = manifest.shards[1];
  shard.AddElsewhere(1, ShardPrefix("k", 90, {2, 5}, 1));
  ASSERT_TRUE(shard.AddEncoded({0, 4, {700, 1}}));
  ASSERT_TRUE(shard.AddEncoded({2, 8, {400}}));
  const std::string before = manifest.Encode();
  for (Shard& one : manifest.shards) {
    v1::Shard message;
    PutShard(one, &message);
    v1::Shard received;
    ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
    one = TakeShard(received);
  }
  EXPECT_EQ(manifest.Encode(), before);
}

TEST(ShardMessage, TakesNoEncodingsOfChunksThatTheShardHasNot) {
  v1::Shard message;
  PutShard(SampleManifest("k", 100, {2, 5}, 1).shards[0], &message);
  v1::EncodedRun* run = message.add_encoded();
  run->set_first(UINT64_MAX);
  run->set_width(4);
  run->add_bytes(1);
  run = message.add_encoded();
  run->set_first(0);
  run->set_width(3);
  run->add_bytes(1);
  EXPECT_TRUE(TakeShard(message).encodings.empty());
}

// Chunks that are compressed each on its own terms, which takes most room.
Shard LargeShard(uint64_t chunks) {
  Shard shard;
  shard.rank = UINT32_MAX;
  shard.chunk_bytes = 64 << 20;
  shard.bytes = chunks * shard.chunk_bytes;
  shard.prefix = ShardPrefix(std::string(64, 'k'), UINT64_MAX, {UINT64_MAX, UINT64_MAX}, UINT32_MAX, 1);
  shard.chunks.resize(chunks);
  for (uint64_t i = 0; i < chunks; ++i) shard.encodings.push_back({i % 2 == 0 ? 4U : 8U, (64 << 20) - 1});
  return shard;
}

TEST(ShardMessage, OneOfAsManyChunksAsAreAllowedFits) {
  v1::Shard message;
  PutShard(LargeShard(kMaxShardChunks), &message);
  const Status fits = CheckFits(message);
  EXPECT_TRUE(fits) << fits.error().message;
}

TEST(ShardMessage, OneThatSharesEachChunkWithAnotherCheckpointMayNotFitAndSaysSo) {
  Shard shard = LargeShard(kMaxShardChunks / 4);
  for (uint64_t i = 0; i < shard.chunks.size(); ++i)
    shard.AddElsewhere(i, ShardPrefix(std::string(64, 'k'), i, {UINT64_MAX, UINT64_MAX}, 0, 1));
  v1::Shard message;
  PutShard(shard, &message);
  const Status fits = CheckFits(message);
  ASSERT_FALSE(fits);
  EXPECT_EQ(fits.error().code, Errc::kExhausted);
  EXPECT_THAT(fits.error().message, testing::HasSubstr("the shard's 100000 chunks"));
}

}  // namespace
}  // namespace muster
