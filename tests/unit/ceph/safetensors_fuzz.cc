// Safetensors files come from anywhere. What is accepted must lie within its file and its shard, and export again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "ceph/exchange/safetensors.h"
#include "ceph/exchange/shard_export.h"
#include "ceph/exchange/shard_import.h"

namespace {

// The shard that an import makes, without the tensors' data.
void CheckShard(const muster::ShardImport& plan, uint64_t file_bytes) {
  for (const auto& piece : plan.pieces) {
    if (piece.bytes > file_bytes || piece.from > file_bytes - piece.bytes) std::abort();
    if (piece.bytes > plan.layout.bytes || piece.offset > plan.layout.bytes - piece.bytes) std::abort();
  }
  const auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const auto place = muster::ReadShardHeader(bytes(plan.layout.header), plan.layout.bytes);
  if (!place) std::abort();
  const auto entries = muster::ReadShardIndex(*place, bytes(plan.layout.index));
  if (!entries) std::abort();
  const auto again = muster::PlanExport({"k", 1, 0, 1}, *entries, plan.structure);
  if (!again && again.error().code != muster::Errc::kExhausted) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto length = muster::SafeTensorsHeaderLength(bytes, size);
  if (!length) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + muster::kSafeTensorsLengthBytes, *length);
  const auto header = muster::ReadSafeTensorsHeader(text, size);
  if (!header) return 0;
  if (const auto plan = muster::PlanImport(*header)) CheckShard(*plan, size);
  return 0;
}
