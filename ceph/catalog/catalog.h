// A gang's record, its fence and its list of checkpoints: one head object a gang key, changed only by
// compare-and-swap with the fence. Thread-safe; every call blocks for store operations. The calls of one
// Catalog that change the head take turns, so use one Catalog for all changes under one fence.
//
// Head entries: "record" (the coordinator's JSON), "latest" (a step in decimal), "checkpoint/STEP" (JSON:
// manifest object, its digest and bytes, fence, created, state good|bad, reason). Heads: "gang/KEY" in the
// user's space; the head "index" of each space has one entry per gang key.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ceph/catalog/fence.h"
#include "ceph/catalog/manifest.h"
#include "ceph/store/store.h"

namespace muster {

struct CheckpointInfo {
  uint64_t step = 0;
  Fence fence;
  uint64_t bytes = 0;  // sum of all shards
  uint32_t world_size = 0;
  int64_t created_ns = 0;
  bool good = true;
  std::string reason;    // why it is not good
  std::string manifest;  // object name
  Digest manifest_digest{};
};

struct GangHead {
  Fence fence;
  std::string record;
  std::optional<uint64_t> latest;           // the newest good step
  std::vector<CheckpointInfo> checkpoints;  // ascending by step
};

class Catalog {
 public:
  // `space` as in ObjectName, `key` a validated gang key.
  Catalog(std::shared_ptr<Store> store, std::string space, std::string key);

  // kNotFound for a key that was never used; kCorrupt for a head that is not one of ours (left alone).
  Result<GangHead> Load();
  // Takes the key over: creates the head, or raises the term above the one in it. Gives the new fence and
  // what was there. `generation` stays that of the head (0 when new). An empty `record` keeps the one there.
  // kConflict: somebody else was faster, load again.
  Result<GangHead> TakeOver(const std::string& record, const std::string& index_entry);
  // Moves the fence from `from` to `to` with a new record; also from == to to change the record alone.
  Status Advance(const Fence& from, const Fence& to, const std::string& record);
  // Writes the manifest object, then adds it and moves `latest`, guarded by manifest.fence. kConflict: a
  // newer term or generation has taken over; nothing is visible then. kUnavailable: the outcome is unknown;
  // the same call may be made again. In the same operation everything older than the newest `keep` good ones
  // (at least 1) leaves the head, then its objects are removed. Gives the steps that left.
  Result<std::vector<uint64_t>> Commit(const Manifest& manifest, size_t keep);
  // Marks a checkpoint bad and moves `latest` to the newest good one.
  Status MarkBad(const Fence& fence, uint64_t step, const std::string& reason);
  // Reads and verifies the manifest of a step (not the chunks).
  Result<Manifest> LoadManifest(uint64_t step);
  // Removes objects that no listed checkpoint has and that an older generation than fence's has written: what
  // crashes and failed saves leave. `fence` must be the head's (else kConflict), so none of them can ever be
  // committed. Lists all objects of the key, which is slow: for the background, after a take-over. Gives how
  // many were removed.
  Result<size_t> CollectOrphans(const Fence& fence);
  // Gang keys of a space with their index entries.
  static Result<std::map<std::string, std::string>> ListKeys(Store& store, const std::string& space);

 private:
  std::shared_ptr<Store> store_;
  std::string space_;
  std::string key_;
  std::unique_ptr<std::mutex> changing_ = std::make_unique<std::mutex>();

  [[nodiscard]] ObjectName HeadName() const { return {space_, "gang/" + key_}; }
  Status PutIntoIndex(const std::string& index_entry);
  // All objects of a checkpoint that is not listed any more, but those that `committed` consists of.
  void RemoveObjects(const CheckpointInfo& checkpoint, const Manifest& committed);
};

}  // namespace muster
