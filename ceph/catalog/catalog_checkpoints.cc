// The part of Catalog that changes the list of checkpoints, and removes what none of them has any more.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "base/crash_point.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/checkpoint_entry.h"
#include "ceph/catalog/digest.h"
#include "ceph/catalog/head_entries.h"
#include "ceph/catalog/object_names.h"

namespace muster {
namespace {

using head_entries::EntryName;
using head_entries::Guarded;
using head_entries::SetLatest;

constexpr size_t kMaxManifestBytes = 64u << 20;
constexpr size_t kRemovers = 8;
constexpr int kAttempts = 20;  // of a change, while others change the same head

Error FenceMoved(const std::string& key, const Fence& had, const Fence& now) {
  return {Errc::kConflict, key + " is now under term " + std::to_string(now.term) + ", generation " +
                               std::to_string(now.generation) + "; this writer has term " +
                               std::to_string(had.term) + ", generation " + std::to_string(had.generation)};
}

// Removes objects, several at a time, until that has failed for a few, since each of them may take the store's timeout. Gives
// how many they were, or why some are still there.
Result<size_t> RemoveAll(Store& store, const std::string& space, const std::vector<std::string>& names) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status result;
  size_t failed = 0;
  const auto work = [&] {
    for (size_t i = next++; i < names.size(); i = next++) {
      if (Status status = store.Remove({space, names[i]}); !status) {
        const std::lock_guard lock(mutex);
        result = std::move(status);
        if (++failed >= kRemovers) next = names.size();
        continue;
      }
      CrashPoint("catalog.object_removed");
    }
  };
  std::vector<std::thread> helpers;
  const size_t threads = std::min(kRemovers, names.size() / 4);
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (!result) return result.error();
  return names.size();
}

std::vector<CheckpointInfo>::const_iterator Find(const std::vector<CheckpointInfo>& checkpoints,
                                                 uint64_t step) {
  return std::find_if(checkpoints.begin(), checkpoints.end(), [&](const auto& c) { return c.step == step; });
}

Error ChangingAllTheTime(const std::string& key) {
  return {Errc::kUnavailable, "the checkpoints of " + key + " change all the time"};
}

// Takes the steps out of the list, and gives what they were.
std::vector<CheckpointInfo> TakeOut(const std::vector<uint64_t>& steps,
                                    std::vector<CheckpointInfo>* checkpoints) {
  const auto leaves = [&](const CheckpointInfo& c) {
    return std::find(steps.begin(), steps.end(), c.step) != steps.end();
  };
  std::vector<CheckpointInfo> out;
  std::copy_if(checkpoints->begin(), checkpoints->end(), std::back_inserter(out), leaves);
  std::erase_if(*checkpoints, leaves);
  return out;
}

}  // namespace

Result<std::vector<uint64_t>> Catalog::Commit(const Manifest& manifest, const Retention& retention,
                                              std::vector<CheckpointInfo>* gone_later) {
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

  std::unique_lock lock(*changing_);
  bool written = false;
  // An earlier call whose answer did not come may have been carried out later.
  const auto listed_in = [&](const GangHead& head) {
    return std::any_of(head.checkpoints.begin(), head.checkpoints.end(), [&](const auto& c) {
      return c.manifest == info.manifest && c.manifest_digest == info.manifest_digest && c.good;
    });
  };
  const auto give_up = [&](Error error) {
    if (!written) return error;
    // What it is listed by may be there, whatever the store has said. If it stays it is an orphan.
    const Result<GangHead> now = Load();
    const bool listed = !now || std::any_of(now->checkpoints.begin(), now->checkpoints.end(),
                                            [&](const auto& c) { return c.manifest == info.manifest; });
    if (!listed) (void)store_->Remove({space_, info.manifest});
    return error;
  };
  for (int attempt = 1;; ++attempt) {
    Result<GangHead> head = Load();
    if (!head) return head.error();
    if (head->fence != manifest.fence && listed_in(*head)) return std::vector<uint64_t>();
    if (head->fence != manifest.fence) return give_up(FenceMoved(key_, manifest.fence, head->fence));
    if (Status status = CheckShared(manifest, head->checkpoints); !status) return give_up(status.error());
    if (!std::exchange(written, true)) {
      if (Status status = store_->Write({space_, info.manifest}, text); !status) return status.error();
      CrashPoint("catalog.manifest_written");
    }
    HeadUpdate update = Guarded(*head);
    // What is in the head after this: one entry a step, and what is to be kept.
    std::vector<CheckpointInfo> left = std::move(head->checkpoints);
    std::vector<CheckpointInfo> gone = TakeOut({info.step}, &left);
    if (!gone.empty()) info.pinned = gone.front().pinned;
    std::erase_if(gone, [&](const auto& c) { return c.manifest == info.manifest; });
    left.push_back(info);
    std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
    const std::vector<uint64_t> steps_gone = StepsToLeave(left, retention, info.step);
    for (const uint64_t step : steps_gone) update.remove.push_back(EntryName(step));
    for (CheckpointInfo& checkpoint : TakeOut(steps_gone, &left)) gone.push_back(std::move(checkpoint));
    update.set[EntryName(info.step)] = EncodeCheckpointEntry(info);
    SetLatest(left, &update);
    Status status = store_->UpdateHead(HeadName(), update);
    if (!status && status.error().code == Errc::kConflict) {
      if (attempt < kAttempts) continue;
      return give_up(ChangingAllTheTime(key_));
    }
    if (!status) {
      // It may have been done all the same.
      const Result<GangHead> after = Load();
      const bool done = after && listed_in(*after);
      if (!done && status.error().code != Errc::kUnavailable) return give_up(status.error());
      if (!done) return status.error();
    }
    CrashPoint("catalog.head_updated");
    known_.insert_or_assign(info.manifest, ObjectSet(manifest));
    lock.unlock();
    if (gone_later != nullptr) {
      *gone_later = std::move(gone);
    } else {
      (void)RemoveObjects(gone);
    }
    return steps_gone;
  }
}

