#include "daemon/service/new_checkpoint.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "ceph/catalog/catalog.h"
#include "ceph/catalog/object_names.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang/gang.h"

namespace muster {
namespace {

std::string NameIn(const std::string& key) {
  return key.substr(key.find('-') + 1);
}

// Whether a checkpoint of `step` may be added to what is there.
Status MayAdd(const GangHead& head, const std::string& key, uint64_t step) {
  if (!head.record.empty()) {
    const auto record = GangRecord::Decode(head.record);
    if (!record) return record.error();
    if (record->state != gang::ToString(gang::State::kFinished)) {
      return Error{Errc::kConflict,
                   fmt::format("gang {} uses name={} and is {}: give another name, or wait for its end",
                               record->gang, NameIn(key), record->state)};
    }
  }
  for (const CheckpointInfo& checkpoint : head.checkpoints) {
    if (checkpoint.step == step) {
      return Error{Errc::kInvalid,
                   fmt::format("name={} has a checkpoint of step {} already", NameIn(key), step)};
    }
  }
  if (head.latest && *head.latest > step) {
    return Error{Errc::kInvalid,
                 fmt::format("name={} has a newer checkpoint, of step {}, from which a gang would start: "
                             "give a higher step, another name, or delete that one",
                             NameIn(key), *head.latest)};
  }
  return {};
}

}  // namespace

Result<Fence> BeginNewCheckpoint(const std::shared_ptr<Store>& store, const std::string& space,
                                 const std::string& key, uint64_t step) {
  Catalog catalog(store, space, key);
  if (Status created = catalog.CreateEmpty(); !created && created.error().code != Errc::kConflict)
    return created.error();
  const Result<GangHead> head = catalog.Load();
  if (!head) return head.error();
  if (Status may = MayAdd(*head, key, step); !may) return may.error();
  // The entry of the gang that has used the key stays: it is what its job is found by.
  const auto index = Catalog::ListKeys(*store, space);
  if (!index) return index.error();
  const auto known = index->find(key);
  const nlohmann::json entry = {{"gang", ""}, {"job", 0}, {"step", 0}, {"created_ns", RealtimeNs()}};
  const Result<GangHead> mine =
      catalog.TakeOver("", known == index->end() ? entry.dump() : known->second, &*head);
  if (!mine) return mine.error();
  return mine->fence;
}

Status CommitNewCheckpoint(const std::shared_ptr<Store>& store, const std::string& space,
                           const Manifest& manifest, const Retention& retention) {
  const auto committed = Catalog(store, space, manifest.key).Commit(manifest, retention);
  if (committed) return {};
  if (committed.error().code != Errc::kUnavailable) RemoveNewCheckpoint(*store, space, manifest);
  if (committed.error().code == Errc::kConflict) {
    return Error{
        Errc::kConflict,
        fmt::format("a gang has begun to use name={} meanwhile; nothing is imported", NameIn(manifest.key))};
  }
  return committed.error();
}

void RemoveNewCheckpoint(Store& store, const std::string& space, const Manifest& manifest) {
  const auto names = store.List(space, CheckpointPrefix(manifest.key, manifest.step, manifest.fence));
  if (!names) return spdlog::warn("an import that was given up: {}", names.error().message);
  for (const std::string& name : *names) {
    if (Status removed = store.Remove({space, name}); !removed)
      spdlog::warn("an import that was given up: {}", removed.error().message);
  }
}

}  // namespace muster
