#include "ceph/catalog/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

TEST(Fence, EncodesSoThatTextOrderIsItsOrder) {
  const Fence low{9, 300};
  const Fence high{10, 2};
  EXPECT_LT(low, high);
  EXPECT_LT(low.Encode(), high.Encode());
  EXPECT_EQ(high.Encode(), "000000000000000a.0000000000000002");
  EXPECT_EQ(Fence::Decode(high.Encode()), high);
  const Fence most{UINT64_MAX, UINT64_MAX};
  EXPECT_EQ(Fence::Decode(most.Encode()), most);
}

TEST(Fence, DecodesNothingElse) {
  for (const char* text :
       {"", "1.2", "000000000000000a-0000000000000002", "000000000000000A.0000000000000002",
        "000000000000000a.000000000000000", "000000000000000a.00000000000000020",
        "+00000000000000a.0000000000000002", "000000000000000a.0x00000000000002"}) {
    EXPECT_FALSE(Fence::Decode(text)) << text;
  }
}

TEST(Digest, IsXxh3OfTheBytes) {
  // The value that xxh128sum prints for no bytes.
  EXPECT_EQ(ToHex(DigestOf(std::string_view())), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(DigestFromHex("99aa06d3014798d86001c324468d497f"), DigestOf(std::string_view()));
  EXPECT_FALSE(DigestFromHex("99AA06d3014798d86001c324468d497f"));
  EXPECT_FALSE(DigestFromHex("99"));
}

TEST(ObjectNames, AreReadBackFromTheirText) {
  const std::string name = ChunkName(ShardPrefix("k.1", 100, {3, 7}, 12), 5);
  EXPECT_EQ(name, "data/k.1/100.3.7/12.5");
  const auto parsed = ParseObjectName("k.1", name);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->step, 100u);
  EXPECT_EQ(parsed->fence, (Fence{3, 7}));
  for (const char* other : {"data/k.1/100.3.7", "data/k.1/0100.3.7/x", "data/k.1/-1.3.7/x",
                            "data/k/100.3.7/x", "x", "data/k.1/99999999999999999999.3.7/x"}) {
    EXPECT_FALSE(ParseObjectName("k.1", other)) << other;
  }
}

TEST(ObjectNames, SayWhichWriteOfAShardTheyAreOf) {
  const std::string prefix = ShardPrefix("k", 100, {3, 7}, 12, 0x0a1b2c3d);
  EXPECT_EQ(ChunkName(prefix, 5), "data/k/100.3.7/12-0a1b2c3d.5");
  for (const std::string& good : {prefix, ShardPrefix("k", 100, {3, 7}, 12)}) {
    const auto parsed = ParseShardPrefix("k", 12, good);
    ASSERT_TRUE(parsed) << good;
    EXPECT_EQ(parsed->step, 100u);
    EXPECT_EQ(parsed->fence, (Fence{3, 7}));
    EXPECT_FALSE(ParseShardPrefix("k", 1, good)) << good;
    EXPECT_FALSE(ParseShardPrefix("k", 2, good)) << good;
    EXPECT_FALSE(ParseShardPrefix("l", 12, good)) << good;
    EXPECT_EQ(HasWrite(good), good == prefix);
  }
  EXPECT_FALSE(HasWrite(ShardPrefix("job-7", 100, {3, 7}, 12))) << "the key has a dash";
  for (const char* other :
       {"data/k/100.3.7/12-", "data/k/100.3.7/12-0a1b2c3", "data/k/100.3.7/12-0a1b2c3d4",
        "data/k/100.3.7/12-0A1B2C3D", "data/k/100.3.7/12-0a1b2c3g", "data/k/100.3.7/12.0a1b2c3d",
        "data/k/100.3.7/12-0a1b2c3d.5", "data/k/100.3.7/", "data/k/100.3.7/manifest", "data/k/100.3/12"}) {
    EXPECT_FALSE(ParseShardPrefix("k", 12, other)) << other;
  }
}

TEST(Manifest, IsReadBackFromItsText) {
  const Manifest manifest = SampleManifest("job-7", 100, {2, 5}, 3);
  const auto again = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->Encode(), manifest.Encode());
  EXPECT_EQ(again->TotalBytes(), manifest.TotalBytes());
  EXPECT_EQ(again->shards[2].chunks, manifest.shards[2].chunks);
}

