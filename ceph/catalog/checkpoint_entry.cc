#include "ceph/catalog/checkpoint_entry.h"

#include <nlohmann/json.hpp>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/json_fields.h"
#include "ceph/catalog/object_names.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr uint64_t kEntryVersion = 1;

}  // namespace

std::string EncodeCheckpointEntry(const CheckpointInfo& info) {
  json entry{{"version", kEntryVersion},
             {"manifest", info.manifest},
             {"digest", ToHex(info.manifest_digest)},
             {"fence", info.fence.Encode()},
             {"bytes", info.bytes},
             {"world_size", info.world_size},
             {"created_ns", static_cast<uint64_t>(info.created_ns)},
             {"state", info.good ? "good" : "bad"},
             {"reason", info.reason}};
  if (!info.pinned.empty()) entry["pinned"] = info.pinned;
  return entry.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<CheckpointInfo> DecodeCheckpointEntry(std::string_view key, uint64_t step, std::string_view text) {
  using json_fields::Take;
  const auto corrupt = [&](const char* why) {
    return Error{Errc::kCorrupt, "the entry of checkpoint " + std::to_string(step) + " of " +
                                     std::string(key) + " does not read: " + why};
  };
  const json parsed = json::parse(text, nullptr, false);
  uint64_t version = 0;
  if (!Take(parsed, "version", &version) || version != kEntryVersion) return corrupt("unknown version");
  CheckpointInfo info;
  info.step = step;
  std::string fence;
  std::string digest;
  std::string state;
  if (!Take(parsed, "fence", &fence) || !Take(parsed, "digest", &digest) || !Take(parsed, "state", &state) ||
      !Take(parsed, "manifest", &info.manifest) || !Take(parsed, "bytes", &info.bytes) ||
      !Take(parsed, "world_size", &info.world_size) || !Take(parsed, "created_ns", &info.created_ns) ||
      !Take(parsed, "reason", &info.reason)) {
    return corrupt("a member is missing or of another type");
  }
  if (json_fields::Find(parsed, "pinned") != nullptr && !Take(parsed, "pinned", &info.pinned))
    return corrupt("pinned is no name");
  const auto decoded_fence = Fence::Decode(fence);
  const auto decoded_digest = DigestFromHex(digest);
  if (!decoded_fence) return corrupt("bad fence");
  if (!decoded_digest) return corrupt("bad digest");
  if (state != "good" && state != "bad") return corrupt("unknown state");
  info.fence = *decoded_fence;
  info.manifest_digest = *decoded_digest;
  info.good = state == "good";
  if (info.manifest != ManifestName(key, step, info.fence)) return corrupt("another checkpoint's manifest");
  return info;
}

}  // namespace muster
