#include "ceph/catalog/catalog.h"

#include <algorithm>
#include <utility>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/head_entries.h"

namespace muster {
namespace {

using head_entries::kRecord;

constexpr char kIndex[] = "index";
constexpr char kIndexFence[] = "index";  // the index has no owner: every gang adds its own entry
constexpr int kIndexAttempts = 5;

}  // namespace

Catalog::Catalog(std::shared_ptr<Store> store, std::string space, std::string key)
    : store_(std::move(store)), space_(std::move(space)), key_(std::move(key)) {}

Result<GangHead> Catalog::Load() {
  const Result<Head> head = store_->ReadHead(HeadName());
  if (!head) return head.error();
  return head_entries::Decode(key_, *head);
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

Result<GangHead> Catalog::TakeOver(const std::string& record, const std::string& index_entry,
                                   const GangHead* made_from) {
  Result<GangHead> now = Load();
  if (!now && now.error().code != Errc::kNotFound) return now;
  if (made_from != nullptr && (now ? now->fence : Fence()) != made_from->fence) {
    return Error{Errc::kConflict, key_ + " has another fence than " + made_from->fence.Encode()};
  }
  // The index first: a key that it names and that has no head is only listed, one that it lacks would be
  // lost.
  if (Status status = PutIntoIndex(index_entry); !status) return status.error();
  HeadUpdate update;
  if (now) update.expect_fence = now->fence.Encode();
  if (now && made_from != nullptr) update.expect[kRecord] = made_from->record;
  GangHead mine = now ? std::move(*now) : GangHead{};
  if (mine.fence.term == UINT64_MAX) return Error{Errc::kExhausted, key_ + " has no term left"};
  mine.fence.term += 1;
  update.new_fence = mine.fence.Encode();
  if (!record.empty() || !update.expect_fence) update.set[kRecord] = record;
  if (Status status = store_->UpdateHead(HeadName(), update); !status) return status.error();
  return mine;
}

Status Catalog::CreateEmpty() {
  HeadUpdate update;
  update.new_fence = Fence().Encode();
  update.set[kRecord] = "";
  return store_->UpdateHead(HeadName(), update);
}

Status Catalog::Advance(const Fence& from, const Fence& to, const std::string& record,
                        const std::optional<std::string>& made_from) {
  if (to < from || to.generation < from.generation) {
    return Error{Errc::kInvalid,
                 "the fence of " + key_ + " cannot go back from " + from.Encode() + " to " + to.Encode()};
  }
  HeadUpdate update;
  update.expect_fence = from.Encode();
  update.new_fence = to.Encode();
  update.set[kRecord] = record;
  if (made_from) update.expect[kRecord] = *made_from;
  return store_->UpdateHead(HeadName(), update);
}

Status Catalog::AdvanceForSure(const Fence& from, const Fence& to, const std::string& record,
                               const std::function<bool(const Error& error)>& go_on,
                               const std::optional<std::string>& made_from) {
  bool unknown = false;  // whether an earlier try may have succeeded
  while (true) {
    Status status = Advance(from, to, record, made_from);
    if (status) return status;
    if (status.error().code == Errc::kConflict && unknown) {
      const Result<GangHead> head = Load();
      if (head && head->fence == to && head->record == record) return {};
      if (!head) status = head.error();
    }
    if (!MayPass(status.error())) return status;
    unknown |= status.error().code == Errc::kUnavailable;
    if (!go_on(status.error())) return status;
  }
}

Result<Manifest> Catalog::LoadManifest(uint64_t step, CheckpointInfo* entry) {
  const Result<GangHead> head = Load();
  if (!head) return head.error();
  const auto found = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                  [&](const auto& c) { return c.step == step; });
  if (found == head->checkpoints.end())
    return Error{Errc::kNotFound, "there is no checkpoint " + std::to_string(step) + " of " + key_};
  if (entry != nullptr) *entry = *found;
  return LoadManifest(*found);
}

Status Catalog::CheckListed(const CheckpointInfo& checkpoint) {
  const Result<GangHead> head = Load();
  if (!head && head.error().code != Errc::kNotFound) return head.error();
  bool anew = false;
  for (const CheckpointInfo& listed : head ? head->checkpoints : std::vector<CheckpointInfo>()) {
    if (listed.step != checkpoint.step) continue;
    if (listed.manifest == checkpoint.manifest && listed.manifest_digest == checkpoint.manifest_digest)
      return {};
    anew = true;
  }
  return Error{Errc::kNotFound, "checkpoint " + std::to_string(checkpoint.step) + " of " + key_ +
                                    (anew ? " was saved anew" : " was removed") + " while it was read"};
}

Result<Manifest> Catalog::LoadManifest(const CheckpointInfo& checkpoint) {
  if (checkpoint.manifest.empty()) return Error{Errc::kCorrupt, checkpoint.reason};
  const std::string what = "checkpoint " + std::to_string(checkpoint.step) + " of " + key_;
  const Result<std::string> text = store_->Read({space_, checkpoint.manifest});
  if (!text) {
    if (text.error().code != Errc::kNotFound) return text.error();
    return Error{Errc::kCorrupt, what + ": its manifest " + checkpoint.manifest + " is missing"};
  }
  if (DigestOf(*text) != checkpoint.manifest_digest) {
    return Error{Errc::kCorrupt,
                 what + ": its manifest " + checkpoint.manifest + " has another digest than was committed"};
  }
  Result<Manifest> manifest = Manifest::Decode(*text);
  if (!manifest) return Error{manifest.error().code, what + ": " + manifest.error().message};
  if (manifest->key != key_ || manifest->step != checkpoint.step || manifest->fence != checkpoint.fence) {
    return Error{Errc::kCorrupt, what + ": its manifest is another checkpoint's"};
  }
  return manifest;
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
