// The page that tells musterd how far this member is: written by the program's thread, read by musterd.
#pragma once

#include <stdint.h>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::client {

class ProgressPage {
 public:
  ProgressPage() = default;
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;
  ~ProgressPage();

  // Makes the shared memory, with what has been written so far. Again: nothing. False when there is none to have.
  bool Open();
  // The newest step, and when it was entered (CLOCK_MONOTONIC). Before Open it is kept here.
  void Write(uint64_t step, int64_t now_ns);
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  wire::ProgressPage own_{wire::kPageMagic, 0, wire::kNoStep, 0, 0, {}};
  wire::ProgressPage* page_ = &own_;
};

}  // namespace muster::client
