// libmuster: parts of tensors, restored from whatever members saved them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kStep = 1000;
using Dims = std::vector<uint64_t>;

muster_slice Part(const Dims& global, const Dims& offset, const Dims& shape, const char* dtype = "u32") {
  muster_slice slice{dtype, 4, static_cast<uint32_t>(global.size()), {}, {}, {}};
  std::copy(global.begin(), global.end(), slice.global_shape);
  std::copy(offset.begin(), offset.end(), slice.offset);
  std::copy(shape.begin(), shape.end(), slice.shape);
  return slice;
}

// The numbers of a part, row by row, of a whole in which every element is the number of its place.
std::vector<uint32_t> Numbers(const muster_slice& slice) {
  std::vector<uint32_t> numbers;
  std::vector<uint64_t> at(slice.dims, 0);
  if (std::find(slice.shape, slice.shape + slice.dims, 0U) != slice.shape + slice.dims) return {};
  for (;;) {
    uint64_t number = 0;
    for (uint32_t d = 0; d < slice.dims; ++d)
      number = number * slice.global_shape[d] + slice.offset[d] + at[d];
    numbers.push_back(static_cast<uint32_t>(number * 2654435761U));
    uint32_t d = slice.dims;
    while (d > 0 && ++at[d - 1] == slice.shape[d - 1]) at[--d] = 0;
    if (d == 0) return numbers;
  }
}

class LibmusterSlices : public Libmuster {
 protected:
  void SetUp() override {
    Libmuster::SetUp();
    musterd_.Change([](auto& rules) { rules.restore_step = kStep; });
    Open();
  }

  int Add(const std::string& name, const muster_slice& part, const char* meta = nullptr) {
    const std::vector<uint32_t> numbers = Numbers(part);
    return muster_save_add_slice(m_, name.c_str(), meta, &part, numbers.data(), numbers.size() * 4);
  }
  // What `add` adds is the shard of the next rank in the checkpoint of kStep.
  void Member(const std::function<void()>& add) {
    const uint64_t step = ++saves_;
    ASSERT_EQ(muster_save_begin(m_, step, 0), MUSTER_OK) << Said();
    add();
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
    ASSERT_EQ(muster_wait(m_, step, 10000), MUSTER_OK) << Said();
    ++members_;
    PutShard(kStep, members_ - 1, musterd_.shards.at(step), members_);
  }
  void PutShard(uint64_t step, uint32_t rank, const std::string& bytes, uint32_t world) {
    musterd_.Change([&](auto& rules) {
      musterd_.others[{step, rank}] = bytes;
      rules.restore_world = world;
    });
  }
  int Restore(const std::string& name, const muster_slice& want) {
    std::vector<uint32_t> got(Numbers(want).size(), 0);
    const int status =
        muster_restore_slice(m_, MUSTER_LATEST, name.c_str(), &want, got.data(), got.size() * 4);
    if (status == MUSTER_OK) {
      EXPECT_EQ(got, Numbers(want)) << name;
    }
    return status;
  }
  std::vector<FakeMusterd::Range> Ranges() {
    std::vector<FakeMusterd::Range> ranges;
    musterd_.Look([&](const auto& m) { ranges = m.ranges; });
    return ranges;
  }
  std::vector<uint32_t> RanksAsked() {
    std::vector<uint32_t> ranks;
    for (const auto& range : Ranges()) ranks.push_back(range.rank);
    return ranks;
  }

  void Reopen(const std::function<void(FakeMusterd::Rules&)>& change) {
    muster_close(m_);
    m_ = nullptr;
    ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.clients() == 0; }));
    musterd_.Change(change);
    Open();
  }

  uint32_t members_ = 0;
  uint64_t saves_ = 0;
};

