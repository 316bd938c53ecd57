#include "daemon/hang/progress_reader.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "wire/wire.h"

namespace muster::hang {
namespace {

constexpr int kTries = 4;  // a write takes nanoseconds; one that was interrupted in its middle stays odd

bool Read(const UniqueFd& page, wire::ProgressPage* out) {
  return ::pread(page.get(), out, sizeof *out, 0) == static_cast<ssize_t>(sizeof *out) &&
         out->magic == wire::kPageMagic;
}

}  // namespace

bool IsProgressPage(const UniqueFd& page) {
  struct stat about {};
  const int seals = ::fcntl(page.get(), F_GET_SEALS);  // refused for all but memory
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(page.get(), &about) == 0 &&
         about.st_size >= static_cast<off_t>(sizeof(wire::ProgressPage));
}

std::optional<Progressed> ReadProgress(const UniqueFd& page) {
  wire::ProgressPage one{};
  if (!Read(page, &one)) return std::nullopt;
  for (int i = 0; i < kTries; ++i) {
    wire::ProgressPage two{};
    if (!Read(page, &two)) return std::nullopt;
    const bool whole = two.sequence % 2 == 0 && two.sequence == one.sequence;
    one = two;
    if (whole) break;
  }
  if (one.step == wire::kNoStep || one.calls == 0) return std::nullopt;
  return Progressed{one.step, one.calls, one.monotonic_ns};
}

}  // namespace muster::hang
