#include "ceph/catalog/catalog.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "ceph/catalog/checkpoint_entry.h"
#include "ceph/catalog/digest.h"
#include "ceph/catalog/object_names.h"
#include "daemon/base/crash_point.h"

namespace muster {
namespace {

constexpr std::string_view kCheckpoint = "checkpoint/";
constexpr char kRecord[] = "record";
constexpr char kLatest[] = "latest";
constexpr char kIndex[] = "index";
constexpr char kIndexFence[] = "index";  // the index has no owner: every gang adds its own entry
constexpr int kIndexAttempts = 5;
constexpr size_t kMaxManifestBytes = 64u << 20;
constexpr size_t kRemovers = 8;

std::optional<uint64_t> ParseStep(std::string_view text) {
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || std::to_string(step) != text)
    return std::nullopt;
  return step;
}

std::string EntryName(uint64_t step) {
  return std::string(kCheckpoint) + std::to_string(step);
}

std::optional<uint64_t> NewestGood(const std::vector<CheckpointInfo>& ascending) {
  for (auto it = ascending.rbegin(); it != ascending.rend(); ++it) {
    if (it->good) return it->step;
  }
  return std::nullopt;
}

Result<GangHead> DecodeHead(const std::string& key, const Head& head) {
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
      Result<CheckpointInfo> info = DecodeCheckpointEntry(key, *step, value);
      if (!info) {
        // One entry that does not read must not take the others with it.
        CheckpointInfo unreadable;
        unreadable.step = *step;
        unreadable.good = false;
        unreadable.reason = info.error().message;
        out.checkpoints.push_back(std::move(unreadable));
      } else {
        out.checkpoints.push_back(std::move(*info));
      }
    }
  }
  std::sort(out.checkpoints.begin(), out.checkpoints.end(),
            [](const auto& a, const auto& b) { return a.step < b.step; });
  // The entry is for people and tools; what counts is the newest good one, which it always equals.
  out.latest = NewestGood(out.checkpoints);
  return out;
}

Error FenceMoved(const std::string& key, const Fence& had, const Fence& now) {
  return {Errc::kConflict, key + " is now under term " + std::to_string(now.term) + ", generation " +
                               std::to_string(now.generation) + "; this writer has term " +
                               std::to_string(had.term) + ", generation " + std::to_string(had.generation)};
}

void SetLatest(const std::vector<CheckpointInfo>& ascending, HeadUpdate* update) {
  if (const auto newest = NewestGood(ascending)) {
    update->set[kLatest] = std::to_string(*newest);
  } else {
    update->remove.emplace_back(kLatest);
  }
}

// Removes objects, several at a time. What fails stays and is an orphan. Gives how many are gone.
size_t RemoveAll(Store& store, const std::string& space, const std::vector<std::string>& names) {
  std::atomic<size_t> next{0};
  std::atomic<size_t> gone{0};
  const auto work = [&] {
    for (size_t i = next++; i < names.size(); i = next++) {
      if (store.Remove({space, names[i]})) ++gone;
      CrashPoint("catalog.object_removed");
    }
  };
  std::vector<std::thread> helpers;
  const size_t threads = std::min(kRemovers, names.size() / 4);
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return gone;
}

}  // namespace

Catalog::Catalog(std::shared_ptr<Store> store, std::string space, std::string key)
    : store_(std::move(store)), space_(std::move(space)), key_(std::move(key)) {}

Result<GangHead> Catalog::Load() {
  const Result<Head> head = store_->ReadHead(HeadName());
  if (!head) return head.error();
  return DecodeHead(key_, *head);
}

Status Catalog::PutIntoIndex(const std::string& index_entry) {
  HeadUpdate update;
  update.new_fence = kIndexFence;
  update.set[key_] = index_entry;
  Status status;
  for (int attempt = 0; attempt < kIndexAttempts; ++attempt) {
    update.expect_fence = kIndexFence;
    status = store_->UpdateHead({space_, kIndex}, update);
    if (status || status.error().code != Errc::kConflict) return status;
    update.expect_fence = std::nullopt;  // the space's first gang makes it
    status = store_->UpdateHead({space_, kIndex}, update);
    if (status || status.error().code != Errc::kConflict) return status;
  }
  return status;
}

Result<GangHead> Catalog::TakeOver(const std::string& record, const std::string& index_entry) {
  const std::lock_guard lock(*changing_);
  Result<GangHead> now = Load();
  if (!now && now.error().code != Errc::kNotFound) return now;
  // The index first: a key that it names and that has no head is only listed, one that it lacks would be
  // lost.
  if (Status status = PutIntoIndex(index_entry); !status) return status.error();
  HeadUpdate update;
  if (now) update.expect_fence = now->fence.Encode();
  GangHead mine = now ? std::move(*now) : GangHead{};
  if (mine.fence.term == UINT64_MAX) return Error{Errc::kExhausted, key_ + " has no term left"};
  mine.fence.term += 1;
  update.new_fence = mine.fence.Encode();
  if (!record.empty() || !update.expect_fence) update.set[kRecord] = record;
  if (Status status = store_->UpdateHead(HeadName(), update); !status) return status.error();
  return mine;
}

