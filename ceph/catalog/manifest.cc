#include "ceph/catalog/manifest.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/json_fields.h"
#include "ceph/catalog/object_names.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "muster-manifest";
constexpr uint64_t kVersion = 1;
constexpr uint32_t kMaxWorldSize = 1u << 20;
constexpr uint64_t kMaxChunkBytes = 64u << 20;  // an object that RADOS takes in one write
constexpr size_t kHexDigits = 32;

Error Corrupt(const std::string& why) {
  return {Errc::kCorrupt, "the manifest " + why};
}

// The shard's objects must lie in a directory of this key and step, written by this generation. The term may
// be an older one: a coordinator that takes over commits what its predecessor's agents have written.
bool PrefixBelongs(const Manifest& manifest, const Shard& shard) {
  const auto directory = ParseObjectName(manifest.key, shard.prefix);
  return directory && directory->step == manifest.step &&
         directory->fence.generation == manifest.fence.generation &&
         directory->fence.term <= manifest.fence.term &&
         shard.prefix == ShardPrefix(manifest.key, manifest.step, directory->fence, shard.rank);
}

Result<Shard> DecodeShard(const json& from, const Manifest& manifest, uint32_t rank) {
  using json_fields::Take;
  const std::string name = "'s shard " + std::to_string(rank);
  Shard shard;
  std::string chunks;
  if (!Take(from, "rank", &shard.rank) || shard.rank != rank) return Corrupt(name + " is not of that rank");
  if (!Take(from, "bytes", &shard.bytes)) return Corrupt(name + " has no 'bytes'");
  if (!Take(from, "chunk_bytes", &shard.chunk_bytes) || shard.chunk_bytes == 0 ||
      shard.chunk_bytes > kMaxChunkBytes) {
    return Corrupt(name + " has no 'chunk_bytes' in 1.." + std::to_string(kMaxChunkBytes));
  }
  if (!Take(from, "prefix", &shard.prefix) || !PrefixBelongs(manifest, shard)) {
    return Corrupt(name + " has a 'prefix' that does not belong to this checkpoint");
  }
  if (!Take(from, "chunks", &chunks)) return Corrupt(name + " has no 'chunks'");
  const uint64_t count = shard.bytes / shard.chunk_bytes + (shard.bytes % shard.chunk_bytes != 0 ? 1 : 0);
  if (chunks.size() % kHexDigits != 0 || chunks.size() / kHexDigits != count) {
    return Corrupt(name + " has not one digest for each of its " + std::to_string(count) + " chunks");
  }
  shard.chunks.reserve(count);
  for (size_t at = 0; at < chunks.size(); at += kHexDigits) {
    const auto digest = DigestFromHex(std::string_view(chunks).substr(at, kHexDigits));
    if (!digest) return Corrupt(name + " has a digest that is not 32 lower-case hexadecimal digits");
    shard.chunks.push_back(*digest);
  }
  return shard;
}

}  // namespace

uint64_t Manifest::TotalBytes() const {
  uint64_t total = 0;
  for (const Shard& shard : shards) total += shard.bytes;
  return total;
}

std::string Manifest::Encode() const {
  json list = json::array();
  for (const Shard& shard : shards) {
    std::string chunks;
    chunks.reserve(shard.chunks.size() * kHexDigits);
    for (const Digest& digest : shard.chunks) chunks += ToHex(digest);
    list.push_back({{"rank", shard.rank},
                    {"bytes", shard.bytes},
                    {"chunk_bytes", shard.chunk_bytes},
                    {"prefix", shard.prefix},
                    {"chunks", std::move(chunks)}});
  }
  return json{{"format", kFormat},
              {"version", kVersion},
              {"key", key},
              {"step", step},
              {"fence", fence.Encode()},
              {"world_size", world_size},
              {"created_ns", static_cast<uint64_t>(created_ns)},
              {"shards", std::move(list)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Manifest> Manifest::Decode(std::string_view text) {
  using json_fields::Take;
  const json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) return Corrupt("is not a JSON object");
  std::string format;
  uint64_t version = 0;
  if (!Take(parsed, "format", &format) || format != kFormat) {
    return Corrupt(std::string("does not say \"format\": \"") + kFormat + "\"");
  }
  if (!Take(parsed, "version", &version) || version != kVersion) {
    return Corrupt("has a version that this program does not read (it reads version 1)");
  }
  Manifest manifest;
  std::string fence;
  if (!Take(parsed, "key", &manifest.key) || manifest.key.empty()) return Corrupt("has no 'key'");
  if (!Take(parsed, "step", &manifest.step)) return Corrupt("has no 'step'");
  if (!Take(parsed, "fence", &fence)) return Corrupt("has no 'fence'");
  const std::optional<Fence> decoded = Fence::Decode(fence);
  if (!decoded) return Corrupt("has a 'fence' that is not TERM.GENERATION");
  manifest.fence = *decoded;
  if (!Take(parsed, "world_size", &manifest.world_size) || manifest.world_size == 0 ||
      manifest.world_size > kMaxWorldSize) {
    return Corrupt("has no 'world_size' in 1.." + std::to_string(kMaxWorldSize));
  }
  if (!Take(parsed, "created_ns", &manifest.created_ns)) return Corrupt("has no 'created_ns'");
  const json* shards = json_fields::Find(parsed, "shards");
  if (shards == nullptr || !shards->is_array() || shards->size() != manifest.world_size) {
    return Corrupt("has not one shard for each of its " + std::to_string(manifest.world_size) + " members");
  }
  manifest.shards.reserve(manifest.world_size);
  uint64_t total = 0;
  for (uint32_t rank = 0; rank < manifest.world_size; ++rank) {
    Result<Shard> shard = DecodeShard((*shards)[rank], manifest, rank);
    if (!shard) return shard.error();
    if (__builtin_add_overflow(total, shard->bytes, &total))
      return Corrupt("has shards of more than 2^64 bytes");
    manifest.shards.push_back(std::move(*shard));
  }
  return manifest;
}

}  // namespace muster
