// A gang's record, its fence and its list of checkpoints: one head object a gang key, changed only by
// compare-and-swap with the fence. Thread-safe as far as the store is; every call blocks for store
// operations.
//
// Head entries: "record" (the coordinator's JSON), "latest" (a step in decimal), "checkpoint/STEP" (JSON:
// manifest object, its digest and bytes, fence, created, state good|bad, reason). Heads: "gang/KEY" in the
// user's space; the head "index" of each space has one entry per gang key.
#pragma once

#include <functional>
#include <memory>
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
  // what was there. `generation` stays that of the head (0 when new). kConflict: somebody else was faster,
  // load again.
  Result<GangHead> TakeOver(const std::string& record, const std::string& index_entry);
  // Moves the fence from `from` to `to` with a new record; also from == to to change the record alone.
  Status Advance(const Fence& from, const Fence& to, const std::string& record);
  // Writes the manifest object, then adds it and moves `latest`, guarded by manifest.fence. kConflict: a
  // newer term or generation has taken over; nothing is visible then. Afterwards removes what is beyond the
  // newest `keep` good ones. Gives the steps removed.
  Result<std::vector<uint64_t>> Commit(const Manifest& manifest, size_t keep);
  // Marks a checkpoint bad and moves `latest` to the newest good one.
  Status MarkBad(const Fence& fence, uint64_t step, const std::string& reason);
  // Reads and verifies the manifest of a step (not the chunks).
  Result<Manifest> LoadManifest(uint64_t step);
  // Gang keys of a space with their index entries.
  static Result<std::map<std::string, std::string>> ListKeys(Store& store, const std::string& space);

 private:
  std::shared_ptr<Store> store_;
  std::string space_;
  std::string key_;
};

}  // namespace muster
