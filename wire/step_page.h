// The page that a member's libmuster shares with musterd, and how both use it without a lock: the member says which steps it
// has entered, musterd which steps have been agreed on (daemon/steps/agreement.h).
//
// A step is proposed before anybody has entered it. musterd writes it, and then reads what the member has entered. The member
// writes what it enters, and then reads what is proposed. Both orders are sequentially consistent, so at least one sees the
// other: either musterd says that the member is too far, or the member waits for what becomes of the proposal.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "wire/wire.h"

namespace muster::wire {

inline constexpr uint64_t kStepPageMagic =
    0x3147415050455453;  // "STEPPAG1" in memory on a little-endian machine
inline constexpr size_t kStepPageBytes = 4096;
// Of the steps that are agreed on, the newest ones stay on the page: no more are agreed on before all members have passed the
// oldest.
inline constexpr uint64_t kKeptSteps = 8;
inline constexpr size_t kMaxStepReason = 112;
inline constexpr uint64_t kMaxStep = INT64_MAX;  // that a program may enter

inline constexpr uint32_t kWishSave = 1;
inline constexpr uint32_t kWishExit = 2;

// What all members are to do at a step.
struct AgreedStep {
  uint64_t step;
  uint32_t wish;  // of kWishSave, kWishExit
  uint32_t reason_bytes;
  char reason[kMaxStepReason];
};
static_assert(sizeof(AgreedStep) == 128);

// The first bytes of a memfd of kStepPageBytes, sealed against shrinking and growing. Nothing in it is believed beyond
// what it says of the member itself. While `sequence` or `order` is odd, or is another after reading than before, what is
// behind it was being written.
struct StepPage {
  // The member writes:
  uint64_t magic;
  uint64_t sequence;
  uint64_t step;         // the last one that was entered; kNoStep: none yet
  uint64_t calls;        // of muster_step so far
  int64_t monotonic_ns;  // CLOCK_MONOTONIC of the last one
  uint64_t above;        // one more than the highest step that was entered; 0: none was
  uint64_t before;       // `above` before it rose the last time; 0: it has risen once at most
  uint64_t backwards;    // calls with a lower step than one before
  uint64_t passed;  // the last agreed step that the member has gone past without entering it; kNoStep: none
  uint64_t passed_to;  // which step it entered instead
  uint64_t earlier;    // `before` before it changed the last time; 0: `above` has risen twice at most
  uint64_t reserved[5];
  // musterd writes:
  uint64_t order;     // 0: nothing has been written yet
  int64_t seen_ns;    // CLOCK_MONOTONIC: musterd was there; 0: not yet
  uint64_t proposed;  // kNoStep: no step is
  uint64_t
      decisions;   // steps that have been agreed on in this generation; the i-th is in agreed[i % kKeptSteps]
  uint64_t wants;  // how often something was wanted in this generation
  uint64_t wanted;   // what was, all in all: of kWishSave, kWishExit
  uint64_t unheard;  // 1: the member may have entered steps that only another page of it says, which is lost
  uint64_t reserved_too;
  uint64_t agreed[kKeptSteps * sizeof(AgreedStep) / sizeof(uint64_t)];  // AgreedSteps, word by word
};
static_assert(sizeof(StepPage) == 128 + 64 + 1024);
static_assert(offsetof(StepPage, order) == 128);

inline void InitPage(StepPage* page) {
  memset(page, 0, sizeof(*page));
  page->magic = kStepPageMagic;
  page->step = page->passed = page->proposed = kNoStep;
}

// What musterd has written.
struct StepOrder {
  uint64_t order;
  uint64_t proposed;
  uint64_t decisions;
  uint64_t wants;
  uint64_t wanted;
  AgreedStep agreed[kKeptSteps];
};

// ---- the member
// --------------------------------------------------------------------------------------------

// Steps below `above` have been entered. Gives what the page said before.
inline uint64_t RaiseAbove(StepPage* page, uint64_t above) {
  uint64_t before = __atomic_load_n(&page->above, __ATOMIC_RELAXED);
  while (before < above && !__atomic_compare_exchange_n(&page->above, &before, above, false, __ATOMIC_SEQ_CST,
                                                        __ATOMIC_RELAXED)) {
  }
  return before;
}

// `step` is entered. Gives `above` of before. Several threads of a member may do it at once.
inline uint64_t EnterStep(StepPage* page, uint64_t step, int64_t now_ns) {
  // Each after the odd number: a fence would do too, but the thread sanitizer does not know fences.
  __atomic_fetch_add(&page->sequence, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&page->step, step, __ATOMIC_RELEASE);
  __atomic_fetch_add(&page->calls, 1, __ATOMIC_RELEASE);
  __atomic_store_n(&page->monotonic_ns, now_ns, __ATOMIC_RELEASE);
  const uint64_t above = RaiseAbove(page, step + 1);
  if (above <= step) {
    __atomic_store_n(&page->earlier, __atomic_load_n(&page->before, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
    __atomic_store_n(&page->before, above, __ATOMIC_RELEASE);
  }
  if (step + 1 < above) __atomic_fetch_add(&page->backwards, 1, __ATOMIC_RELEASE);
  __atomic_fetch_add(&page->sequence, 1, __ATOMIC_SEQ_CST);
  return above;
}

// Behind EnterStep: which order holds. What is proposed later is not promised before musterd sees that the step was entered.
inline uint64_t CurrentOrder(const StepPage* page) {
  return __atomic_load_n(&page->order, __ATOMIC_SEQ_CST);
}

// False: it is being written.
inline bool ReadOrder(const StepPage* page, StepOrder* out) {
  out->order = CurrentOrder(page);
  if (out->order % 2 != 0) return false;
  out->proposed = __atomic_load_n(&page->proposed, __ATOMIC_ACQUIRE);
  out->decisions = __atomic_load_n(&page->decisions, __ATOMIC_ACQUIRE);
  out->wants = __atomic_load_n(&page->wants, __ATOMIC_ACQUIRE);
  out->wanted = __atomic_load_n(&page->wanted, __ATOMIC_ACQUIRE);
  uint64_t words[sizeof(page->agreed) / sizeof(uint64_t)];
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); ++i)
    words[i] = __atomic_load_n(&page->agreed[i], __ATOMIC_ACQUIRE);
  memcpy(out->agreed, words, sizeof(out->agreed));
  return CurrentOrder(page) == out->order;
}

enum class StepAnswer {
  kNothing,
  kWish,  // *wish says which
  kWait,  // it is not known yet
};

// What `step` is answered with: the same for all members of a world, and each time that it is asked. *due: the lowest step
// from `step` on of which the order says something, kNoStep: it says nothing of any.
inline StepAnswer AnswerStep(const StepOrder& order, uint64_t step, const AgreedStep** wish, uint64_t* due) {
  *due = order.proposed;
  *wish = nullptr;
  for (uint64_t i = 0; i < kKeptSteps && i < order.decisions; ++i) {
    const AgreedStep& agreed = order.agreed[i];
    if (agreed.step == step) *wish = &agreed;
    if (agreed.step >= step && agreed.step < *due) *due = agreed.step;
  }
  if (*wish != nullptr) return StepAnswer::kWish;
  return step >= order.proposed ? StepAnswer::kWait : StepAnswer::kNothing;
}

// The newest agreed step that a member has gone past by entering `step` when its steps were below `above`; kNoStep: none.
inline uint64_t PassedStep(const StepOrder& order, uint64_t step, uint64_t above) {
  uint64_t passed = kNoStep;
  for (uint64_t i = 0; i < kKeptSteps && i < order.decisions; ++i) {
    const uint64_t agreed = order.agreed[i].step;
    if (agreed >= above && agreed < step && (passed == kNoStep || agreed > passed)) passed = agreed;
  }
  return passed;
}

// ---- musterd
// ---------------------------------------------------------------------------------------------

// `order.order` is not read: the page's own goes on. Behind it StepsAbove is what the member has entered before it could see
// the order.
inline void WriteOrder(StepPage* page, const StepOrder& order) {
  // One that was interrupted in its middle is odd.
  const uint64_t odd = __atomic_load_n(&page->order, __ATOMIC_RELAXED) | 1;
  __atomic_store_n(&page->order, odd, __ATOMIC_RELAXED);
  __atomic_store_n(&page->proposed, order.proposed, __ATOMIC_RELEASE);
  __atomic_store_n(&page->decisions, order.decisions, __ATOMIC_RELEASE);
  __atomic_store_n(&page->wants, order.wants, __ATOMIC_RELEASE);
  __atomic_store_n(&page->wanted, order.wanted, __ATOMIC_RELEASE);
  uint64_t words[sizeof(page->agreed) / sizeof(uint64_t)];
  memcpy(words, order.agreed, sizeof(words));
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); ++i)
    __atomic_store_n(&page->agreed[i], words[i], __ATOMIC_RELEASE);
  __atomic_store_n(&page->order, odd + 1, __ATOMIC_SEQ_CST);
}

inline uint64_t StepsAbove(const StepPage* page) {
  return __atomic_load_n(&page->above, __ATOMIC_SEQ_CST);
}

}  // namespace muster::wire