Status Catalog::Advance(const Fence& from, const Fence& to, const std::string& record) {
  const std::lock_guard lock(*changing_);
  if (to < from || to.generation < from.generation) {
    return Error{Errc::kInvalid,
                 "the fence of " + key_ + " cannot go back from " + from.Encode() + " to " + to.Encode()};
  }
  HeadUpdate update;
  update.expect_fence = from.Encode();
  update.new_fence = to.Encode();
  update.set[kRecord] = record;
  return store_->UpdateHead(HeadName(), update);
}

Result<std::vector<uint64_t>> Catalog::Commit(const Manifest& manifest, size_t keep) {
  const std::string text = manifest.Encode();
  if (manifest.key != key_)
    return Error{Errc::kInvalid, "the manifest is of " + manifest.key + ", not of " + key_};
  if (text.size() > kMaxManifestBytes) {
    return Error{Errc::kInvalid, "the manifest of checkpoint " + std::to_string(manifest.step) + " of " +
                                     key_ + " is above 64 MiB: use larger chunks"};
  }
  if (const Result<Manifest> check = Manifest::Decode(text); !check) {
    return Error{Errc::kInvalid, "checkpoint " + std::to_string(manifest.step) + " of " + key_ +
                                     " is not committed: " + check.error().message};
  }
  CheckpointInfo info;
  info.step = manifest.step;
  info.fence = manifest.fence;
  info.bytes = manifest.TotalBytes();
  info.world_size = manifest.world_size;
  info.created_ns = manifest.created_ns;
  info.manifest = ManifestName(key_, manifest.step, manifest.fence);
  info.manifest_digest = DigestOf(text);

  const std::lock_guard lock(*changing_);
  Result<GangHead> head = Load();
  if (!head) return head.error();
  if (head->fence != manifest.fence) return FenceMoved(key_, manifest.fence, head->fence);
  if (Status status = store_->Write({space_, info.manifest}, text); !status) return status.error();
  CrashPoint("catalog.manifest_written");

  // What is in the head after this: one entry a step, and nothing older than the newest `keep` good ones.
  std::vector<CheckpointInfo> left = std::move(head->checkpoints);
  std::vector<CheckpointInfo> gone;
  std::vector<uint64_t> steps_gone;
  HeadUpdate update;
  const auto same =
      std::find_if(left.begin(), left.end(), [&](const auto& c) { return c.step == info.step; });
  if (same != left.end()) {
    if (same->manifest != info.manifest) gone.push_back(*same);
    left.erase(same);
  }
  left.push_back(info);
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  size_t good = 0;
  uint64_t oldest_kept = 0;
  for (auto it = left.rbegin(); it != left.rend(); ++it) {
    if (it->good && ++good == std::max<size_t>(keep, 1)) oldest_kept = it->step;
  }
  while (left.front().step < oldest_kept && left.front().step != info.step) {
    update.remove.push_back(EntryName(left.front().step));
    steps_gone.push_back(left.front().step);
    gone.push_back(left.front());
    left.erase(left.begin());
  }
  update.expect_fence = manifest.fence.Encode();
  update.new_fence = *update.expect_fence;
  update.set[EntryName(info.step)] = EncodeCheckpointEntry(info);
  SetLatest(left, &update);
  if (Status status = store_->UpdateHead(HeadName(), update); !status) {
    if (status.error().code != Errc::kUnavailable) {
      (void)store_->Remove(
          {space_, info.manifest});  // nobody can have listed it; if it stays it is an orphan
      return status.error();
    }
    // It may have been done all the same.
    const Result<GangHead> after = Load();
    const bool done =
        after && std::any_of(after->checkpoints.begin(), after->checkpoints.end(), [&](const auto& c) {
          return c.manifest == info.manifest && c.manifest_digest == info.manifest_digest && c.good;
        });
    if (!done) return status.error();
  }
  CrashPoint("catalog.head_updated");
  for (const CheckpointInfo& checkpoint : gone) RemoveObjects(checkpoint, manifest);
  return steps_gone;
}

