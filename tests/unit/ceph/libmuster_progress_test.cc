// libmuster: progress, and what musterd asks of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ceph/muster.h"
#include "tests/unit/ceph/libmuster_rig.h"

namespace muster {
namespace {

TEST_F(Libmuster, NotificationsSetTheFlags) {
  Open();
  EXPECT_EQ(muster_should_checkpoint(m_), 0);
  EXPECT_EQ(muster_should_exit(m_), 0);
  musterd_.SendNotify(wire::kShouldCheckpoint | wire::kShouldExit);
  EXPECT_TRUE(Eventually([&] { return muster_should_exit(m_) == 1; }));
  EXPECT_EQ(muster_should_checkpoint(m_), 1);
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_should_checkpoint(m_), 0);  // it has been
  EXPECT_EQ(muster_should_exit(m_), 1);
}

TEST_F(Libmuster, ProgressIsSaidSeldomAndTheLastOneIsNotLost) {
  Open();
  for (uint64_t step = 1; step <= 1000; ++step) ASSERT_EQ(muster_progress(m_, step), MUSTER_OK);
  bool all = false;
  EXPECT_TRUE(Eventually([&] {
    musterd_.Look([&](const auto& m) { all = !m.progress.empty() && m.progress.back() == 1000; });
    return all;
  }));
  EXPECT_EQ(musterd_.progress.front(), 1u);
  EXPECT_LE(musterd_.progress.size(), 10u);
}

TEST_F(Libmuster, AMusterdThatReadsThePageSeesEveryStepAtOnceAndIsSentNone) {
  musterd_.Change([](auto& rules) { rules.wants_page = true; });
  Open();
  ASSERT_EQ(muster_progress(m_, 5), MUSTER_OK);
  ASSERT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_should_exit(m_), 0);
    bool there = false;
    musterd_.Look([&](const auto& m) { there = m.page.valid(); });
    return there;
  }));
  const auto page = [&] {
    wire::ProgressPage read{};
    musterd_.Look([&](const auto& m) {
      EXPECT_EQ(::pread(m.page.get(), &read, sizeof read, 0), static_cast<ssize_t>(sizeof read));
    });
    return read;
  };
  EXPECT_EQ(page().magic, wire::kPageMagic);
  EXPECT_EQ(page().step, 5u);  // said before it was there
  EXPECT_EQ(page().calls, 1u);
  size_t said = 0;
  musterd_.Look([&](const auto& m) { said = m.progress.size(); });
  int64_t before = page().monotonic_ns;
  for (uint64_t step = 6; step < 10'000; ++step) {
    ASSERT_EQ(muster_progress(m_, step), MUSTER_OK);
    if (step % 1000 != 0) continue;
    const wire::ProgressPage now = page();
    EXPECT_EQ(now.step, step);
    EXPECT_EQ(now.calls, step - 4);
    EXPECT_EQ(now.sequence % 2, 0u);
    EXPECT_GT(now.monotonic_ns, before);
    before = now.monotonic_ns;
  }
  EXPECT_EQ(musterd_.progress.size(), said);

  // Another musterd is given it too; an older one, which does not ask, is told as before.
  musterd_.Stop();
  musterd_.page.reset();
  musterd_.Start();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_progress(m_, 10'000), MUSTER_OK);
    bool there = false;
    musterd_.Look([&](const auto& m) { there = m.page.valid(); });
    return there;
  }));
  musterd_.Stop();
  musterd_.Change([](auto& rules) { rules.wants_page = false; });
  musterd_.progress.clear();
  musterd_.Start();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_progress(m_, 10'001), MUSTER_OK);
    bool heard = false;
    musterd_.Look([&](const auto& m) { heard = !m.progress.empty(); });
    return heard;
  }));
}

}  // namespace
}  // namespace muster
