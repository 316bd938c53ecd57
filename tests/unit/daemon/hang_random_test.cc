// Random training runs: no false alarm, and every hang found in time, with the right culprit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <random>

#include "tests/support/test_seed.h"
#include "tests/unit/daemon/hang_rig.h"

namespace muster::hang {
namespace {

#ifdef MUSTER_SANITIZED
constexpr uint32_t kRuns = 15;  // there it takes ten times as long
#else
constexpr uint32_t kRuns = 150;
#endif

struct Training {
  explicit Training(uint32_t seed) : random(seed), gang(2 + seed % 15) {
    step_seconds = std::exp(Uniform(std::log(0.02), std::log(40.0)));
    jitter = Uniform(0.0, 0.5);
    checkpoint_every = 10 + random() % 50;
    checkpoint_seconds = Uniform(1.0, 110.0);
    validation_every = 100 + random() % 100;
    validation_seconds = std::min(580.0, step_seconds * Uniform(5.0, 100.0));
    ahead = random() % 2 == 0;  // progress() before the collective: ranks enter one after another
  }

  double Uniform(double low, double high) { return std::uniform_real_distribution<>(low, high)(random); }

  // All ranks work on the next step.
  std::optional<Verdict> Step() {
    double seconds = step_seconds * std::exp(std::normal_distribution<>(0, jitter)(random));
    ++gang.step;
    if (gang.step % checkpoint_every == 0) seconds += checkpoint_seconds;
    if (gang.step % validation_every == 0) seconds += validation_seconds;
    // Without progress() in it, nobody can tell a first phase above the floor from a hang.
    seconds = std::min(seconds, 590.0);
    if (ahead) gang.Step(static_cast<uint32_t>(random() % gang.members.size()), gang.step);
    if (auto verdict = gang.Pass(static_cast<int64_t>(seconds * kSecondNs) + 1)) return verdict;
    gang.StepAll(gang.step);
    return std::nullopt;
  }

  std::mt19937 random;
  Gang gang;
  double step_seconds, jitter, checkpoint_seconds, validation_seconds;
  uint64_t checkpoint_every, validation_every;
  bool ahead;
};

TEST(HangRandom, JitterCheckpointsAndValidationsAreNoHangsAndAHangIsFoundWithItsRank) {
  const auto first = static_cast<uint32_t>(FirstSchedule());
  std::cout << kRuns << " runs from " << first << "\n";
  for (uint32_t seed = first; seed != first + kRuns; ++seed) {
    SCOPED_TRACE(seed);
    Training run(seed);
    Gang& gang = run.gang;
    for (const Member& member : gang.members) gang.Works(member.rank, {1.0, 0});
    for (int i = 0; i < 400; ++i) {
      const auto verdict = run.Step();
      ASSERT_FALSE(verdict) << "false alarm at step " << gang.step << ": " << verdict->text;
    }
    const auto culprit = static_cast<uint32_t>(run.random() % gang.members.size());
    const bool idle = run.random() % 2 == 0;
    if (idle) gang.Works(culprit, {0, 0});
    ++gang.step;
    for (const Member& member : gang.members) {
      if (member.rank != culprit) gang.Step(member.rank, gang.step);
    }
    const int64_t began = gang.now;
    const auto verdict = gang.Pass(4000 * kSecondNs);
    ASSERT_TRUE(verdict);
    EXPECT_THAT(verdict->culprits, testing::ElementsAre(culprit)) << verdict->text;
    EXPECT_LE(gang.now - began, verdict->limit_ns + 2 * kSecondNs) << verdict->text;
    EXPECT_EQ(verdict->positions.size(), gang.members.size());
  }
}

// Generations of one program, from caches that are cold and warm, on nodes that change, with restores, some of which end before their
// tenth step. Then one in which a rank never opens the gang.
TEST(HangRandom, NoStartIsTakenForAHangAndOneThatNeverEndsIsFoundWithItsRank) {
  const auto first = static_cast<uint32_t>(FirstSchedule());
  for (uint32_t seed = first; seed != first + kRuns / 3; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
    Gang gang(2 + seed % 7);
    for (const Member& member : gang.members) gang.Works(member.rank, {1.0, 0});
    const int64_t cold = (1 + below(2400)) * kSecondNs;
    for (int generation = 0; generation < 6; ++generation) {
      if (generation > 0) {
        if (below(3) == 0) gang.members[0].node = "spare" + std::to_string(generation);
        gang.Restart(below(4) != 0);
      }
      gang.OpenAll();
      int64_t start = generation == 0 ? cold : cold / (1 + below(50));
      gang.reports[0].checkpoint_busy = true;
      ASSERT_FALSE(gang.Pass(below(600) * kSecondNs));
      gang.reports[0].checkpoint_busy = false;
      auto verdict = gang.Pass(start);
      ASSERT_FALSE(verdict) << "false alarm in generation " << generation << ": " << verdict->text;
      ASSERT_FALSE(gang.Train(static_cast<uint64_t>(below(20)), kSecondNs));
    }
    gang.Restart();
    ASSERT_FALSE(gang.Train(20, kSecondNs));
    gang.Restart();
    const auto culprit = static_cast<uint32_t>(random() % gang.members.size());
    gang.OpenAll();
    gang.reports[culprit].opened = false;
    const auto verdict = gang.Pass(3 * 2420 * kSecondNs + 1800 * kSecondNs);
    ASSERT_TRUE(verdict);
    if (gang.members.size() > 2) {
      EXPECT_THAT(verdict->culprits, testing::ElementsAre(culprit)) << verdict->text;
    }
    EXPECT_LE(verdict->stalled_ns, std::max(1800 * kSecondNs, 3 * (cold + 20 * kSecondNs)) + 2 * kSecondNs);
  }
}

}  // namespace
}  // namespace muster::hang