Result<std::vector<uint64_t>> Catalog::Drop(
    const std::function<Result<std::vector<uint64_t>>(const GangHead&)>& choose) {
  std::unique_lock lock(*changing_);
  std::vector<uint64_t> steps;
  std::vector<CheckpointInfo> gone;
  const Status changed = Change([&](GangHead* head, HeadUpdate* update) -> Status {
    const Result<std::vector<uint64_t>> chosen = choose(*head);
    if (!chosen) return chosen.error();
    steps = *chosen;
    gone = TakeOut(steps, &head->checkpoints);
    for (const uint64_t step : steps) update->remove.push_back(EntryName(step));
    return {};
  });
  if (!changed) return changed.error();
  CrashPoint("catalog.dropped");
  lock.unlock();
  if (const Status removed = RemoveObjects(gone); !removed) {
    const char* left = "not listed any more, but not all that was left is removed: ";
    return Error{removed.error().code, left + removed.error().message};
  }
  return steps;
}

Status Catalog::Pin(uint64_t step, const std::string& name) {
  const std::lock_guard lock(*changing_);
  return Change([&](GangHead* head, HeadUpdate* update) -> Status {
    for (const CheckpointInfo& other : head->checkpoints) {
      if (name.empty() || other.step == step || other.pinned != name) continue;
      return Error{Errc::kConflict, "the checkpoint of step " + std::to_string(other.step) +
                                        " is pinned as '" + name + "': unpin it first, or give another name"};
    }
    const auto found = Find(head->checkpoints, step);
    if (found == head->checkpoints.end())
      return Error{Errc::kNotFound, key_ + " has no checkpoint of step " + std::to_string(step)};
    if (found->manifest.empty()) return Error{Errc::kCorrupt, found->reason};
    CheckpointInfo pinned = *found;
    pinned.pinned = name;
    update->set[EntryName(step)] = EncodeCheckpointEntry(pinned);
    return {};
  });
}

Status Catalog::MarkBad(const Fence& fence, uint64_t step, const std::string& manifest,
                        const std::string& reason) {
  const std::lock_guard lock(*changing_);
  return Change([&](GangHead* head, HeadUpdate* update) -> Status {
    if (head->fence != fence) return FenceMoved(key_, fence, head->fence);
    const auto found = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                    [&](const auto& c) { return c.step == step; });
    if (found == head->checkpoints.end())
      return Error{Errc::kNotFound, key_ + " has no checkpoint of step " + std::to_string(step)};
    // One whose entry does not read counts as bad already, and is left as it is for whoever looks into it.
    if (found->manifest.empty()) return {};
    if (found->manifest != manifest) {
      return Error{Errc::kNotFound, "the checkpoint of step " + std::to_string(step) + " of " + key_ +
                                        " was saved anew, and is not the one that is bad"};
    }
    const auto mark = [&](CheckpointInfo& checkpoint, const std::string& why) {
      checkpoint.good = false;
      checkpoint.reason = why;
      update->set[EntryName(checkpoint.step)] = EncodeCheckpointEntry(checkpoint);
    };
    mark(*found, reason);
    const std::string_view object = ObjectNamedIn(reason, key_);
    for (CheckpointInfo& other : head->checkpoints) {
      if (!object.empty() && other.good && Has(other, object))
        mark(other, "as the checkpoint of step " + std::to_string(step) + ": " + reason);
    }
    return {};
  });
}

