// The page that a member shares with musterd, with a thread on each side: what musterd promises, the member keeps.
#include "wire/step_page.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "daemon/steps/member_page.h"

namespace muster {
namespace {

constexpr uint64_t kSteps = 200'000;
constexpr size_t kMeetings = 10;

TEST(StepPage, EveryStepIsAnsweredAsItWasDecidedHoweverTheThreadsMeet) {
  auto page = std::make_unique<wire::StepPage>();
  wire::InitPage(page.get());
  std::atomic<bool> done = false;
  std::map<uint64_t, uint32_t> decided;
  uint64_t late = 0;
  std::thread musterd([&] {
    wire::StepOrder order{};
    order.proposed = wire::kNoStep;
    uint64_t headroom = 1;
    while (!done) {
      order.proposed = wire::StepsAbove(page.get()) + headroom;
      wire::WriteOrder(page.get(), order);
      if (wire::StepsAbove(page.get()) > order.proposed) {
        ++late;
        headroom = headroom % 64 * 2 + 1;
        order.proposed = wire::kNoStep;
        wire::WriteOrder(page.get(), order);
        continue;
      }
      wire::AgreedStep& slot = order.agreed[order.decisions++ % wire::kKeptSteps];
      slot.step = order.proposed;
      slot.wish = wire::kWishSave;
      decided[order.proposed] = slot.wish;
      order.proposed = wire::kNoStep;
      wire::WriteOrder(page.get(), order);
      // As the coordinator: not more than the page has room for before the member has passed them.
      while (!done && wire::StepsAbove(page.get()) <= slot.step + 1) {
      }
    }
  });
  std::map<uint64_t, uint32_t> asked;
  uint64_t last = 0;
  // As many as the threads need to meet often, whatever else the machine does.
  while (last < kSteps || asked.size() <= kMeetings) {
    const uint64_t step = ++last;
    (void)wire::EnterStep(page.get(), step, static_cast<int64_t>(step));
    for (;;) {
      wire::StepOrder order{};
      const wire::AgreedStep* wish = nullptr;
      uint64_t due = 0;
      if (!wire::ReadOrder(page.get(), &order)) continue;
      const auto answer = wire::AnswerStep(order, step, &wish, &due);
      if (answer == wire::StepAnswer::kWait) continue;
      if (wish != nullptr) asked[step] = wish->wish;
      break;
    }
  }
  done = true;
  musterd.join();
  // The last one may have been decided for a step that is not entered any more.
  while (!decided.empty() && decided.rbegin()->first > last) decided.erase(std::prev(decided.end()));
  EXPECT_EQ(asked, decided);
  EXPECT_EQ(page->calls, last);
  EXPECT_EQ(page->above, last + 1);
  EXPECT_EQ(page->sequence % 2, 0U);
}

TEST(StepPage, ThreadsOfAMemberThatEnterStepsAtOnceLeaveItWhole) {
  auto page = std::make_unique<wire::StepPage>();
  wire::InitPage(page.get());
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t step = i; step < 30'000; step += 3) (void)wire::EnterStep(page.get(), step, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(page->calls, 30'000U);
  EXPECT_EQ(page->above, 30'000U);
  EXPECT_EQ(page->sequence, 60'000U);
}

TEST(StepPage, OneThatWasBeingWrittenWhenMusterdDiedIsMadeWhole) {
  wire::StepPage page;
  wire::InitPage(&page);
  page.order = 7;
  wire::StepOrder order{};
  EXPECT_FALSE(wire::ReadOrder(&page, &order));
  order.proposed = 5;
  wire::WriteOrder(&page, order);
  ASSERT_TRUE(wire::ReadOrder(&page, &order));
  EXPECT_EQ(order.order, 8U);
  EXPECT_EQ(order.proposed, 5U);
}

UniqueFd Memory(size_t bytes, int seals, unsigned flags = 0) {
  UniqueFd memory(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!memory.valid()) return memory;
  EXPECT_EQ(::ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  return memory;
}

TEST(StepPage, MusterdTakesOnlyMemoryThatStaysAsItIs) {
  constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_TRUE(steps::MapPage(Memory(wire::kStepPageBytes, kSealed)));
  EXPECT_FALSE(steps::MapPage(Memory(wire::kStepPageBytes, F_SEAL_GROW)));
  EXPECT_FALSE(steps::MapPage(Memory(wire::kStepPageBytes, F_SEAL_SHRINK)));
  EXPECT_FALSE(steps::MapPage(Memory(wire::kStepPageBytes - 1, kSealed)));
  EXPECT_FALSE(steps::MapPage(Memory(2 * wire::kStepPageBytes, kSealed)));
  EXPECT_FALSE(steps::MapPage(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))));
  EXPECT_FALSE(steps::MapPage(UniqueFd()));
}

}  // namespace
}  // namespace muster
