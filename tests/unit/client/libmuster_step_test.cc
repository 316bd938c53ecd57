// libmuster: which steps a member has entered, and what it is asked at which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <thread>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

wire::StepOrder Nothing() {
  wire::StepOrder order{};
  order.proposed = wire::kNoStep;
  return order;
}

wire::StepOrder Proposed(uint64_t step) {
  wire::StepOrder order = Nothing();
  order.proposed = step;
  return order;
}

wire::StepOrder Agreed(uint64_t step, uint32_t flags, const std::string& reason = "") {
  wire::StepOrder order = Nothing();
  order.decisions = 1;
  order.agreed[0].step = step;
  order.agreed[0].wish = flags;
  order.agreed[0].reason_bytes =
      static_cast<uint32_t>(reason.copy(order.agreed[0].reason, wire::kMaxStepReason));
  return order;
}

class LibmusterStep : public Libmuster {
 protected:
  // What a step is answered with, in letters.
  std::string Step(uint64_t step) {
    muster_wish wish{7, 7, nullptr};
    const int status = muster_step(m_, step, &wish);
    if (status != MUSTER_OK) return "error " + std::to_string(status) + ": " + wish.reason;
    return std::string(wish.save == 1 ? "save " : "") + (wish.exit == 1 ? "exit " : "") + wish.reason;
  }
};

TEST_F(LibmusterStep, IsOnThePageAtOnce) {
  Open();
  ASSERT_TRUE(musterd_.page);
  const wire::StepPage& page = *musterd_.page;
  EXPECT_EQ(page.magic, wire::kStepPageMagic);
  EXPECT_EQ(page.step, wire::kNoStep);
  int64_t before = 0;
  for (uint64_t step = 5; step < 10'000; ++step) {
    ASSERT_EQ(muster_step(m_, step, nullptr), MUSTER_OK);
    ASSERT_EQ(page.step, step);
    ASSERT_EQ(page.calls, step - 4);
    ASSERT_EQ(page.above, step + 1);
    ASSERT_EQ(page.sequence % 2, 0U);
    ASSERT_GE(page.monotonic_ns, before);
    before = page.monotonic_ns;
  }
  EXPECT_EQ(page.before, page.above - 1);
  EXPECT_EQ(page.backwards, 0U);
}

TEST_F(LibmusterStep, IsAnsweredAsItWasAgreedOnAndNoOtherIs) {
  Open();
  EXPECT_EQ(Step(5), "");
  musterd_.Order(Agreed(7, wire::kWishSave | wire::kWishExit, "the job's time limit is near"));
  EXPECT_EQ(Step(6), "");
  EXPECT_EQ(Step(7), "save exit the job's time limit is near");
  EXPECT_EQ(Step(7), "save exit the job's time limit is near") << "the same step, the same answer";
  EXPECT_EQ(Step(8), "");
  wire::StepOrder order = Agreed(7, wire::kWishSave);
  order.decisions = 2;
  order.agreed[1].step = 12;
  order.agreed[1].wish = wire::kWishExit;
  musterd_.Order(order);
  EXPECT_EQ(Step(9), "");
  EXPECT_EQ(Step(12), "exit ");
  EXPECT_EQ(Step(13), "");
}

TEST_F(LibmusterStep, ThatAMemberGoesPastIsShown) {
  Open();
  EXPECT_EQ(Step(10), "");
  musterd_.Order(Agreed(11, wire::kWishSave));
  EXPECT_EQ(musterd_.page->passed, wire::kNoStep);
  EXPECT_EQ(Step(20), "");
  EXPECT_EQ(musterd_.page->passed, 11U);
  EXPECT_EQ(musterd_.page->passed_to, 20U);
  EXPECT_EQ(Step(3), "");
  EXPECT_EQ(musterd_.page->backwards, 1U);
  EXPECT_EQ(musterd_.page->above, 21U);
}

TEST_F(LibmusterStep, ThatIsBeingAgreedOnIsWaitedFor) {
  Open();
  for (const bool agreed : {true, false}) {
    const uint64_t step = agreed ? 5 : 9;
    musterd_.Order(Proposed(step));
    EXPECT_EQ(Step(step - 1), "");
    std::atomic<bool> decided = false;
    std::thread musterd([&] {
      while (__atomic_load_n(&musterd_.page->above, __ATOMIC_ACQUIRE) <= step) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(20));
      decided = true;
      musterd_.Order(agreed ? Agreed(step, wire::kWishSave, "why") : Nothing());
    });
    EXPECT_EQ(Step(step), agreed ? "save why" : "");
    EXPECT_TRUE(decided);
    musterd.join();
  }
}

TEST_F(LibmusterStep, IsNotKnownWithoutMusterdAndFailsWhenThatStaysAway) {
  musterd_.Change([](auto& rules) { rules.reconnect_ms = 300; });
  Open();
  musterd_.Order(Proposed(5));
  musterd_.Stop();
  EXPECT_EQ(Step(4), "");
  EXPECT_THAT(Step(5), HasSubstr("error -2: musterd went away before it was known"));
}

