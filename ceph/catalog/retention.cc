#include "ceph/catalog/retention.h"

#include <algorithm>

#include "ceph/catalog/catalog.h"

namespace muster {
namespace {

// The step of the how-many-th newest good one; 0 when there are fewer.
uint64_t OldestOfNewest(const std::vector<CheckpointInfo>& ascending, size_t count) {
  size_t good = 0;
  for (auto it = ascending.rbegin(); it != ascending.rend(); ++it) {
    if (it->good && ++good == std::max<size_t>(count, 1)) return it->step;
  }
  return 0;
}

}  // namespace

std::vector<uint64_t> StepsToLeave(const std::vector<CheckpointInfo>& ascending, const Retention& retention,
                                   std::optional<uint64_t> committed) {
  const uint64_t kept_from = OldestOfNewest(ascending, retention.newest);
  std::vector<uint64_t> leave;
  for (const CheckpointInfo& checkpoint : ascending) {
    const bool every = checkpoint.good && retention.every != 0 && checkpoint.step % retention.every == 0;
    const bool stays = checkpoint.step >= kept_from || checkpoint.step == committed ||
                       retention.also.contains(checkpoint.step) || every || !checkpoint.pinned.empty();
    if (!stays) leave.push_back(checkpoint.step);
  }
  return leave;
}

Status MayDelete(const std::vector<CheckpointInfo>& ascending, uint64_t step, bool over) {
  const auto found =
      std::find_if(ascending.begin(), ascending.end(), [&](const auto& c) { return c.step == step; });
  const std::string what = "the checkpoint of step " + std::to_string(step);
  if (found == ascending.end())
    return Error{Errc::kNotFound, "there is no checkpoint of step " + std::to_string(step)};
  if (!found->pinned.empty())
    return Error{Errc::kConflict, what + " is pinned as '" + found->pinned + "': unpin it first"};
  if (!over && found->good && step >= OldestOfNewest(ascending, kNeededByGang)) {
    return Error{Errc::kConflict,
                 what + " is one of the newest two good ones of a gang that is not over: it may need it"};
  }
  return {};
}

}  // namespace muster
