// muster_exchange from end to end: two programs with libmuster, the daemons of their nodes, and one of these coordinates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/daemon/two_programs.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::Type;

constexpr int kLong = 60'000;  // milliseconds

class ExchangeValues : public TwoPrograms {
 protected:
  // The values, or the sentence.
  std::vector<std::string> Exchange(uint32_t node, const std::string& key, const std::string& value,
                                    int timeout_ms = kLong) {
    muster_handle* m = handles_[node].get();
    if (muster_exchange(m, key.c_str(), value.data(), value.size(), timeout_ms) != MUSTER_OK)
      return {muster_last_error(m)};
    std::vector<std::string> values;
    for (uint32_t rank = 0; rank < muster_world_size(m); ++rank) {
      const void* data = nullptr;
      size_t bytes = 0;
      EXPECT_EQ(muster_exchanged(m, rank, &data, &bytes), MUSTER_OK) << muster_last_error(m);
      values.emplace_back(static_cast<const char*>(data), bytes);
    }
    return values;
  }
  // The sentence of a call without time. That of the library alone is given where nobody has said in a second who is missing.
  std::vector<std::string> Incomplete(uint32_t node, const std::string& key, const std::string& value) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLong);
    std::vector<std::string> said;
    do {
      said = Exchange(node, key, value, 0);
    } while (said.size() == 1 && said[0].ends_with("does not say which members are missing") &&
             std::chrono::steady_clock::now() < end);
    return said;
  }
  auto Beside(uint32_t node, const std::string& key, const std::string& value) {
    return std::async(std::launch::async, [this, node, key, value] { return Exchange(node, key, value); });
  }
};

TEST_F(ExchangeValues, EachGetsAllInTheOrderOfRanks) {
  auto other = Beside(1, "where", "");
  EXPECT_THAT(Exchange(0, "where", std::string("n1\0:1", 5)), ElementsAre(std::string("n1\0:1", 5), ""));
  EXPECT_THAT(other.get(), ElementsAre(std::string("n1\0:1", 5), ""));
  other = Beside(1, "again", "b");
  EXPECT_THAT(Exchange(0, "again", "a"), ElementsAre("a", "b"));
  EXPECT_THAT(other.get(), ElementsAre("a", "b"));
}

TEST_F(ExchangeValues, WhoIsMissingIsNamedAndTheSameCallGoesOn) {
  EXPECT_THAT(
      Incomplete(0, "k", "a"),
      ElementsAre(
          "the exchange under the key k is not complete: 1 of 2 members have given nothing yet: rank 1"));
  EXPECT_THAT(Exchange(0, "k", "other"), ElementsAre("another value was given under the key k before"));
  auto other = Beside(1, "k", "b");
  EXPECT_THAT(Exchange(0, "k", "a"), ElementsAre("a", "b"));
  EXPECT_THAT(other.get(), ElementsAre("a", "b"));
}

TEST_F(ExchangeValues, WhatIsWrongIsRefusedWithASentence) {
  muster_handle* m = handles_[0].get();
  const void* data = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(muster_exchanged(m, 0, &data, &bytes), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_exchange(m, "", "x", 1, kLong), MUSTER_E_INVALID);
  EXPECT_EQ(muster_exchange(m, nullptr, "x", 1, kLong), MUSTER_E_INVALID);
  EXPECT_EQ(muster_exchange(m, "two words", "x", 1, kLong), MUSTER_E_INVALID);
  EXPECT_EQ(muster_exchange(m, std::string(64, 'k').c_str(), "x", 1, kLong), MUSTER_E_INVALID);
  EXPECT_EQ(muster_exchange(m, "k", nullptr, 1, kLong), MUSTER_E_INVALID);
  const std::string large(MUSTER_EXCHANGE_VALUE_MAX + 1, 'x');
  EXPECT_EQ(muster_exchange(m, "k", large.data(), large.size(), kLong), MUSTER_E_TOO_LARGE);
  EXPECT_THAT(muster_last_error(m), HasSubstr("4097 bytes"));
  const std::string whole(MUSTER_EXCHANGE_VALUE_MAX, 'x');
  auto other = Beside(1, "k", whole);
  EXPECT_THAT(Exchange(0, "k", whole), ElementsAre(whole, whole));
  other.get();
  EXPECT_EQ(muster_exchanged(m, 2, &data, &bytes), MUSTER_E_INVALID);
  EXPECT_THAT(
      Exchange(0, "k", "x"),
      ElementsAre(HasSubstr("the key k has been used in this generation: give each exchange another")));
}

TEST_F(ExchangeValues, ItOutlivesTheMusterdThatCoordinatesAndTheOther) {
  for (uint32_t node = 0; node < 2; ++node) {
    const std::string key = "k" + std::to_string(node);
    auto first = Beside(0, key, "a");
    // It has been given, or is about to be.
    Restart(1 - node);
    Restart(node);
    auto second = Beside(1, key, "b");
    EXPECT_THAT(first.get(), ElementsAre("a", "b"));
    EXPECT_THAT(second.get(), ElementsAre("a", "b"));
  }
}

TEST_F(ExchangeValues, AGenerationKnowsNothingOfTheOneBefore) {
  EXPECT_THAT(Incomplete(0, "k", "old"), ElementsAre(HasSubstr("rank 1")));
  supervisors_[1].Exited(generation_, 9);
  for (TestSupervisor& supervisor : supervisors_) {
    ASSERT_TRUE(supervisor.Next(Type::kStop));
    supervisor.Stopped(generation_);
  }
  const Handle old = std::move(handles_[0]);
  StartAll();
  EXPECT_EQ(muster_exchange(old.get(), "k", "old", 3, kLong), MUSTER_E_DENIED);
  EXPECT_THAT(muster_last_error(old.get()), HasSubstr("generation"));
  auto other = Beside(1, "k", "b");
  EXPECT_THAT(Exchange(0, "k", "new"), ElementsAre("new", "b"));
  EXPECT_THAT(other.get(), ElementsAre("new", "b"));
}

}  // namespace
}  // namespace muster
