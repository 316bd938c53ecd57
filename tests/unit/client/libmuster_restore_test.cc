// libmuster: restoring one's own shard, and other members'.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::HasSubstr;

// Anonymous memory of a program's.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<char*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    ::madvise(data_, bytes_, MADV_DONTDUMP);  // so that it is joined to no other
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] char* data() const { return data_; }
  // Whether it is to have huge pages; nothing where it is not one mapping.
  [[nodiscard]] std::optional<bool> Huge() const {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0;
      unsigned long end = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
        here = begin == reinterpret_cast<uintptr_t>(data_) && end == begin + bytes_;
      if (here && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
    }
    return std::nullopt;
  }

 private:
  size_t bytes_;
  char* data_;
};

TEST_F(Libmuster, RestoresWhatWasSaved) {
  Open();
  const std::string big(5 << 20, 'b');
  ASSERT_EQ(muster_save_begin(m_, 100, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "weights", "float32 2x3", "abcdef", 6), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "empty", nullptr, nullptr, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "größe/../x y", "", big.data(), big.size()), MUSTER_OK);
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  ASSERT_EQ(muster_wait(m_, MUSTER_LATEST, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(muster_committed(m_), 100u);

  muster_restore* r = nullptr;
  ASSERT_EQ(muster_restore_open(m_, 100, &r), MUSTER_OK) << Said();
  EXPECT_EQ(muster_restore_open_step(r), 100u);
  ASSERT_EQ(muster_restore_count(r), 3u);
  const char* name = nullptr;
  const char* meta = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(muster_restore_entry(r, 0, &name, &meta, &data, &bytes), MUSTER_OK);
  EXPECT_STREQ(name, "weights");
  EXPECT_STREQ(meta, "float32 2x3");
  EXPECT_EQ(std::string(static_cast<const char*>(data), bytes), "abcdef");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  ASSERT_EQ(muster_restore_entry(r, 1, nullptr, &meta, nullptr, &bytes), MUSTER_OK);
  EXPECT_STREQ(meta, "");
  EXPECT_EQ(bytes, 0u);
  std::string got(big.size(), '\0');
  EXPECT_EQ(muster_restore_get(r, "größe/../x y", got.data(), got.size()), MUSTER_OK);
  EXPECT_EQ(got, big);
  EXPECT_EQ(muster_restore_get(r, "weights", got.data(), 5), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("has 6 bytes, not 5"));
  EXPECT_EQ(muster_restore_get(r, "none", got.data(), 5), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_restore_entry(r, 3, &name, &meta, &data, &bytes), MUSTER_E_INVALID);
  muster_restore_close(r);
}

TEST_F(Libmuster, ARestoreFillsFreshMemoryWithHugePages) {
  Open();
  const std::string state(16 << 20, 's');
  ASSERT_EQ(Save(100, state), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 100, 10000), MUSTER_OK);
  muster_restore* r = nullptr;
  ASSERT_EQ(muster_restore_open(m_, 100, &r), MUSTER_OK) << Said();
  constexpr size_t kHead = 4096;  // what an allocator has for itself
  const Mapping fresh(state.size() + kHead);
  const Mapping used(state.size() + kHead);
  std::fill_n(used.data(), state.size(), 'u');
  for (const Mapping* mapping : {&fresh, &used}) {
    ASSERT_EQ(muster_restore_get(r, "x", mapping->data() + kHead - 8, state.size()), MUSTER_OK) << Said();
    EXPECT_EQ(std::string(mapping->data() + kHead - 8, state.size()), state);
  }
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    EXPECT_EQ(fresh.Huge(), true);
    EXPECT_EQ(used.Huge(), false);
  }
  muster_restore_close(r);
}

TEST_F(Libmuster, AnOpenRestoreOutlivesItsHandle) {
  Open();
  ASSERT_EQ(Save(100, "content"), MUSTER_OK);
  muster_restore* first = nullptr;
  muster_restore* second = nullptr;
  ASSERT_EQ(muster_wait(m_, 100, 10000), MUSTER_OK);
  ASSERT_EQ(muster_restore_open(m_, 100, &first), MUSTER_OK);
  ASSERT_EQ(muster_restore_open(m_, 100, &second), MUSTER_OK);
  muster_restore_close(first);
  muster_close(m_);
  m_ = nullptr;
  char got[7];
  EXPECT_EQ(muster_restore_get(second, "x", got, 7), MUSTER_OK);
  EXPECT_EQ(muster_restore_get(second, "none", got, 7), MUSTER_E_NOT_FOUND);
  muster_restore_close(second);
}