TEST_F(LibmusterSlices, FourMembersRowsAreThreeMembersColumns) {
  for (uint64_t r = 0; r < 4; ++r) {
    Member([&] { EXPECT_EQ(Add("w", Part({8, 9}, {2 * r, 0}, {2, 9})), MUSTER_OK) << Said(); });
  }
  for (uint64_t c = 0; c < 3; ++c)
    EXPECT_EQ(Restore("w", Part({8, 9}, {0, 3 * c}, {8, 3})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("w", Part({8, 9}, {0, 0}, {8, 9})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("w", Part({8, 9}, {7, 8}, {1, 1})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("w", Part({8, 9}, {8, 0}, {0, 9})), MUSTER_OK) << Said();
}

TEST_F(LibmusterSlices, AnyDivisionIsRestoredToAnyOther) {
  std::mt19937 random(7);
  const auto upto = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n)(random); };
  for (int tensor = 0; tensor < 60; ++tensor) {
    const std::string name = "t" + std::to_string(tensor);
    Dims global(upto(4));
    for (uint64_t& size : global) size = 1 + upto(6);
    const auto part = [&] {
      Dims offset(global.size());
      Dims shape(global.size());
      for (size_t d = 0; d < global.size(); ++d) {
        offset[d] = upto(global[d] - 1);
        shape[d] = 1 + upto(global[d] - offset[d] - 1);
      }
      return Part(global, offset, shape);
    };
    const auto world = static_cast<uint32_t>(1 + upto(5));
    const auto whole_at = static_cast<uint32_t>(upto(world - 1));
    std::vector<std::vector<muster_slice>> saved(world);
    for (uint32_t rank = 0; rank < world; ++rank) {
      for (uint64_t i = upto(3); i > 0; --i) saved[rank].push_back(part());
      if (rank == whole_at) saved[rank].push_back(Part(global, Dims(global.size(), 0), global));
    }
    for (uint32_t rank = 0; rank < world; ++rank) {
      const uint64_t step = ++saves_;
      ASSERT_EQ(muster_save_begin(m_, step, 0), MUSTER_OK) << Said();
      for (const muster_slice& one : saved[rank]) ASSERT_EQ(Add(name, one), MUSTER_OK) << Said();
      ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
      ASSERT_EQ(muster_wait(m_, step, 10000), MUSTER_OK) << Said();
      PutShard(2000 + static_cast<uint64_t>(tensor), rank, musterd_.shards.at(step), world);
    }
    for (int i = 0; i < 10; ++i) {
      const muster_slice want = part();
      const std::vector<uint32_t> expected = Numbers(want);
      std::vector<uint32_t> got(expected.size(), 0);
      ASSERT_EQ(muster_restore_slice(m_, 2000 + static_cast<uint64_t>(tensor), name.c_str(), &want,
                                     got.data(), got.size() * 4),
                MUSTER_OK)
          << Said();
      ASSERT_EQ(got, expected) << name;
    }
  }
}

TEST_F(LibmusterSlices, WhatAllSavedAlikeIsTakenFromOnesOwnPlace) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Member([&] { EXPECT_EQ(Add("bias", Part({5}, {0}, {5})), MUSTER_OK); });
  }
  EXPECT_EQ(Restore("bias", Part({5}, {0}, {5})), MUSTER_OK) << Said();
  EXPECT_THAT(RanksAsked(), ElementsAre(2));  // this member's rank
}

TEST_F(LibmusterSlices, AFirstRankIsAskedFirst) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Member([&] { EXPECT_EQ(Add("bias", Part({5}, {0}, {5})), MUSTER_OK); });
  }
  uint32_t got[5];
  muster_slice_wanted wanted{"bias", got, sizeof got, 1, 0, Part({5}, {0}, {5})};
  EXPECT_EQ(muster_restore_slices(m_, MUSTER_LATEST, &wanted, 1), MUSTER_OK) << Said();
  EXPECT_THAT(RanksAsked(), ElementsAre(1));
  wanted.first_rank = 4;
  EXPECT_EQ(muster_restore_slices(m_, MUSTER_LATEST, &wanted, 1), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("no shard of rank 4: it was saved by 4 members"));
}

TEST_F(LibmusterSlices, ManyAtOnceAreReadTogether) {
  Member([&] {
    for (uint64_t i = 0; i < 500; ++i) {
      EXPECT_EQ(Add("t" + std::to_string(i), Part({500, 3}, {i, 0}, {1, 3})), MUSTER_OK) << Said();
    }
  });
  std::vector<std::string> names;
  for (int i = 0; i < 500; ++i) names.push_back("t" + std::to_string(i));
  std::vector<std::vector<uint32_t>> got(500, std::vector<uint32_t>(3));
  std::vector<muster_slice_wanted> wanted;
  for (uint64_t i = 0; i < 500; ++i) {
    wanted.push_back(
        {names[i].c_str(), got[i].data(), 12, MUSTER_ANY_RANK, 0, Part({500, 3}, {i, 0}, {1, 3})});
  }
  EXPECT_EQ(muster_restore_slices(m_, kStep, wanted.data(), wanted.size()), MUSTER_OK) << Said();
  for (uint64_t i = 0; i < 500; ++i) EXPECT_EQ(got[i], Numbers(wanted[i].want));
  EXPECT_EQ(Ranges().size(), 1u);
  EXPECT_EQ(muster_restore_slices(m_, kStep, nullptr, 0), MUSTER_OK);
}

