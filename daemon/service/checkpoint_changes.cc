#include "daemon/service/checkpoint_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang/gang.h"
#include "daemon/wire/gang_options.h"

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
  return Removed(
      of,
      Catalog(of.store, of.space, of.key).Drop([&](const GangHead& head) -> Result<std::vector<uint64_t>> {
        Retention now = retention;
        if (!IsOver(head)) now.newest = std::max(now.newest, kNeededByGang);
        return StepsToLeave(head.checkpoints, now);
      }));
}

}  // namespace muster
