// What is done for others is behind the trainer.
#pragma once

#include <sys/resource.h>

namespace muster {

// The calling thread has the lowest priority from now on.
inline void BehindTheTrainer() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, 0, kLowest);  // a thread's own, on Linux
}

}  // namespace muster