TEST_F(LibmusterSlices, OnlyTheBlocksThatAreNeededAreRead) {
  constexpr uint64_t kMi = 1 << 20;
  Member([&] { EXPECT_EQ(Add("big", Part({4, 5 * kMi}, {0, 0}, {4, 5 * kMi})), MUSTER_OK) << Said(); });
  // One row of 20 MiB; the rows are 20 MiB from each other, so a column is read row by row.
  EXPECT_EQ(Restore("big", Part({4, 5 * kMi}, {0, 7}, {4, 100})), MUSTER_OK) << Said();
  const std::vector<FakeMusterd::Range> ranges = Ranges();
  const uint64_t bytes = std::accumulate(ranges.begin(), ranges.end(), uint64_t{0},
                                         [](uint64_t sum, const auto& range) { return sum + range.bytes; });
  EXPECT_LE(ranges.size(), 7u);
  EXPECT_LE(bytes, 7 * 4 * kMi);
  for (const auto& range : ranges) EXPECT_EQ(range.offset % (4 * kMi), 0u);
  // Near ones are one range, whatever lies between them.
  musterd_.Change([&](auto&) { musterd_.ranges.clear(); });
  EXPECT_EQ(Restore("big", Part({4, 5 * kMi}, {1, 0}, {2, 5 * kMi})), MUSTER_OK) << Said();
  EXPECT_EQ(Ranges().size(), 1u);
}

TEST_F(LibmusterSlices, WhatNobodySavedIsNamed) {
  Member([&] { EXPECT_EQ(Add("w", Part({6, 4}, {0, 0}, {2, 4})), MUSTER_OK); });
  Member([&] { EXPECT_EQ(Add("w", Part({6, 4}, {3, 0}, {3, 4})), MUSTER_OK); });
  EXPECT_EQ(Restore("w", Part({6, 4}, {0, 0}, {6, 4})), MUSTER_E_NOT_FOUND);
  EXPECT_THAT(
      Said(),
      HasSubstr("nobody saved the part of 'w' from 2,0 on, of shape 1,4, in the checkpoint of step 1000"));
  EXPECT_EQ(Restore("v", Part({6, 4}, {0, 0}, {6, 4})), MUSTER_E_NOT_FOUND);
  EXPECT_THAT(Said(), HasSubstr("nobody saved a part of a tensor 'v'"));
  EXPECT_EQ(Restore("w", Part({6, 4}, {4, 1}, {2, 2})), MUSTER_OK) << Said();
}

TEST_F(LibmusterSlices, AnotherTypeOrShapeThanWasSavedIsRefusedWithBoth) {
  Member([&] { EXPECT_EQ(Add("w", Part({6, 4}, {0, 0}, {6, 4})), MUSTER_OK); });
  EXPECT_EQ(Restore("w", Part({6, 4}, {0, 0}, {6, 4}, "i32")), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), AllOf(HasSubstr("'w' was saved by rank 0 as u32 (4 bytes) of shape 6,4"),
                            HasSubstr("not as i32 (4 bytes) of shape 6,4")));
  EXPECT_EQ(Restore("w", Part({6, 5}, {0, 0}, {6, 4})), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("of shape 6,5"));
  EXPECT_EQ(Restore("w", Part({24}, {0}, {4})), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("not as u32 (4 bytes) of shape 24"));
}

