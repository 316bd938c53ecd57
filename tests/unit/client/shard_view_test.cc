#include "client/libmuster/shard_view.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "ceph/engine/shard_format.h"

namespace muster::client {
namespace {

struct Sample {
  std::string name;
  std::string meta;
  std::string data;
};

std::string Pack(const std::vector<Sample>& entries) {
  std::string shard(64, '\0');
  std::string index;
  for (const Sample& entry : entries) {
    shard.resize((shard.size() + 63) / 64 * 64);
    const ShardEntry fixed{shard.size(), entry.data.size(), static_cast<uint32_t>(entry.name.size()),
                           static_cast<uint32_t>(entry.meta.size())};
    shard += entry.data;
    index.append(reinterpret_cast<const char*>(&fixed), sizeof(fixed)) += entry.name + entry.meta;
    index.resize((index.size() + 7) / 8 * 8);
  }
  shard.resize((shard.size() + 63) / 64 * 64);
  ShardHeader header{};
  std::memcpy(header.magic, kShardMagic, sizeof(header.magic));
  header.version = kShardVersion;
  header.entries = static_cast<uint32_t>(entries.size());
  header.index_offset = shard.size();
  header.index_bytes = index.size();
  std::memcpy(shard.data(), &header, sizeof(header));
  return shard + index;
}

const char* Parse(const std::string& shard) {
  ShardView view;
  return view.Parse(shard.data(), shard.size());
}

TEST(ShardView, GivesTheEntries) {
  const std::string shard =
      Pack({{"a", "meta", "123"}, {"b c", "", ""}, {"weights", "f32", std::string(1000, 'w')}});
  ShardView view;
  ASSERT_EQ(view.Parse(shard.data(), shard.size()), nullptr);
  ASSERT_EQ(view.count(), 3u);
  EXPECT_STREQ(view.entry(0).name, "a");
  EXPECT_STREQ(view.entry(0).meta, "meta");
  EXPECT_EQ(view.entry(1).bytes, 0u);
  ASSERT_NE(view.Find("weights"), nullptr);
  EXPECT_EQ(view.Find("weights")->bytes, 1000u);
  EXPECT_EQ(view.Find("weight"), nullptr);
  EXPECT_EQ(view.Find(""), nullptr);
}

TEST(ShardView, MayBeEmpty) {
  EXPECT_EQ(Parse(Pack({})), nullptr);
}

TEST(ShardView, RefusesWhatItsWriterWouldNotWrite) {
  EXPECT_NE(Parse(""), nullptr);
  EXPECT_NE(Parse(std::string(64, '\0')), nullptr);
  EXPECT_STREQ(Parse(Pack({{"a", "", "1"}, {"a", "", "2"}})), "two entries have the same name");
  EXPECT_NE(Parse(Pack({{"", "", "1"}})), nullptr);
  EXPECT_NE(Parse(Pack({{"a\nb", "", "1"}})), nullptr);
  EXPECT_NE(Parse(Pack({{std::string(256, 'n'), "", "1"}})), nullptr);
  EXPECT_NE(Parse(Pack({{"a", std::string(4097, 'm'), "1"}})), nullptr);
  EXPECT_NE(Parse(Pack({{"a", std::string("m\0m", 3), "1"}})), nullptr);
  const std::string good = Pack({{"a", "", "1"}});
  EXPECT_NE(Parse(good.substr(0, good.size() - 1)), nullptr);
  const auto changed = [&](size_t at, auto value) {
    std::string shard = good;
    std::memcpy(shard.data() + at, &value, sizeof(value));
    return shard;
  };
  EXPECT_NE(Parse(changed(8, uint32_t{2})), nullptr);        // version
  EXPECT_NE(Parse(changed(12, uint32_t{2})), nullptr);       // entries
  EXPECT_NE(Parse(changed(12, uint32_t{0})), nullptr);       // entries
  EXPECT_NE(Parse(changed(12, UINT32_MAX)), nullptr);        // entries
  EXPECT_NE(Parse(changed(16, UINT64_MAX)), nullptr);        // index offset
  EXPECT_NE(Parse(changed(16, uint64_t{0})), nullptr);       // index offset
  EXPECT_NE(Parse(changed(24, UINT64_MAX)), nullptr);        // index bytes
  EXPECT_NE(Parse(changed(128, uint64_t{0})), nullptr);      // entry's offset: the header
  EXPECT_NE(Parse(changed(128, UINT64_MAX)), nullptr);       // entry's offset
  EXPECT_NE(Parse(changed(136, uint64_t{65})), nullptr);     // entry's bytes: into the index
  EXPECT_NE(Parse(changed(136, UINT64_MAX - 63)), nullptr);  // entry's bytes
  EXPECT_NE(Parse(changed(144, UINT32_MAX)), nullptr);       // name bytes
  EXPECT_NE(Parse(changed(148, UINT32_MAX)), nullptr);       // meta bytes
}

// Whatever a mutation does, every entry lies inside of the shard.
TEST(ShardView, SurvivesMutatedShards) {
  std::mt19937 random(7);
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  const std::string good =
      Pack({{"first", "meta", "123"}, {"second", "", std::string(200, 'x')}, {"third", "m", ""}});
  size_t accepted = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string shard = good;
    for (size_t i = 0, n = 1 + pick(3); i < n; ++i) {
      // Mostly where the structure is.
      const size_t at = pick(3) == 0   ? pick(shard.size())
                        : pick(2) == 0 ? pick(64)
                                       : shard.size() - 1 - pick(128);
      shard[at] = static_cast<char>(pick(3) == 0 ? pick(256) : pick(2) == 0 ? 0 : 0xff);
    }
    if (pick(8) == 0) shard.resize(pick(shard.size() + 1));
    ShardView view;
    if (view.Parse(shard.data(), shard.size()) != nullptr) {
      EXPECT_EQ(view.count(), 0u);
      continue;
    }
    ++accepted;
    for (size_t i = 0; i < view.count(); ++i) {
      const auto& entry = view.entry(i);
      const auto* data = static_cast<const char*>(entry.data);
      ASSERT_GE(data, shard.data() + 64);
      ASSERT_LE(entry.bytes, static_cast<size_t>(shard.data() + shard.size() - data));
      EXPECT_EQ(view.Find(entry.name), &entry);
    }
  }
  EXPECT_GT(accepted, 100u);
}

}  // namespace
}  // namespace muster::client
