// Reads the page that a member's libmuster writes its progress to. The page is the program's: nothing in it is
// believed beyond what it says of the program itself.
#pragma once

#include <cstdint>
#include <optional>

#include "wire/step_page.h"

namespace muster::hang {

struct Progressed {
  uint64_t step = 0;
  uint64_t calls = 0;
  int64_t monotonic_ns = 0;
};

// The newest step; nullopt when there is none yet, or when the page is not what it should be.
std::optional<Progressed> ReadProgress(const wire::StepPage& page);

}  // namespace muster::hang
