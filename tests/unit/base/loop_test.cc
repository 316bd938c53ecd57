#include "base/loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "base/worker.h"
#include "tests/support/virtual_clock.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

UniqueFd ReadyFd() {
  return UniqueFd(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
}

TEST(Loop, TimersFireInTheOrderOfTheirTimesAndThoseOfOneTimeInTheOrderSet) {
  Loop loop;
  std::vector<int> fired;
  loop.After(milliseconds(20), [&] {
    fired.push_back(3);
    loop.Stop();
  });
  loop.After(milliseconds(5), [&] { fired.push_back(1); });
  loop.After(milliseconds(10), [&] { fired.push_back(2); });
  loop.Run();
  EXPECT_THAT(fired, ElementsAre(1, 2, 3));
}

TEST(Loop, ATimerDoesNotFireEarly) {
  Loop loop;
  const auto begin = loop.Now();
  loop.After(milliseconds(15), [&] { loop.Stop(); });
  loop.Run();
  EXPECT_GE(loop.Now() - begin, milliseconds(15));
}

TEST(Loop, TimeIsTheClocksAndATimerWaitsUntilItHasMovedSoFar) {
  VirtualClock clock;
  Loop loop(clock);
  const Loop::Time begin = loop.Now();
  std::vector<int> fired;
  std::promise<void> first;
  loop.After(std::chrono::hours(1), [&] {
    fired.push_back(1);
    first.set_value();
  });
  loop.After(std::chrono::hours(2), [&] {
    fired.push_back(2);
    loop.Stop();
  });
  std::thread thread([&] { loop.Run(); });
  clock.Move(std::chrono::hours(1) - std::chrono::nanoseconds(1));
  std::promise<std::vector<int>> before;
  loop.Post([&] { loop.Post([&] { before.set_value(fired); }); });  // behind a look at the timers
  EXPECT_THAT(before.get_future().get(), IsEmpty());
  clock.Move(std::chrono::nanoseconds(1));
  first.get_future().wait();
  clock.Move(std::chrono::hours(1));
  thread.join();
  EXPECT_THAT(fired, ElementsAre(1, 2));
  EXPECT_EQ(loop.Now() - begin, std::chrono::hours(2));
}

TEST(Loop, TheLongestTurnIsThatOfWhatHoldsItUp) {
  Loop loop;
  EXPECT_EQ(loop.longest_turn(), milliseconds(0));
  loop.After(milliseconds(1), [] { std::this_thread::sleep_for(milliseconds(30)); });
  loop.After(milliseconds(2), [&] { loop.Stop(); });
  loop.Run();
  EXPECT_GE(loop.longest_turn(), milliseconds(30));
}

TEST(Loop, ACancelledTimerDoesNotFire) {
  Loop loop;
  bool fired = false;
  const Loop::TimerId id = loop.After(milliseconds(1), [&] { fired = true; });
  loop.After(milliseconds(10), [&] { loop.Stop(); });
  loop.Cancel(id);
  loop.Cancel(id);
  loop.Cancel(0);
  loop.Run();
  EXPECT_FALSE(fired);
}

TEST(Loop, ATimerMayCancelItselfAnotherAndSetNewOnes) {
  Loop loop;
  std::vector<int> fired;
  Loop::TimerId self = 0;
  Loop::TimerId other = 0;
  self = loop.After(milliseconds(1), [&] {
    fired.push_back(1);
    loop.Cancel(self);
    loop.Cancel(other);
    loop.After(milliseconds(0), [&] {
      fired.push_back(2);
      loop.Stop();
    });
  });
  other = loop.After(milliseconds(1), [&] { fired.push_back(9); });
  loop.Run();
  EXPECT_THAT(fired, ElementsAre(1, 2));
}

TEST(Loop, WhatOneThreadPostsRunsInItsOrderOnTheLoopsThread) {
  Loop loop;
  std::vector<int> ran;
  std::thread::id thread;
  std::thread poster([&] {
    for (int i = 0; i < 1'000; ++i) {
      loop.Post([&, i] {
        ran.push_back(i);
        thread = std::this_thread::get_id();
      });
    }
    loop.Stop();
  });
  loop.Run();
  poster.join();
  ASSERT_EQ(ran.size(), 1'000U);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(Loop, ManyThreadsMayPostAtOnce) {
  Loop loop;
  std::atomic<int> left = 4 * 500;
  int ran = 0;
  std::vector<std::thread> posters;
  for (int t = 0; t < 4; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        loop.Post([&] {
          ++ran;
          if (--left == 0) loop.Stop();
        });
      }
    });
  }
  loop.Run();
  for (std::thread& poster : posters) poster.join();
  EXPECT_EQ(ran, 2'000);
}

TEST(Loop, PostedWorkMayPostMore) {
  Loop loop;
  int ran = 0;
  std::function<void()> again = [&] {
    if (++ran == 10) return loop.Stop();
    loop.Post(again);
  };
  loop.Post(again);
  loop.Run();
  EXPECT_EQ(ran, 10);
}