// Whether it consists of this object among others; false, too, when its manifest cannot be read now.
bool Catalog::Has(const CheckpointInfo& checkpoint, std::string_view object) {
  const Result<Objects> objects = ObjectsOf({checkpoint}, Newer::kPassOver);
  return objects && objects->known.Contains(object);
}

Status Catalog::Change(const std::function<Status(GangHead* head, HeadUpdate* update)>& change) {
  for (int attempt = 1;; ++attempt) {
    Result<GangHead> head = Load();
    if (!head) return head.error();
    HeadUpdate update = Guarded(*head);
    const Fence fence = head->fence;
    if (Status status = change(&*head, &update); !status) return status;
    SetLatest(head->checkpoints, &update);
    Status status = store_->UpdateHead(HeadName(), update);
    if (status) return {};
    if (status.error().code == Errc::kUnavailable) {
      // It may have been done all the same: then the entries are as they were to be.
      const Result<Head> now = store_->ReadHead(HeadName());
      if (!now || now->fence != fence.Encode()) return status;
      const auto is_so = [&](const auto& entry) {
        const auto found = now->entries.find(entry.first);
        return found != now->entries.end() && found->second == entry.second;
      };
      const auto is_gone = [&](const std::string& name) { return !now->entries.contains(name); };
      const bool done = std::all_of(update.set.begin(), update.set.end(), is_so) &&
                        std::all_of(update.remove.begin(), update.remove.end(), is_gone);
      return done ? Status() : status;
    }
    if (status.error().code != Errc::kConflict || attempt == kAttempts) return status;
  }
}

Result<Catalog::Objects> Catalog::ObjectsOf(const std::vector<CheckpointInfo>& checkpoints, Newer newer) {
  Objects all;
  for (const CheckpointInfo& checkpoint : checkpoints) {
    auto known = known_.find(checkpoint.manifest);
    if (known == known_.end()) {
      const Result<Manifest> manifest = LoadManifest(checkpoint);
      if (!manifest && manifest.error().code == Errc::kInvalid && newer == Newer::kPassOver) continue;
      if (!manifest && manifest.error().code != Errc::kCorrupt) return manifest.error();
      if (!manifest) {
        // Not for good: it may read the next time.
        if (!all.MayNeed(checkpoint.step)) all.unread.emplace(checkpoint.step, manifest.error());
        continue;
      }
      known = known_.emplace(checkpoint.manifest, ObjectSet(*manifest)).first;
    }
    all.known.Add(known->second);
  }
  return all;
}

Status Catalog::CheckShared(const Manifest& manifest, const std::vector<CheckpointInfo>& listed) {
  const auto shares = [](const Shard& shard) { return !shard.elsewhere.empty(); };
  if (std::none_of(manifest.shards.begin(), manifest.shards.end(), shares)) return {};
  // None of the gang has read one of a newer version, so none shares chunks with it.
  const Result<Objects> there = ObjectsOf(listed, Newer::kPassOver);
  if (!there) return there.error();
  // What it was based on may have been dropped since a newer one has been committed.
  const bool overtaken = std::any_of(listed.begin(), listed.end(), [&](const CheckpointInfo& c) {
    return c.good && c.step > manifest.step;
  });
  for (const Shard& shard : manifest.shards) {
    for (const ChunkRun& run : shard.elsewhere) {
      // What this generation has written and not committed stays until the next one has begun.
      if (!overtaken && ParseObjectName(key_, run.prefix)->fence.generation == manifest.fence.generation)
        continue;
      for (uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
        const std::string name = ChunkName(run.prefix, chunk);
        if (there->known.Contains(name)) continue;
        if (there->unread) return there->unread->second;
        return Error{Errc::kCorrupt, "checkpoint " + std::to_string(manifest.step) + " of " + key_ +
                                         " shares " + name + ", which no listed checkpoint has any more"};
      }
    }
  }
  return {};
}