TEST_F(LibmusterSlices, BadArgumentsAreRefusedWithASentence) {
  Member([&] {
    const muster_slice part = Part({6, 4}, {0, 0}, {6, 4});
    const char data[96] = {};
    EXPECT_EQ(muster_save_add_slice(m_, nullptr, nullptr, &part, data, 96), MUSTER_E_INVALID);
    EXPECT_EQ(muster_save_add_slice(m_, "a\tb", nullptr, &part, data, 96), MUSTER_E_INVALID);
    EXPECT_THAT(Said(), HasSubstr("no control characters"));
    EXPECT_EQ(muster_save_add_slice(m_, std::string(256, 'n').c_str(), nullptr, &part, data, 96),
              MUSTER_E_INVALID);
    EXPECT_EQ(muster_save_add_slice(m_, "w", std::string(3073, 'm').c_str(), &part, data, 96),
              MUSTER_E_INVALID);
    EXPECT_THAT(Said(), HasSubstr("the metadata of 'w' is above 3072 bytes"));
    EXPECT_EQ(muster_save_add_slice(m_, "w", nullptr, nullptr, data, 96), MUSTER_E_INVALID);
    EXPECT_THAT(Said(), HasSubstr("'w' has no slice"));
    EXPECT_EQ(muster_save_add_slice(m_, "w", nullptr, &part, data, 95), MUSTER_E_INVALID);
    EXPECT_THAT(Said(), HasSubstr("not 95 bytes"));
    EXPECT_EQ(muster_save_add_slice(m_, "w", nullptr, &part, nullptr, 96), MUSTER_E_INVALID);
    EXPECT_THAT(Said(), HasSubstr("the data of 'w' is NULL"));
    const std::string longest(255, 'n');
    EXPECT_EQ(Add(longest, part, std::string(3072, 'm').c_str()), MUSTER_OK) << Said();
    EXPECT_EQ(Add(longest, part), MUSTER_E_INVALID);  // a second part's name is longer
    EXPECT_EQ(Add("w", part), MUSTER_OK);
  });
  const muster_slice part = Part({6, 4}, {0, 0}, {6, 4});
  EXPECT_EQ(muster_save_add_slice(m_, "w", nullptr, &part, "", 96), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("no save has been begun"));
  uint32_t got[24];
  EXPECT_EQ(muster_restore_slice(m_, kStep, "w", nullptr, got, 96), MUSTER_E_INVALID);
  EXPECT_EQ(muster_restore_slice(m_, kStep, "w", &part, nullptr, 96), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("nowhere to put 'w'"));
  EXPECT_EQ(muster_restore_slice(m_, kStep, "w", &part, got, 92), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("not 92 bytes"));
  EXPECT_EQ(muster_restore_slice(m_, kStep, "", &part, got, 96), MUSTER_E_INVALID);
  EXPECT_EQ(muster_restore_slices(m_, kStep, nullptr, 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_slice_info(m_, kStep, nullptr, MUSTER_ANY_RANK, nullptr, nullptr), MUSTER_E_INVALID);
  EXPECT_THAT(Ranges(), IsEmpty());
  EXPECT_EQ(Restore("w", part), MUSTER_OK) << Said();
}

TEST_F(LibmusterSlices, WhatATensorIsCanBeAsked) {
  Member([&] { EXPECT_EQ(muster_save_add(m_, "plain", nullptr, "x", 1), MUSTER_OK); });
  Member([&] { EXPECT_EQ(Add("w", Part({6, 4}, {2, 0}, {2, 4}), "the program's"), MUSTER_OK); });
  muster_slice info{};
  const char* meta = nullptr;
  ASSERT_EQ(muster_slice_info(m_, MUSTER_LATEST, "w", 1, &info, &meta), MUSTER_OK) << Said();
  EXPECT_STREQ(info.dtype, "u32");
  EXPECT_EQ(info.element_bytes, 4u);
  EXPECT_EQ(info.dims, 2u);
  EXPECT_EQ(info.global_shape[0], 6u);
  EXPECT_EQ(info.offset[0], 2u);
  EXPECT_EQ(info.shape[0], 2u);
  EXPECT_STREQ(meta, "the program's");
  EXPECT_EQ(muster_slice_info(m_, MUSTER_LATEST, "plain", MUSTER_ANY_RANK, nullptr, nullptr),
            MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_slice_info(m_, MUSTER_LATEST, "w", MUSTER_ANY_RANK, nullptr, nullptr), MUSTER_OK);
  EXPECT_EQ(muster_slice_info(m_, MUSTER_LATEST, "w", 2, nullptr, nullptr), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("no shard of rank 2"));
}

TEST_F(LibmusterSlices, AnEntryThatOnlyLooksLikeASecondPartIsNone) {
  Member([&] {
    EXPECT_EQ(muster_save_add(m_, "w#1", nullptr, "x", 1), MUSTER_OK);
    EXPECT_EQ(Add("w", Part({4}, {0}, {2})), MUSTER_OK) << Said();
    EXPECT_EQ(Add("w", Part({4}, {2}, {2})), MUSTER_OK) << Said();
    EXPECT_EQ(Add("v#1", Part({2}, {0}, {2})), MUSTER_OK) << Said();
    EXPECT_EQ(Add("v", Part({2}, {0}, {1})), MUSTER_OK) << Said();
  });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("v#1", Part({2}, {0}, {2})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("v", Part({2}, {0}, {2})), MUSTER_E_NOT_FOUND);
}

TEST_F(LibmusterSlices, ShardsThatLieAreCorrupt) {
  Member([&] {
    EXPECT_EQ(Add("w", Part({4}, {0}, {4})), MUSTER_OK) << Said();
    EXPECT_EQ(muster_save_add(m_, "bad", "muster-slice/1 u32 4 0 4 0 4\n", "1234", 4), MUSTER_OK);
    EXPECT_EQ(muster_save_add(m_, "new", "muster-slice/2 anything", "1234", 4), MUSTER_OK);
  });
  EXPECT_EQ(Restore("bad", Part({4}, {0}, {4})), MUSTER_E_CORRUPT);
  EXPECT_THAT(Said(), HasSubstr("the entry 'bad' in the shard of rank 0 of step 1000 does not say"));
  EXPECT_EQ(Restore("new", Part({4}, {0}, {4})), MUSTER_E_CORRUPT);
  EXPECT_THAT(Said(), HasSubstr("in a version that this library does not know"));
  const std::string good = musterd_.others.at({kStep, 0});
  // What is known of this step is kept, so another one is asked for.
  const auto copy = [&](uint64_t step, const std::string& bytes) {
    PutShard(step, 0, bytes, 1);
    uint32_t got[4];
    const muster_slice want = Part({4}, {0}, {4});
    return muster_restore_slice(m_, step, "w", &want, got, sizeof got);
  };
  EXPECT_EQ(copy(1, good), MUSTER_OK) << Said();
  EXPECT_EQ(copy(2, good.substr(0, good.size() - 8)), MUSTER_E_CORRUPT);
  EXPECT_THAT(Said(),
              HasSubstr("the shard of rank 0 of step 2 cannot be read: its index lies outside of it"));
  EXPECT_EQ(copy(3, "short"), MUSTER_E_CORRUPT);
  EXPECT_EQ(copy(4, std::string(100, 'x')), MUSTER_E_CORRUPT);
}

TEST_F(LibmusterSlices, AMusterdThatLiesIsFoundOut) {
  Member([&] { EXPECT_EQ(Add("w", Part({4}, {0}, {4})), MUSTER_OK) << Said(); });
  musterd_.Change([](auto& rules) { rules.range_cut = 1; });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_E_PROTOCOL);
  musterd_.Change([](auto& rules) {
    rules.range_cut = 0;
    rules.range_sealed = false;
  });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_E_PROTOCOL);
  musterd_.Change([](auto& rules) { rules.range_sealed = true; });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_OK) << Said();
}

