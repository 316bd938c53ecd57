#include "daemon/service/checkpoint_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang/gang.h"
#include "wire/gang_options.h"

namespace muster {
namespace {

using nlohmann::json;

// Whether no gang uses the key any more. A record that does not read counts as one that is in use.
bool IsOver(const GangHead& head) {
  if (head.record.empty()) return true;
  const auto record = GangRecord::Decode(head.record);
  return record && record->state == gang::ToString(gang::State::kFinished);
}

Result<json> Removed(const CheckpointsOf& of, const Result<std::vector<uint64_t>>& steps) {
  if (!steps) return steps.error();
  return json{{"gang", of.gang}, {"key", of.key}, {"removed", *steps}};
}

// What unfinished saves and removals have left of a gang that is over, in objects; while one runs its coordinator does that.
// Under a new term, so that what the last coordinator may still have in hand is not committed.
Result<size_t> CollectWhatIsLeft(Catalog* catalog) {
  const Result<GangHead> head = catalog->Load();
  if (!head) return head.error();
  if (!IsOver(*head)) return 0;
  const Fence next{head->fence.term + 1, head->fence.generation};
  std::string text = head->record;
  if (auto record = GangRecord::Decode(head->record); record && !text.empty()) {
    record->term = next.term;
    text = record->Encode();
  }
  const Status advanced = catalog->Advance(head->fence, next, text);
  if (!advanced && advanced.error().code == Errc::kConflict) return 0;  // a gang has begun with it
  if (!advanced) return advanced.error();
  return catalog->CollectOrphans(next, Catalog::Writers::kNone);
}

}  // namespace

Result<json> PinCheckpoint(const CheckpointsOf& of, uint64_t step, const std::string& name) {
  if (!name.empty() && !wire::detail::IsName(name.data(), name.size())) {
    return Error{Errc::kInvalid, fmt::format("that is no name: letters, digits, '.', '_' and '-', at most {}",
                                             wire::kMaxName)};
  }
  if (Status pinned = Catalog(of.store, of.space, of.key).Pin(step, name); !pinned) return pinned.error();
  return json{{"gang", of.gang}, {"key", of.key}, {"step", step}, {"pinned", name}};
}

Result<json> DeleteCheckpoint(const CheckpointsOf& of, uint64_t step) {
  return Removed(
      of,
      Catalog(of.store, of.space, of.key).Drop([&](const GangHead& head) -> Result<std::vector<uint64_t>> {
        if (Status may = MayDelete(head.checkpoints, step, IsOver(head)); !may) return may.error();
        return std::vector{step};
      }));
}

Result<json> PruneCheckpoints(const CheckpointsOf& of, Retention retention) {
  Catalog catalog(of.store, of.space, of.key);
  auto pruned = Removed(of, catalog.Drop([&](const GangHead& head) -> Result<std::vector<uint64_t>> {
    Retention now = retention;
    if (!IsOver(head)) {
      now.newest = std::max(now.newest, kNeededByGang);
      const auto record = GangRecord::Decode(head.record);
      if (record && record->restore) now = now.KeepingAlso(record->restore_step);
    }
    return StepsToLeave(head.checkpoints, now);
  }));
  if (!pruned) return pruned;
  const auto orphans = CollectWhatIsLeft(&catalog);
  if (!orphans) return orphans.error();
  (*pruned)["orphans"] = *orphans;
  return pruned;
}

}  // namespace muster
