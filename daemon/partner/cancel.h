// Ends what a thread waits for.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// Thread-safe.
class Cancel {
 public:
  void Now() {
    now_ = true;
    const uint64_t one = 1;
    if (fd_.valid() && ::write(fd_.get(), &one, sizeof one) < 0) return;  // it is readable already
  }
  [[nodiscard]] bool now() const { return now_; }
  // kUnavailable from then on.
  [[nodiscard]] Status Check() const {
    return now_ ? Status(Error{Errc::kUnavailable, "it is not wanted any more"}) : Status();
  }
  // Readable from then on.
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  const UniqueFd fd_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> now_{false};
};

}  // namespace muster
