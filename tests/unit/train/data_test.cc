#include "train/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace muster::train {
namespace {

using testing::HasSubstr;

Corpus Counting(int bytes) {
  std::vector<std::uint8_t> text(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(i);
  return Corpus(std::move(text));
}

TEST(Data, ABatchIsAPureFunctionOfSeedStepAndRank) {
  const Corpus corpus = Counting(250);
  std::set<std::vector<std::uint8_t>> seen;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (std::uint64_t step = 1; step < 4; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        const Batch first = corpus.Sample({seed, step, rank}, 4, 8);
        (void)corpus.Sample({seed + 9, step, rank}, 1, 8);  // what else was drawn does not matter
        const Batch again = corpus.Sample({seed, step, rank}, 4, 8);
        EXPECT_EQ(first.inputs, again.inputs);
        EXPECT_EQ(first.targets, again.targets);
        seen.insert(first.inputs);
      }
    }
  }
  EXPECT_EQ(seen.size(), 27U);
}

TEST(Data, ATargetIsTheByteAfterItsInput) {
  const Batch batch = Counting(200).Sample({1, 2, 3}, 5, 16);
  ASSERT_EQ(batch.inputs.size(), 80U);
  for (std::size_t i = 0; i < batch.inputs.size(); ++i) EXPECT_EQ(batch.targets[i], batch.inputs[i] + 1);
}

TEST(Data, ATextOfOneSequenceGivesThatSequence) {
  const Batch batch = Counting(9).Sample({1, 2, 3}, 2, 8);
  EXPECT_EQ(batch.inputs, (std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Data, ATextThatIsMissingOrTooShortIsRefused) {
  const std::string path = testing::TempDir() + "/muster-short-text";
  std::ofstream(path) << "12345678";
  EXPECT_TRUE(Corpus::Load(path, 7).ok());
  Result<Corpus> small = Corpus::Load(path, 8);
  ASSERT_FALSE(small.ok());
  EXPECT_THAT(small.error().message, HasSubstr("8 bytes"));
  std::filesystem::remove(path);
  Result<Corpus> missing = Corpus::Load(path, 8);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr(path));
}

}  // namespace
}  // namespace muster::train
