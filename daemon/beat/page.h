// The page that supervisors read in place of beats (wire::BeatPage): musterd writes it without a system call, and a
// supervisor looks at it when its lease would end, not for every beat.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster {

class BeatPage {
 public:
  // nullptr: there is none to have (memory, or a kernel without F_SEAL_FUTURE_WRITE); supervisors are sent beats then.
  static std::shared_ptr<BeatPage> Make();
  ~BeatPage();
  BeatPage(const BeatPage&) = delete;
  BeatPage& operator=(const BeatPage&) = delete;

  // To be handed to supervisors: whoever has it can neither write it nor change its size.
  [[nodiscard]] int fd() const { return fd_.get(); }
  // A beat, now; `leased` as in wire::Beat. From one thread.
  void Beat(bool leased);

 private:
  BeatPage(UniqueFd fd, wire::BeatPage* page);
  UniqueFd fd_;
  wire::BeatPage* page_;
};

}  // namespace muster
