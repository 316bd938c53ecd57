// A gang's record, its fence and its list of checkpoints: one head object a gang key, changed only by
// compare-and-swap with the fence. Thread-safe; every call blocks for store operations. The calls of one
// Catalog that change the list of checkpoints take turns, so use one Catalog for all changes under one fence. Who changes the
// record alone waits for none of them, however many manifests they read: the fence decides who was first.
//
// Head entries: "record" (the coordinator's JSON), "latest" (a step in decimal), "checkpoint/STEP" (JSON:
// manifest object, its digest and bytes, fence, created, state good|bad, reason, pinned). Heads: "gang/KEY" in the
// user's space; the head "index" of each space has one entry per gang key.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ceph/catalog/fence.h"
#include "ceph/catalog/manifest.h"
#include "ceph/catalog/references.h"
#include "ceph/catalog/retention.h"
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
  std::string pinned;    // the name under which a user keeps it, "": none
  std::string manifest;  // object name
  Digest manifest_digest{};
  std::string entry;  // as the head has it
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
  // `made_from`: the head that `record` was made from, an empty one where there was none. kConflict: somebody else was faster, load
  // again. Of the checkpoints that it gives the newest may be missing: who has the old fence may commit until this has taken it.
  Result<GangHead> TakeOver(const std::string& record, const std::string& index_entry,
                            const GangHead* made_from = nullptr);
  // Makes the head, with the lowest fence and no record. kConflict: there is one.
  Status CreateEmpty();
  // Moves the fence from `from` to `to` with a new record; also from == to to change the record alone. `made_from`: the record
  // that must be there: who has the fence may have written another one since it was read.
  Status Advance(const Fence& from, const Fence& to, const std::string& record,
                 const std::optional<std::string>& made_from = std::nullopt);
  // The same until the store has answered. A try whose answer did not come may have succeeded: the next one would find
  // its own fence and take it for another's, so what is there is read and compared. `go_on` is asked before each further
  // try, and pauses if it likes. kUnavailable or kExhausted: it said no, and the outcome is not known.
  Status AdvanceForSure(const Fence& from, const Fence& to, const std::string& record,
                        const std::function<bool(const Error& error)>& go_on,
                        const std::optional<std::string>& made_from = std::nullopt);
  // Writes the manifest object, then adds it and moves `latest`, guarded by manifest.fence. kConflict: a
  // newer term or generation has taken over; nothing is visible then. kUnavailable: the outcome is unknown;
  // the same call may be made again. In the same operation what retention does not keep leaves the head; then those of its
  // objects are removed that no listed checkpoint consists of; with `gone` this is left to RemoveObjects, for it takes longer
  // than the commit. Gives the steps that left.
  //
  // A shard may share chunks with an older checkpoint that is listed, or with a shard of the same generation that was not
  // committed. Who writes shards must see to it that what they share is still there when they are committed: a save on its
  // way may share with the newest two good ones, so these must stay (kNeededByGang), or it may share nothing. kCorrupt: a
  // chunk is shared with an older generation's shard, or by a save that a newer one has overtaken, and no listed checkpoint
  // consists of it; nothing is committed.
  Result<std::vector<uint64_t>> Commit(const Manifest& manifest, const Retention& retention,
                                       std::vector<CheckpointInfo>* gone = nullptr);
  // The objects of checkpoints that have left the head, but what the listed ones consist of. On an error some may stay: the
  // same call may be made again; if it is not they are orphans. Other calls do not wait for the removal itself. kCorrupt: the
  // manifest of a listed one does not read now, so nothing that it may share with these is removed. `orphans`: whether the manifest of one
  // that is gone does not read: what it alone consisted of stays, and is for CollectOrphans.
  Status RemoveObjects(const std::vector<CheckpointInfo>& gone, bool* orphans = nullptr);
  // Removes checkpoints as Commit does, under whatever fence the head has: `choose` says which, and is asked again when the
  // head has changed meanwhile. Its error is the outcome. Gives the steps that left. kUnavailable may mean, too, that they have
  // left and what they consisted of is not all removed: then that is orphans.
  Result<std::vector<uint64_t>> Drop(
      const std::function<Result<std::vector<uint64_t>>(const GangHead& head)>& choose);
  // Pins a checkpoint under a name, or takes its pin away (""), under whatever fence the head has. kConflict: another one
  // of the key has the name.
  Status Pin(uint64_t step, const std::string& name);
  // Marks a checkpoint bad, and with it all that share the object which `reason` names with it, so that the gang does not find
  // them out one by one, a restart each. Moves `latest` to the newest good one. `manifest` is CheckpointInfo's. kNotFound: that
  // one is not listed any more; another of its step stays as it is.
  Status MarkBad(const Fence& fence, uint64_t step, const std::string& manifest, const std::string& reason);
  // Reads and verifies the manifest of a step (not the chunks). kNotFound: there is no such step. `entry` gets what the head
  // says of it, also when its manifest is bad.
  Result<Manifest> LoadManifest(uint64_t step, CheckpointInfo* entry = nullptr);
  // Whether the head still lists this very checkpoint: what is missing or different of one that it does not list is not
  // damage. kNotFound: it has been removed, or its step was saved anew; the sentence says which.
  Status CheckListed(const CheckpointInfo& checkpoint);
  enum class Writers { kSome, kNone };
  // Removes objects that no listed checkpoint has and that an older generation than fence's has written: what
  // crashes and failed saves leave. `fence` must be the head's (else kConflict), so none of them can ever be
  // committed. With kNone its own generation's too: nobody writes or commits under this fence any more. Lists all objects of
  // the key, which is slow: for the background. Gives how many were removed. What a listed checkpoint may share whose manifest
  // does not read now stays.
  Result<size_t> CollectOrphans(const Fence& fence, Writers writers = Writers::kSome);
  // Gang keys of a space with their index entries.
  static Result<std::map<std::string, std::string>> ListKeys(Store& store, const std::string& space);

 private:
  std::shared_ptr<Store> store_;
  std::string space_;
  std::string key_;
  std::unique_ptr<std::mutex> changing_ = std::make_unique<std::mutex>();
  std::map<std::string, ObjectSet> known_;  // of listed checkpoints, by their manifests; under changing_

  [[nodiscard]] ObjectName HeadName() const { return {space_, "gang/" + key_}; }
  Status PutIntoIndex(const std::string& index_entry);
  Result<Manifest> LoadManifest(const CheckpointInfo& checkpoint);
  enum class Newer { kRefuse, kPassOver };
  // What checkpoints consist of, as far as that can be read now.
  struct Objects {
    ObjectSet known;
    // The newest whose manifest, or entry, does not read, and why. It may consist of any object of its step or an older one.
    std::optional<std::pair<uint64_t, Error>> unread;
    [[nodiscard]] bool MayNeed(uint64_t step) const { return unread && step <= unread->first; }
  };
  // kInvalid with kRefuse: there is one of a newer version, of which this program does not know what it consists of.
  Result<Objects> ObjectsOf(const std::vector<CheckpointInfo>& checkpoints, Newer newer);
  Status CheckShared(const Manifest& manifest, const std::vector<CheckpointInfo>& listed);
  bool Has(const CheckpointInfo& checkpoint, std::string_view object);
  Result<Objects> Needed();
  // Changes the list under the head's own fence, with what `change` makes of it; it is asked again when somebody else was
  // faster.
  Status Change(const std::function<Status(GangHead* head, HeadUpdate* update)>& change);
};

}  // namespace muster