TEST(Loop, WhatIsPostedAfterTheEndIsDroppedAndDestroyed) {
  Loop loop;
  loop.Stop();
  loop.Run();
  const auto held = std::make_shared<int>(1);
  loop.Post([held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Loop, WhatRunHasNotComeToIsDestroyedWhenItReturns) {
  Loop loop;
  const auto held = std::make_shared<int>(1);
  loop.Post([&, held] {
    loop.Stop();
    loop.Post([held] {});
    loop.Post([&, held] { loop.Post([held] {}); });
  });
  loop.Run();
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Loop, AMailboxOutlivesItsLoop) {
  std::shared_ptr<Mailbox> mailbox;
  {
    Loop loop;
    mailbox = loop.mailbox();
    bool ran = false;
    mailbox->Post([&] {
      ran = true;
      loop.Stop();
    });
    loop.Run();
    EXPECT_TRUE(ran);
  }
  mailbox->Post([] { FAIL(); });
}

TEST(Loop, ThreadsMayPostWhileTheLoopEnds) {
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> done = false;
    std::thread poster;
    {
      Loop loop;
      poster = std::thread([&done, mailbox = loop.mailbox()] {
        while (!done) mailbox->Post([] {});
      });
      loop.Stop();
      loop.Run();
    }
    done = true;
    poster.join();
  }
}

TEST(Loop, AWatchedDescriptorIsHeardUntilItIsUnwatched) {
  Loop loop;
  const UniqueFd fd = ReadyFd();
  int heard = 0;
  loop.Watch(fd.get(), EPOLLIN, [&](uint32_t events) {
    EXPECT_EQ(events, static_cast<uint32_t>(EPOLLIN));
    if (++heard < 3) return;
    loop.Unwatch(fd.get());
    loop.After(milliseconds(5), [&] { loop.Stop(); });
  });
  loop.Run();
  EXPECT_EQ(heard, 3);
}

TEST(Loop, AHandlerMayUnwatchAnotherDescriptorThatIsReadyToo) {
  Loop loop;
  const UniqueFd a = ReadyFd();
  const UniqueFd b = ReadyFd();
  int heard = 0;
  const auto handler = [&](uint32_t) {
    ++heard;
    loop.Unwatch(a.get());
    loop.Unwatch(b.get());
    loop.Stop();
  };
  loop.Watch(a.get(), EPOLLIN, handler);
  loop.Watch(b.get(), EPOLLIN, handler);
  loop.Run();
  EXPECT_EQ(heard, 1);
}

TEST(Loop, WatchingAgainReplacesEventsAndHandler) {
  Loop loop;
  const UniqueFd fd = ReadyFd();
  std::vector<int> heard;
  loop.Watch(fd.get(), EPOLLIN, [&](uint32_t) { heard.push_back(1); });
  loop.Watch(fd.get(), EPOLLOUT, [&](uint32_t events) {
    EXPECT_EQ(events, static_cast<uint32_t>(EPOLLOUT));
    heard.push_back(2);
    loop.Unwatch(fd.get());
    loop.Stop();
  });
  loop.Run();
  EXPECT_THAT(heard, ElementsAre(2));
}

TEST(Loop, TimersOfAPeriodFireTogether) {
  const std::chrono::milliseconds period(200);
  for (;;) {
    const auto made = std::chrono::steady_clock::now();
    Loop loop;
    int turns = 0;
    std::vector<int> turn_of;
    const std::function<void()> count = [&] {
      ++turns;
      loop.After(std::chrono::milliseconds(1), count);
    };
    const auto note = [&] { turn_of.push_back(turns); };
    loop.After(std::chrono::milliseconds(1), count);
    loop.AfterPeriod(period, note);
    std::this_thread::sleep_for(period / 8);
    loop.AfterPeriod(period, note);
    // Of the next period already, on a machine that is that busy.
    if (std::chrono::steady_clock::now() - made >= period / 2) continue;
    loop.AfterPeriod(2 * period, [&] { loop.Stop(); });
    loop.Run();
    ASSERT_EQ(turn_of.size(), 2U);
    EXPECT_EQ(turn_of[0], turn_of[1]);
    return;
  }
}

TEST(Loop, WatchingWhatIsNoDescriptorThrows) {
  Loop loop;
  EXPECT_THROW(loop.Watch(-1, EPOLLIN, [](uint32_t) {}), std::system_error);
}

TEST(Worker, RunsWhatItIsGivenInOrderAndFinishesItBeforeItEnds) {
  std::vector<int> ran;
  {
    Worker worker;
    for (int i = 0; i < 100; ++i) worker.Do([&, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 100U);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

// Work may be nothing but to let go of something: memory, or a thread that is to end.
TEST(Worker, WhoGivesWorkDoesNotWaitForWhatIsLetGo) {
  std::promise<void> given;
  std::promise<void> letting_go;
  bool done = false;
  {
    Worker worker;
    worker.Do([held = std::shared_ptr<int>(new int, [&](const int* value) {
                 letting_go.set_value();
                 given.get_future().wait();
                 delete value;
               })] {});
    letting_go.get_future().wait();
    worker.Do([&done] { done = true; });
    given.set_value();
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace muster