TEST(Manifest, MayHaveShardsThatAnEarlierTermHasWritten) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 1);
  manifest.shards[0].prefix = ShardPrefix("k", 100, {1, 5}, 0);
  EXPECT_TRUE(Manifest::Decode(manifest.Encode()));
  manifest.shards[0].prefix = ShardPrefix("k", 100, {3, 5}, 0);
  EXPECT_FALSE(Manifest::Decode(manifest.Encode()));
  manifest.shards[0].prefix = ShardPrefix("k", 100, {2, 4}, 0);
  EXPECT_FALSE(Manifest::Decode(manifest.Encode()));
}

TEST(Manifest, MayHaveShardsThatSayWhichWriteTheyAreOf) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 2);
  Shard& shard = manifest.shards[1];
  const std::string plain = shard.prefix;
  shard.prefix = ShardPrefix("k", 100, {1, 5}, 1, 7);
  ASSERT_TRUE(shard.AddEncoded({0, 4, {700}}));
  EXPECT_NE(manifest.Encode().find("\"version\":4"), std::string::npos);
  auto again = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->shards[1].ObjectOf(0), "data/k/100.1.5/1-00000007.0");
  // Only in what it shares.
  shard.prefix = plain;
  shard.AddElsewhere(1, ShardPrefix("k", 90, {2, 5}, 1, 7));
  EXPECT_NE(manifest.Encode().find("\"version\":4"), std::string::npos);
  again = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->shards[1].ObjectOf(1), "data/k/90.2.5/1-00000007.1");
  shard.prefix = ShardPrefix("k", 100, {2, 5}, 0, 7);
  EXPECT_FALSE(Manifest::Decode(manifest.Encode())) << "another rank's";
}

// Nothing is the matter with it: it is not to be marked bad, nor what it consists of removed.
TEST(Manifest, OfANewerVersionIsNotCorrupt) {
  const auto decoded = Manifest::Decode("{\"format\":\"muster-manifest\",\"version\":5}");
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, Errc::kInvalid);
  EXPECT_THAT(decoded.error().message, ::testing::HasSubstr("version 5"));
}

TEST(Manifest, SaysWhichChunksOlderCheckpointsHave) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 2);
  EXPECT_NE(manifest.Encode().find("\"version\":1"), std::string::npos);
  Shard& shard = manifest.shards[1];
  shard.AddElsewhere(0, ShardPrefix("k", 90, {2, 5}, 1));
  shard.AddElsewhere(1, ShardPrefix("k", 90, {2, 5}, 1));
  shard.AddElsewhere(2, ShardPrefix("k", 80, {1, 3}, 1));
  EXPECT_EQ(shard.elsewhere.size(), 2U);
  EXPECT_NE(manifest.Encode().find("\"version\":2"), std::string::npos);
  const auto again = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->Encode(), manifest.Encode());
  EXPECT_EQ(again->shards[1].elsewhere, shard.elsewhere);
  EXPECT_EQ(again->shards[1].ObjectOf(1), "data/k/90.2.5/1.1");
  EXPECT_EQ(again->shards[1].ObjectOf(2), "data/k/80.1.3/1.2");
  EXPECT_EQ(again->shards[0].ObjectOf(2), "data/k/100.2.5/0.2");
}

TEST(Manifest, SaysHowChunksAreEncoded) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 2);
  Shard& shard = manifest.shards[1];
  ASSERT_TRUE(shard.AddEncoded({0, 4, {700, 1}}));
  ASSERT_TRUE(shard.AddEncoded({2, 1, {500}}));
  shard.AddElsewhere(1, ShardPrefix("k", 90, {2, 5}, 1));
  const std::string text = manifest.Encode();
  EXPECT_NE(text.find("\"version\":3"), std::string::npos);
  EXPECT_NE(text.find("\"encoded\":[[0,4,[700,1]],[2,1,[500]]]"), std::string::npos) << text;
  const auto again = Manifest::Decode(text);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->Encode(), text);
  const Shard& read = again->shards[1];
  EXPECT_EQ(read.EncodingOf(1), (ChunkEncoding{4, 1}));
  EXPECT_EQ(read.StoredBytesOf(1), 1U);
  EXPECT_EQ(read.BytesOf(1), 1000U);
  EXPECT_EQ(read.EncodingOf(2), (ChunkEncoding{1, 500}));
  EXPECT_EQ(again->shards[0].StoredBytesOf(2), 500U) << "of one that is as it is, the chunk's";
  EXPECT_TRUE(again->shards[0].encodings.empty());
  EXPECT_EQ(again->TotalBytes(), manifest.TotalBytes()) << "of plain bytes";
}

