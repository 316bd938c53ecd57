#include "ceph/engine/depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <queue>
#include <random>

namespace muster {
namespace {

// A store in virtual time: each operation takes `latency` to come there and back, and between them they share what `workers`
// can do, each `service` for one.
struct Model {
  double latency = 0.01;
  double service = 0.01;
  size_t workers = 1;
  double noise = 0;  // part of the service
};

// The depth after so many operations, as many under way as it allows. `above`: how many of them ended with more than 16.
size_t After(Depth& depth, const Model& model, size_t operations, std::mt19937& random,
             size_t* above = nullptr) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (size_t i = 0; i < model.workers; ++i) free.push(0);
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  std::uniform_real_distribution<double> noise(1 - model.noise, 1 + model.noise);
  double now = 0;
  for (size_t ended = 0; ended < operations; ++ended) {
    while (ends.size() < depth.now()) {
      const double begin = std::max(now, free.top());
      free.pop();
      const double done = begin + model.service * noise(random);
      free.push(done);
      ends.push(done + model.latency);
    }
    now = ends.top();
    ends.pop();
    if (above != nullptr && depth.now() > 16) ++*above;
    depth.Ended(
        Depth::Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(now))),
        true);
  }
  return depth.now();
}

TEST(Depth, AStoreThatIsFarAwayGetsMore) {
  std::mt19937 random(1);
  Depth depth(16, 64);
  EXPECT_EQ(After(depth, {.latency = 1, .service = 0.001, .workers = 1}, 4'000, random), 64U);
}

TEST(Depth, AStoreThatIsBusyGetsNoMoreThanTheLeastButForTrials) {
  std::mt19937 random(1);
  Depth depth(16, 64);
  size_t above = 0;
  After(depth, {.latency = 0.001, .service = 0.01, .workers = 4}, 20'000, random, &above);
  EXPECT_LT(above, 2'000U);
}

TEST(Depth, AStoreThatHasWorkFor40GetsAboutThat) {
  std::mt19937 random(1);
  for (const double noise : {0.0, 0.5}) {
    Depth depth(8, 256);
    const size_t found =
        After(depth, {.latency = 0.0001, .service = 0.02, .workers = 40, .noise = noise}, 20'000, random);
    EXPECT_GE(found, 24U) << noise;
    EXPECT_LE(found, 90U) << noise;
  }
}

TEST(Depth, WhatPaysNoMoreIsGivenBack) {
  std::mt19937 random(1);
  Depth depth(16, 64);
  ASSERT_EQ(After(depth, {.latency = 1, .service = 0.001, .workers = 1}, 4'000, random), 64U);
  EXPECT_LE(After(depth, {.latency = 0, .service = 0.01, .workers = 4}, 60'000, random), 24U);
}

TEST(Depth, NoiseKeepsItWithinItsBoundsAndAHaltStartsTheRoundAgain) {
  std::mt19937 random(1);
  Depth depth(4, 12);
  double at = 0;
  for (int i = 0; i < 100'000; ++i) {
    at += 1e-3 * std::uniform_real_distribution<double>(0, 2)(random);
    depth.Ended(
        Depth::Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(at))),
        random() % 1'000 != 0);
    ASSERT_GE(depth.now(), 4U);
    ASSERT_LE(depth.now(), 12U);
  }
  Depth never(4, 12);
  for (int i = 0; i < 1'000; ++i) never.Ended(Depth::Time(std::chrono::seconds(i)), false);
  EXPECT_EQ(never.now(), 4U);
}

TEST(Depth, OneThatMustNotChangeDoesNot) {
  std::mt19937 random(1);
  Depth depth(3, 3);
  EXPECT_EQ(After(depth, {.latency = 1, .service = 0.001, .workers = 1}, 2'000, random), 3U);
  EXPECT_EQ(Depth(0, 0).now(), 1U);
}

}  // namespace
}  // namespace muster
