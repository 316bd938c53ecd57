#include "train/state.h"

#include <gtest/gtest.h>

#include "train/host_ops.h"

namespace muster::train {
namespace {

TEST(State, SlicesFollowOneAnotherWithoutGapAndDifferByOneAtMost) {
  for (const std::size_t count : {0U, 1U, 5U, 16U, 1000U, 2'601'216U}) {
    for (const int size : {1, 2, 3, 7, 16}) {
      std::size_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Slice slice = SliceOf(count, rank, size);
        EXPECT_EQ(slice.begin, next);
        EXPECT_LE(slice.size(), count / static_cast<std::size_t>(size) + 1);
        EXPECT_GE(slice.size(), count / static_cast<std::size_t>(size));
        next = slice.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(State, ItsThreePartsAreItsWhole) {
  HostOps ops;
  TrainingState state(ops, 5);
  EXPECT_EQ(state.all().size(), 15U);
  EXPECT_EQ(state.parameters().data(), state.all().data());
  EXPECT_EQ(state.first_moment().data(), state.all().data() + 5);
  EXPECT_EQ(state.second_moment().data(), state.all().data() + 10);
}

}  // namespace
}  // namespace muster::train
