#include "ceph/catalog/head_entries.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "ceph/catalog/checkpoint_entry.h"

namespace muster::head_entries {
namespace {

constexpr std::string_view kCheckpoint = "checkpoint/";

std::optional<uint64_t> ParseStep(std::string_view text) {
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || std::to_string(step) != text)
    return std::nullopt;
  return step;
}

}  // namespace

std::string EntryName(uint64_t step) {
  return std::string(kCheckpoint) + std::to_string(step);
}

std::optional<uint64_t> NewestGood(const std::vector<CheckpointInfo>& ascending) {
  for (auto it = ascending.rbegin(); it != ascending.rend(); ++it) {
    if (it->good) return it->step;
  }
  return std::nullopt;
}

Result<GangHead> Decode(const std::string& key, const Head& head) {
  const std::optional<Fence> fence = Fence::Decode(head.fence);
  if (!fence) {
    return Error{Errc::kCorrupt, "the head of " + key + " has the fence '" + head.fence.substr(0, 80) +
                                     "', which Muster did not write; it is left alone"};
  }
  GangHead out;
  out.fence = *fence;
  for (const auto& [name, value] : head.entries) {
    if (name == kRecord) {
      out.record = value;
    } else if (name.starts_with(kCheckpoint)) {
      const auto step = ParseStep(std::string_view(name).substr(kCheckpoint.size()));
      if (!step) continue;
      Result<CheckpointInfo> read = DecodeCheckpointEntry(key, *step, value);
      CheckpointInfo info;
      if (read) {
        info = *std::move(read);
      } else {
        // One entry that does not read must not take the others with it.
        info.step = *step;
        info.good = false;
        info.reason = read.error().message;
      }
      info.entry = value;
      out.checkpoints.push_back(std::move(info));
    }
  }
  std::sort(out.checkpoints.begin(), out.checkpoints.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  // The entry is for people and tools; what counts is the newest good one, which it always equals.
  out.latest = NewestGood(out.checkpoints);
  return out;
}

void SetLatest(const std::vector<CheckpointInfo>& ascending, HeadUpdate* update) {
  if (const auto newest = NewestGood(ascending)) {
    update->set[kLatest] = std::to_string(*newest);
  } else {
    update->remove.emplace_back(kLatest);
  }
}

HeadUpdate Guarded(const GangHead& head) {
  HeadUpdate update;
  update.expect_fence = head.fence.Encode();
  update.new_fence = *update.expect_fence;
  for (const CheckpointInfo& checkpoint : head.checkpoints)
    update.expect[EntryName(checkpoint.step)] = checkpoint.entry;
  return update;
}

}  // namespace muster::head_entries