TEST(Manifest, TakesNoEncodingThatCannotBe) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 1);
  Shard& shard = manifest.shards[0];
  EXPECT_FALSE(shard.AddEncoded({0, 4, {}}));
  EXPECT_FALSE(shard.AddEncoded({0, 3, {700}})) << "no such width";
  EXPECT_FALSE(shard.AddEncoded({0, 0, {700}}));
  EXPECT_FALSE(shard.AddEncoded({0, 4, {0}}));
  EXPECT_FALSE(shard.AddEncoded({0, 4, {1000}})) << "no gain";
  EXPECT_FALSE(shard.AddEncoded({2, 4, {500}})) << "no gain in the last one, which is shorter";
  EXPECT_FALSE(shard.AddEncoded({3, 4, {1}}));
  EXPECT_FALSE(shard.AddEncoded({UINT64_MAX, 4, {1, 1}}));
  EXPECT_FALSE(shard.AddEncoded({2, 4, {1, 1}}));
  EXPECT_TRUE(shard.encodings.empty());
  EXPECT_TRUE(shard.AddEncoded({1, 4, {1}}));
  EXPECT_FALSE(shard.AddEncoded({0, 4, {1, 1}})) << "twice";
}

TEST(Manifest, OfAnEmptyShardHasNoChunks) {
  Manifest manifest = SampleManifest("k", 1, {1, 1}, 1);
  manifest.shards[0].bytes = 0;
  EXPECT_FALSE(Manifest::Decode(manifest.Encode()));
  manifest.shards[0].chunks.clear();
  EXPECT_TRUE(Manifest::Decode(manifest.Encode()));
}

TEST(Manifest, ThatIsNotConsistentIsCorrupt) {
  const auto refused = [](const char* why, auto change) {
    Manifest manifest = SampleManifest("k", 100, {2, 5}, 2);
    change(manifest);
    const auto decoded = Manifest::Decode(manifest.Encode());
    ASSERT_FALSE(decoded) << why;
    EXPECT_EQ(decoded.error().code, Errc::kCorrupt) << why;
  };
  refused("a shard less", [](Manifest& m) { m.shards.pop_back(); });
  refused("a rank twice", [](Manifest& m) { m.shards[1].rank = 0; });
  refused("no members", [](Manifest& m) { m.world_size = 0, m.shards.clear(); });
  refused("a chunk less", [](Manifest& m) { m.shards[0].chunks.pop_back(); });
  refused("a chunk more", [](Manifest& m) { m.shards[0].chunks.emplace_back(); });
  refused("chunks of no bytes", [](Manifest& m) { m.shards[0].chunk_bytes = 0; });
  refused("huge chunks", [](Manifest& m) { m.shards[0].chunk_bytes = uint64_t{1} << 40; });
  refused("a sum that overflows", [](Manifest& m) {
    for (Shard& s : m.shards) s.bytes = UINT64_MAX;
  });
  refused("another key's objects", [](Manifest& m) { m.shards[0].prefix = "data/other/100.2.5/0"; });
  refused("another step's objects", [](Manifest& m) { m.shards[0].prefix = "data/k/99.2.5/0"; });
  refused("another rank's objects", [](Manifest& m) { m.shards[0].prefix = "data/k/100.2.5/1"; });
  refused("objects elsewhere", [](Manifest& m) { m.shards[0].prefix = "data/k/100.2.5/../../x/0"; });
  refused("no key", [](Manifest& m) { m.key.clear(); });
  const auto shared = [&](const char* why, std::vector<ChunkRun> runs) {
    refused(why, [&](Manifest& m) { m.shards[1].elsewhere = runs; });
  };
  const std::string older = ShardPrefix("k", 90, {2, 5}, 1);
  shared("a run of nothing", {{0, 0, older}});
  shared("a run beyond the end", {{2, 2, older}});
  shared("a run that overflows", {{2, UINT64_MAX, older}});
  shared("runs that overlap", {{0, 2, older}, {1, 1, older}});
  shared("runs out of order", {{2, 1, older}, {0, 1, older}});
  shared("another key's chunks", {{0, 1, ShardPrefix("other", 90, {2, 5}, 1)}});
  shared("another rank's chunks", {{0, 1, ShardPrefix("k", 90, {2, 5}, 0)}});
  shared("chunks of its own step", {{0, 1, ShardPrefix("k", 100, {2, 5}, 1)}});
  shared("chunks of a later generation", {{0, 1, ShardPrefix("k", 90, {2, 6}, 1)}});
  shared("chunks of a later term", {{0, 1, ShardPrefix("k", 90, {3, 5}, 1)}});
  shared("chunks anywhere", {{0, 1, "data/k/90.2.5/../../x/1"}});
}

