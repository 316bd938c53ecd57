// The page that this member shares with musterd: which steps it has entered, and what it is asked at which (wire/step_page.h).
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/unique_fd.h"
#include "wire/step_page.h"

namespace muster::client {

// Its functions need no lock and make no system call, but for Open.
class OwnPage {
 public:
  OwnPage() = default;
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;
  ~OwnPage();

  // Makes the shared memory. Again: nothing. False when there is none to have.
  bool Open();
  [[nodiscard]] int fd() const { return fd_.get(); }
  // Whether this is a fork of the process that opened it: the page is not there.
  [[nodiscard]] bool IsForked() const;

  // The step is entered. True: that is all, for nothing is asked of a step up to this one that was not answered. *above: what
  // Answer takes.
  bool Enter(uint64_t step, int64_t now_ns, uint64_t* above);
  // Behind Enter. kWish: *wish says which.
  wire::StepAnswer Answer(uint64_t step, uint64_t above, wire::AgreedStep* wish);
  // What is wanted, of no step in particular, since as many wants: of kWishSave and kWishExit.
  uint32_t Wanted(uint64_t saved_wants);
  // How often something was wanted.
  [[nodiscard]] uint64_t wants() const;
  // Since when musterd has not been seen, CLOCK_MONOTONIC; 0: it never was.
  [[nodiscard]] int64_t seen_ns() const { return __atomic_load_n(&page_->seen_ns, __ATOMIC_RELAXED); }

 private:
  UniqueFd fd_;
  wire::StepPage* page_ = nullptr;
  pid_t process_ = 0;
  uint64_t* mark_ = nullptr;     // 0 in a fork; null: the kernel cannot do that
  uint64_t order_ = UINT64_MAX;  // that was read last, and
  uint64_t due_ = 0;  // the lowest step of which it says something, from the one on that was answered then
};

}  // namespace muster::client