TEST_F(LibmusterStep, OfAMusterdThatComesBackIsWhatItSays) {
  Open();
  musterd_.Order(Proposed(5));
  const auto page = musterd_.page;
  musterd_.Stop();
  musterd_.page.reset();
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    musterd_.Start();
    EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.page != nullptr; }));
    EXPECT_EQ(musterd_.page->step, 5U);  // the same page
    musterd_.Order(Agreed(5, wire::kWishExit));
  });
  EXPECT_EQ(Step(5), "exit ");
  later.join();
}

TEST_F(LibmusterStep, IsEnteredWhileAnotherThreadWaitsInACall) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  std::atomic<bool> done = false;
  std::thread waiter([&] {
    EXPECT_EQ(muster_wait(m_, 1, 60'000), MUSTER_OK);
    done = true;
  });
  for (uint64_t step = 1; step <= 20'000; ++step) ASSERT_EQ(muster_step(m_, step, nullptr), MUSTER_OK);
  EXPECT_FALSE(done);
  musterd_.Order(Agreed(20'001, wire::kWishSave));
  EXPECT_EQ(Step(20'001), "save ");
  musterd_.SendDurable(1);
  musterd_.SendCommitted(1);
  waiter.join();
}

TEST_F(LibmusterStep, OfNoneSaysWhatIsWantedUntilItIsSaved) {
  Open();
  EXPECT_EQ(Step(MUSTER_LATEST), "");
  wire::StepOrder order = Nothing();
  order.wants = 1;
  order.wanted = wire::kWishSave | wire::kWishExit;
  musterd_.Order(order);
  EXPECT_EQ(Step(MUSTER_LATEST), "save exit ");
  EXPECT_EQ(musterd_.page->calls, 0U) << "no step was entered";
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(Step(MUSTER_LATEST), "exit ");
  order.wants = 2;
  musterd_.Order(order);
  EXPECT_EQ(Step(MUSTER_LATEST), "save exit ");
}

TEST_F(LibmusterStep, ThatIsNoneIsRefusedWithASentence) {
  Open();
  EXPECT_EQ(Step(wire::kMaxStep + 1), "error -4: a step is a number from 0 to 2^63 - 1");
  EXPECT_EQ(musterd_.page->calls, 0U);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(Step(1) == "error -4: a forked process cannot use its parent's handle" ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(musterd_.page->calls, 0U);
}

TEST_F(LibmusterStep, AMusterdThatTakesNoPageLetsNobodyIn) {
  musterd_.Change([](auto& rules) { rules.takes_page = false; });
  EXPECT_EQ(muster_open(&m_), MUSTER_E_PROTOCOL);
  EXPECT_STREQ(muster_last_error(nullptr), "musterd does not take the page of this member's steps");
}

TEST_F(LibmusterStep, FindsAMusterdThatWasRestartedThoughItSaysNothing) {
  Open();
  musterd_.Stop();
  musterd_.hellos.clear();
  musterd_.Start();
  uint64_t step = 0;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_step(m_, ++step, nullptr), MUSTER_OK);
    bool greeted = false;
    musterd_.Look([&](const auto& m) { greeted = !m.hellos.empty(); });
    return greeted;
  }));
}

// ---- system calls

std::atomic<int> trapped = 0;

// Of this thread, from now on: each but those that end it comes to a signal's handler, which counts it.
void TrapSystemCalls() {
  struct sigaction action {};
  action.sa_handler = [](int) { ++trapped; };
  ASSERT_EQ(::sigaction(SIGSYS, &action, nullptr), 0);
  const auto allow = [](uint32_t number, uint8_t to) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, to, 0);
  };
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      allow(SYS_rt_sigreturn, 7),
      allow(SYS_exit, 6),
      allow(SYS_madvise, 5),
      allow(SYS_munmap, 4),
      allow(SYS_futex, 3),
      allow(SYS_rt_sigprocmask, 2),
      allow(SYS_exit_group, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof rules / sizeof rules[0], rules};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

// The sanitizers' own are in between.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define WITHOUT_SANITIZER(name) DISABLED_##name
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define WITHOUT_SANITIZER(name) DISABLED_##name
#endif
#endif
#ifndef WITHOUT_SANITIZER
#define WITHOUT_SANITIZER(name) name
#endif

TEST_F(LibmusterStep, WITHOUT_SANITIZER(MakesNoSystemCallWhenNothingIsDue)) {
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10'000), MUSTER_OK);
  musterd_.SeeClient();
  musterd_.Order(Agreed(50'000, wire::kWishSave, "drained"));
  int of_steps = 0;
  int of_a_call = 0;
  bool asked = false;
  int failed = 0;
  std::thread([&] {
    muster_wish wish;
    (void)muster_step(m_, 1, &wish);  // binds the symbol
    TrapSystemCalls();
    trapped = 0;
    for (uint64_t step = 2; step <= 100'000; ++step) {
      failed += muster_step(m_, step, &wish) != MUSTER_OK ? 1 : 0;
      asked |= wish.save == 1 && step == 50'000;
    }
    of_steps = trapped.exchange(0);
    (void)muster_committed(m_);  // looks what musterd says
    of_a_call = trapped;
  }).join();
  EXPECT_EQ(of_steps, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(asked);
  EXPECT_GT(of_a_call, 0) << "else nothing is counted";
}

}  // namespace
}  // namespace muster
