#include "daemon/proto/shard_message.h"

#include <gtest/gtest.h>

#include "ceph/catalog/object_names.h"
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

}  // namespace
}  // namespace muster