void Catalog::RemoveObjects(const CheckpointInfo& checkpoint, const Manifest& committed) {
  // An entry that did not read names no objects; they are orphans.
  if (checkpoint.manifest.empty()) return;
  std::vector<std::string> names;
  const Result<std::string> text = store_->Read({space_, checkpoint.manifest});
  const Result<Manifest> manifest = text ? Manifest::Decode(*text) : Result<Manifest>(text.error());
  if (!manifest || manifest->key != key_ || manifest->step != checkpoint.step) return;
  // A coordinator that took over commits a step again whose shards it is told anew: under a manifest of its own
  // term, but of the same objects.
  std::set<std::string_view> in_use;
  for (const Shard& shard : committed.shards) in_use.insert(shard.prefix);
  for (const Shard& shard : manifest->shards) {
    if (in_use.contains(shard.prefix)) continue;
    for (size_t i = 0; i < shard.chunks.size(); ++i) names.push_back(ChunkName(shard.prefix, i));
  }
  RemoveAll(*store_, space_, names);
  (void)store_->Remove({space_, checkpoint.manifest});
}

Status Catalog::MarkBad(const Fence& fence, uint64_t step, const std::string& reason) {
  const std::lock_guard lock(*changing_);
  Result<GangHead> head = Load();
  if (!head) return head.error();
  if (head->fence != fence) return FenceMoved(key_, fence, head->fence);
  const auto found = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                  [&](const auto& c) { return c.step == step; });
  if (found == head->checkpoints.end()) {
    return Error{Errc::kNotFound, key_ + " has no checkpoint of step " + std::to_string(step)};
  }
  HeadUpdate update;
  update.expect_fence = fence.Encode();
  update.new_fence = *update.expect_fence;
  if (found->manifest.empty()) {
    // Its entry does not read, so it counts as bad already, and is left as it is for whoever looks into it.
  } else {
    found->good = false;
    found->reason = reason;
    update.set[EntryName(step)] = EncodeCheckpointEntry(*found);
  }
  SetLatest(head->checkpoints, &update);
  return store_->UpdateHead(HeadName(), update);
}

Result<Manifest> Catalog::LoadManifest(uint64_t step) {
  const Result<GangHead> head = Load();
  if (!head) return head.error();
  const std::string what = "checkpoint " + std::to_string(step) + " of " + key_;
  const auto found = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                  [&](const auto& c) { return c.step == step; });
  if (found == head->checkpoints.end()) return Error{Errc::kNotFound, "there is no " + what};
  if (found->manifest.empty()) return Error{Errc::kCorrupt, found->reason};
  const Result<std::string> text = store_->Read({space_, found->manifest});
  if (!text) {
    if (text.error().code != Errc::kNotFound) return text.error();
    return Error{Errc::kCorrupt, what + ": its manifest " + found->manifest + " is missing"};
  }
  if (DigestOf(*text) != found->manifest_digest) {
    return Error{Errc::kCorrupt,
                 what + ": its manifest " + found->manifest + " has another digest than was committed"};
  }
  Result<Manifest> manifest = Manifest::Decode(*text);
  if (!manifest) return Error{Errc::kCorrupt, what + ": " + manifest.error().message};
  if (manifest->key != key_ || manifest->step != step || manifest->fence != found->fence) {
    return Error{Errc::kCorrupt, what + ": its manifest is another checkpoint's"};
  }
  return manifest;
}

Result<size_t> Catalog::CollectOrphans(const Fence& fence) {
  // The list before the head: what is committed after the list was made is of the current generation.
  const Result<std::vector<std::string>> names = store_->List(space_, DataPrefix(key_));
  if (!names) return names.error();
  const Result<GangHead> head = Load();
  if (!head) return head.error();
  if (head->fence != fence) return FenceMoved(key_, fence, head->fence);
  // By step and generation, not by term: a checkpoint may have shards that were written under an older term.
  std::set<std::pair<uint64_t, uint64_t>> listed;
  std::set<uint64_t> unreadable;
  for (const CheckpointInfo& checkpoint : head->checkpoints) {
    listed.emplace(checkpoint.step, checkpoint.fence.generation);
    if (checkpoint.manifest.empty()) unreadable.insert(checkpoint.step);
  }
  std::vector<std::string> orphans;
  for (const std::string& name : *names) {
    const auto of = ParseObjectName(key_, name);
    if (!of || of->fence.generation >= fence.generation) continue;
    if (listed.contains({of->step, of->fence.generation}) || unreadable.contains(of->step)) continue;
    orphans.push_back(name);
  }
  return RemoveAll(*store_, space_, orphans);
}

Result<std::map<std::string, std::string>> Catalog::ListKeys(Store& store, const std::string& space) {
  Result<Head> index = store.ReadHead({space, kIndex});
  if (!index) {
    if (index.error().code == Errc::kNotFound) return std::map<std::string, std::string>{};
    return index.error();
  }
  return std::move(index->entries);
}

}  // namespace muster