TEST(Manifest, WhoseEncodingsAreNotConsistentIsCorrupt) {
  Manifest manifest = SampleManifest("k", 100, {2, 5}, 1);
  ASSERT_TRUE(manifest.shards[0].AddEncoded({0, 4, {700}}));
  const std::string good = manifest.Encode();
  const std::string list = "[[0,4,[700]]]";
  const size_t at = good.find(list);
  ASSERT_NE(at, std::string::npos);
  for (const char* other :
       {"{}", "[0]", "[[0,4]]", "[[0,4,700]]", "[[0,4,[]]]", "[[0,4,[\"x\"]]]", "[[0,4,[-1]]]",
        "[[0,4,[700.5]]]", "[[0,4,[4294967996]]]", "[[0,4294967300,[700]]]", "[[-1,4,[700]]]",
        "[[0,4,[1000]]]", "[[0,5,[700]]]", "[[3,4,[1]]]", "[[0,4,[1,1,1,1]]]", "[[1,4,[1]],[0,4,[1]]]",
        "[[0,4,[1,1]],[1,4,[1]]]"}) {
    const auto decoded = Manifest::Decode(std::string(good).replace(at, list.size(), other));
    ASSERT_FALSE(decoded) << other;
    EXPECT_EQ(decoded.error().code, Errc::kCorrupt) << other;
  }
}

TEST(Manifest, ThatIsNoManifestIsCorrupt) {
  const std::string good = SampleManifest("k", 100, {2, 5}, 1).Encode();
  for (const std::string& text : {std::string(), std::string("null"), std::string("[]"), std::string("{}"),
                                  std::string(100000, '['), good.substr(0, good.size() - 1), good + "x",
                                  std::string("{\"format\":\"muster-manifest\",\"version\":0}")}) {
    const auto decoded = Manifest::Decode(text);
    ASSERT_FALSE(decoded) << text.substr(0, 50);
    EXPECT_EQ(decoded.error().code, Errc::kCorrupt);
  }
}

// Whatever a mutation does: it is refused, or what is read is consistent and can be written again.
TEST(Manifest, SurvivesMutatedTexts) {
  std::mt19937 random(20240607);
  Manifest sample = SampleManifest("key", 100, {2, 5}, 3);
  sample.shards[2].AddElsewhere(1, ShardPrefix("key", 90, {2, 4}, 2));
  ASSERT_TRUE(sample.shards[1].AddEncoded({1, 4, {700, 300}}));
  const std::string good = sample.Encode();
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const std::string alphabet = "0123456789abcdef{}[]\",:.-eE+ \\u";
  for (int round = 0; round < 5000; ++round) {
    std::string text = good;
    for (size_t i = 0, n = 1 + pick(4); i < n; ++i) {
      switch (pick(4)) {
        case 0:
          text[pick(text.size())] = alphabet[pick(alphabet.size())];
          break;
        case 1:
          text.erase(pick(text.size()), 1 + pick(8));
          break;
        case 2:
          text.insert(pick(text.size()), 1, static_cast<char>(pick(256)));
          break;
        default:
          text.insert(pick(text.size()), text.substr(pick(text.size()), pick(30)));
      }
    }
    const auto decoded = Manifest::Decode(text);
    if (!decoded) {
      EXPECT_EQ(decoded.error().code, Errc::kCorrupt);
      continue;
    }
    EXPECT_EQ(decoded->shards.size(), decoded->world_size);
    const auto again = Manifest::Decode(decoded->Encode());
    ASSERT_TRUE(again) << text;
    EXPECT_EQ(again->Encode(), decoded->Encode());
  }
}

}  // namespace
}  // namespace muster