TEST_F(Libmuster, WithoutACheckpointThereIsNothingToRestore) {
  Open();
  muster_restore* r = nullptr;
  EXPECT_EQ(muster_restore_open(m_, MUSTER_LATEST, &r), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_restore_open(m_, 77, &r), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(r, nullptr);
}

// Else a program would begin anew, while the others of its gang go on.
TEST_F(Libmuster, WhatTheGenerationStartsFromAndIsNotThereIsNotNoCheckpoint) {
  musterd_.Change([](auto& rules) { rules.restore_step = 60; });
  Open();
  muster_restore* r = nullptr;
  EXPECT_EQ(muster_restore_open(m_, MUSTER_LATEST, &r), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("what this generation starts from was removed: "));
  EXPECT_EQ(muster_restore_open(m_, 60, &r), MUSTER_E_NOT_FOUND);
}

TEST_F(Libmuster, AGangOfAnotherSizeReadsAllShardsOneAfterTheOther) {
  musterd_.Change([](auto& rules) {
    rules.restore_step = 60;
    rules.restore_world = 3;
  });
  Open();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(Save(rank, "part " + std::to_string(rank)), MUSTER_OK) << Said();
    ASSERT_EQ(muster_wait(m_, MUSTER_LATEST, 10000), MUSTER_OK) << Said();
  }
  musterd_.Look([](const FakeMusterd& musterd) {
    auto& changed = const_cast<FakeMusterd&>(musterd);
    for (uint32_t rank = 0; rank < 3; ++rank) changed.others[{60, rank}] = musterd.shards.at(rank);
  });
  uint64_t step = 0;
  uint32_t world = 0;
  ASSERT_EQ(muster_restore_info(m_, MUSTER_LATEST, &step, &world), MUSTER_OK) << Said();
  EXPECT_EQ(step, 60u);
  EXPECT_EQ(world, 3u);
  EXPECT_EQ(muster_restore_info(m_, 60, nullptr, nullptr), MUSTER_OK);
  std::string all;
  for (uint32_t rank = 0; rank < world; ++rank) {
    muster_restore* r = nullptr;
    ASSERT_EQ(muster_restore_open_shard(m_, MUSTER_LATEST, rank, &r), MUSTER_OK) << Said();
    EXPECT_EQ(muster_restore_open_step(r), 60u);
    char part[6];
    EXPECT_EQ(muster_restore_get(r, "x", part, sizeof part), MUSTER_OK) << Said();
    all.append(part, sizeof part);
    muster_restore_close(r);
  }
  EXPECT_EQ(all, "part 0part 1part 2");
  muster_restore* r = nullptr;
  EXPECT_EQ(muster_restore_open_shard(m_, MUSTER_LATEST, 3, &r), MUSTER_E_INVALID);
  EXPECT_EQ(muster_restore_open_shard(m_, MUSTER_LATEST, UINT32_MAX, &r), MUSTER_E_INVALID);
  EXPECT_EQ(r, nullptr);
}

TEST_F(Libmuster, ACheckpointThatCannotBeDescribedSaysWhy) {
  Open();
  uint32_t world = 7;
  EXPECT_EQ(muster_restore_info(m_, MUSTER_LATEST, nullptr, &world), MUSTER_E_NOT_FOUND);
  musterd_.Change([](auto& rules) { rules.described_error = "its manifest is torn"; });
  EXPECT_EQ(muster_restore_info(m_, 5, nullptr, &world), MUSTER_E_CORRUPT);
  EXPECT_EQ(Said(), "its manifest is torn");
  EXPECT_EQ(world, 7u);
}

TEST_F(Libmuster, AMusterdOfTheFirstVersionGivesOnesOwnShardAndNoOther) {
  musterd_.Change([](auto& rules) {
    rules.first_version = true;
    rules.restore_step = 1;
  });
  Open();
  EXPECT_EQ(muster_rank(m_), 2u);
  EXPECT_EQ(muster_world_size(m_), 4u);
  ASSERT_EQ(Save(1), MUSTER_OK) << Said();
  ASSERT_EQ(muster_wait(m_, MUSTER_LATEST, 10000), MUSTER_OK) << Said();
  muster_restore* r = nullptr;
  EXPECT_EQ(muster_restore_open(m_, MUSTER_LATEST, &r), MUSTER_OK) << Said();
  muster_restore_close(r);
  EXPECT_EQ(muster_restore_open_shard(m_, MUSTER_LATEST, 0, &r), MUSTER_E_PROTOCOL);
  EXPECT_THAT(Said(), HasSubstr("older than this libmuster"));
  EXPECT_EQ(muster_restore_info(m_, MUSTER_LATEST, nullptr, nullptr), MUSTER_E_PROTOCOL);
}

TEST_F(Libmuster, AShardThatDoesNotReadIsCorrupt) {
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  const std::string good = musterd_.shards[1];
  muster_restore* r = nullptr;
  musterd_.PutShard(2, "no shard at all, but long enough to have a header of sixty-four bytes");
  EXPECT_EQ(muster_restore_open(m_, 2, &r), MUSTER_E_CORRUPT);
  musterd_.PutShard(3, good.substr(0, good.size() - 8));
  EXPECT_EQ(muster_restore_open(m_, 3, &r), MUSTER_E_CORRUPT);
  musterd_.PutShard(4, good, false);
  EXPECT_EQ(muster_restore_open(m_, 4, &r), MUSTER_E_PROTOCOL);
  musterd_.PutShard(5, good);
  EXPECT_EQ(muster_restore_open(m_, 5, &r), MUSTER_OK);
  muster_restore_close(r);
}

}  // namespace
}  // namespace muster
