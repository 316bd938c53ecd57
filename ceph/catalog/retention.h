// Which checkpoints of a gang stay. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

struct CheckpointInfo;

struct Retention {
  Retention(size_t newest_good, uint64_t every_steps = 0)  // NOLINT(google-explicit-constructor)
      : newest(newest_good), every(every_steps) {}

  // The same, and one more, if it is one: what a gang would start from now, and what it runs from.
  [[nodiscard]] Retention KeepingAlso(std::optional<uint64_t> step) const {
    Retention more = *this;
    if (step) more.also.insert(*step);
    return more;
  }

  size_t newest;   // of the good ones so many stay, at least 1, and what is newer than the oldest of them
  uint64_t every;  // so do the good ones whose step is a multiple of it; 0: none
  std::set<uint64_t> also;  // so do these
};

// A save that is on its way may share chunks with these (Catalog::Commit), so they stay as long as the gang is not over.
inline constexpr size_t kNeededByGang = 2;

// The steps that leave, of `ascending` by step. A pinned checkpoint stays, and so does `committed`, the step that has just
// been committed.
std::vector<uint64_t> StepsToLeave(const std::vector<CheckpointInfo>& ascending, const Retention& retention,
                                   std::optional<uint64_t> committed = std::nullopt);

// Whether a user may delete one; `over`: the gang is. kNotFound: there is none of that step. kConflict: it is pinned, or the
// gang may need it.
Status MayDelete(const std::vector<CheckpointInfo>& ascending, uint64_t step, bool over);

}  // namespace muster