TEST_F(LibmusterSlices, AnOlderMusterdIsNamed) {
  Reopen([](auto& rules) { rules.features = wire::kKnowsShards; });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_E_PROTOCOL);
  EXPECT_THAT(Said(), HasSubstr("older than this libmuster: it gives no parts of shards"));
}

TEST_F(LibmusterSlices, AStepThatIsSavedAnewMeanwhileIsReadAnew) {
  Member([&] { EXPECT_EQ(Add("first", Part({4}, {0}, {4})), MUSTER_OK); });
  Member([&] { EXPECT_EQ(Add("second", Part({4}, {0}, {4})), MUSTER_OK); });
  EXPECT_EQ(Restore("second", Part({4}, {0}, {4})), MUSTER_OK) << Said();
  EXPECT_EQ(Restore("first", Part({4}, {0}, {4})), MUSTER_OK) << Said();
  // Now the second shard has other things before the tensor.
  members_ = 1;
  Member([&] {
    EXPECT_EQ(muster_save_add(m_, "more", nullptr, std::string(1000, 'm').data(), 1000), MUSTER_OK);
    EXPECT_EQ(Add("second", Part({4}, {0}, {4})), MUSTER_OK);
  });
  musterd_.Change([](auto& rules) { rules.checkpoint = 2; });
  EXPECT_EQ(Restore("second", Part({4}, {0}, {4})), MUSTER_OK) << Said();
}

TEST_F(LibmusterSlices, ThereIsNothingToRestoreWithoutACheckpoint) {
  Reopen([](auto& rules) { rules.restore_step = wire::kNoStep; });
  EXPECT_EQ(Restore("w", Part({4}, {0}, {4})), MUSTER_E_NOT_FOUND);
  EXPECT_THAT(Said(), HasSubstr("no checkpoint yet"));
}

}  // namespace
}  // namespace muster