// What the listed checkpoints consist of, now. One that is dropped by somebody else while its manifest is read is not listed
// any more, so the list is read again.
Result<Catalog::Objects> Catalog::Needed() {
  for (int attempt = 1;; ++attempt) {
    const Result<GangHead> head = Load();
    if (!head) return head.error();
    Result<Objects> all = ObjectsOf(head->checkpoints, Newer::kRefuse);
    if (!all) return all;
    const Result<GangHead> again = Load();
    if (!again) return again.error();
    const bool same =
        std::all_of(head->checkpoints.begin(), head->checkpoints.end(), [&](const CheckpointInfo& c) {
          const auto found = Find(again->checkpoints, c.step);
          return found != again->checkpoints.end() && found->manifest == c.manifest;
        });
    if (same) {
      std::erase_if(known_, [&](const auto& item) {
        return std::none_of(again->checkpoints.begin(), again->checkpoints.end(),
                            [&](const CheckpointInfo& c) { return c.manifest == item.first; });
      });
      return all;
    }
    if (attempt == kAttempts) return ChangingAllTheTime(key_);
  }
}

Status Catalog::RemoveObjects(const std::vector<CheckpointInfo>& gone, bool* orphans) {
  if (orphans != nullptr) *orphans = false;
  if (gone.empty()) return {};
  Objects needed;
  std::vector<std::string> names;
  {
    const std::lock_guard lock(*changing_);
    // Of a newer version's own objects nothing is known, nor of those of one that does not read: they are orphans.
    const Result<Objects> dead = ObjectsOf(gone, Newer::kPassOver);
    Result<Objects> all = Needed();
    if (!dead) return dead.error();
    if (!all) return all.error();
    if (orphans != nullptr) *orphans = dead->unread.has_value();
    needed = *std::move(all);
    names = dead->known.Without(needed.known);
  }
  std::erase_if(names, [&](const std::string& name) {
    const auto of = ParseObjectName(key_, name);
    return !of || needed.MayNeed(of->step);
  });
  // What nothing consists of now nothing will: a later checkpoint shares with listed ones, or with what was never listed.
  if (const auto removed = RemoveAll(*store_, space_, names); !removed) return removed.error();
  // Last: they say what is left to be removed.
  for (const CheckpointInfo& checkpoint : gone) {
    if (checkpoint.manifest.empty() || needed.MayNeed(checkpoint.step)) continue;
    if (Status removed = store_->Remove({space_, checkpoint.manifest}); !removed) return removed;
  }
  const bool left =
      std::any_of(gone.begin(), gone.end(), [&](const auto& c) { return needed.MayNeed(c.step); });
  return left ? Status(needed.unread->second) : Status();
}

Result<size_t> Catalog::CollectOrphans(const Fence& fence, Writers writers) {
  // The list before the head: what is committed after the list was made is of the current generation.
  const Result<std::vector<std::string>> names = store_->List(space_, DataPrefix(key_));
  if (!names) return names.error();
  const Result<GangHead> head = Load();
  if (!head) return head.error();
  if (head->fence != fence) return FenceMoved(key_, fence, head->fence);
  const Result<Objects> needed = [&] {
    const std::lock_guard lock(*changing_);
    return ObjectsOf(head->checkpoints, Newer::kRefuse);
  }();
  if (!needed) return needed.error();
  // All that was written for a listed checkpoint stays too, for its manifest may be damaged. By step and generation, not
  // by term: it may have shards that were written under an older term.
  std::set<std::string> manifests;
  std::set<std::pair<uint64_t, uint64_t>> listed;
  for (const CheckpointInfo& checkpoint : head->checkpoints) {
    manifests.insert(checkpoint.manifest);
    listed.emplace(checkpoint.step, checkpoint.fence.generation);
  }
  const uint64_t end = writers == Writers::kNone ? fence.generation + 1 : fence.generation;
  std::vector<std::string> orphans;
  for (const std::string& name : *names) {
    const auto of = ParseObjectName(key_, name);
    if (!of || of->fence.generation >= end) continue;
    if (manifests.contains(name) || needed->known.Contains(name)) continue;
    if (listed.contains({of->step, of->fence.generation}) || needed->MayNeed(of->step)) continue;
    orphans.push_back(name);
  }
  return RemoveAll(*store_, space_, orphans);
}

}  // namespace muster
