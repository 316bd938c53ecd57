#include "ceph/catalog/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "ceph/catalog/digest.h"
#include "ceph/catalog/json_fields.h"
#include "ceph/catalog/object_names.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "muster-manifest";
// Version 2 has shards whose chunks are elsewhere, version 3 such as are encoded, version 4 prefixes that say which write theirs
// was; a manifest is of the lowest that it needs.
constexpr uint64_t kVersion = 1;
constexpr uint64_t kVersionElsewhere = 2;
constexpr uint64_t kVersionEncoded = 3;
constexpr uint64_t kVersionWrites = 4;
constexpr uint32_t kMaxWorldSize = 1u << 20;
constexpr uint64_t kMaxChunkBytes = 64u << 20;  // an object that RADOS takes in one write
constexpr size_t kHexDigits = 32;

Error Corrupt(const std::string& why) {
  return {Errc::kCorrupt, "the manifest " + why};
}

// The shard's objects must lie in a directory of this key and step, written by this generation. The term may
// be an older one: a coordinator that takes over commits what its predecessor's agents have written.
bool PrefixBelongs(const Manifest& manifest, const Shard& shard) {
  const auto directory = ParseShardPrefix(manifest.key, shard.rank, shard.prefix);
  return directory && directory->step == manifest.step &&
         directory->fence.generation == manifest.fence.generation &&
         directory->fence.term <= manifest.fence.term;
}

// The objects of older checkpoints must be of the same key and rank, and of no later writer.
bool RunBelongs(const Manifest& manifest, const Shard& shard, const ChunkRun& run) {
  const auto directory = ParseShardPrefix(manifest.key, shard.rank, run.prefix);
  return directory && directory->step < manifest.step &&
         directory->fence.generation <= manifest.fence.generation &&
         directory->fence.term <= manifest.fence.term;
}

// [[first chunk, how many, prefix], ...]
Status DecodeElsewhere(const json& from, const Manifest& manifest, const std::string& name, Shard* shard) {
  const json* list = json_fields::Find(from, "elsewhere");
  if (list == nullptr) return {};
  if (!list->is_array()) return Corrupt(name + " has an 'elsewhere' that is no list");
  uint64_t next = 0;
  for (const json& item : *list) {
    if (!item.is_array() || item.size() != 3 || !item[0].is_number_unsigned() ||
        !item[1].is_number_unsigned() || !item[2].is_string()) {
      return Corrupt(name + " has an 'elsewhere' that is not [[first, count, prefix], ...]");
    }
    ChunkRun run{item[0].get<uint64_t>(), item[1].get<uint64_t>(), item[2].get<std::string>()};
    if (run.first < next || run.count == 0 || run.first >= shard->chunks.size() ||
        run.count > shard->chunks.size() - run.first) {
      return Corrupt(name + " has an 'elsewhere' whose chunks are not its own, or not in order");
    }
    if (!RunBelongs(manifest, *shard, run)) {
      return Corrupt(name + " has an 'elsewhere' that is no older shard of that rank");
    }
    next = run.first + run.count;
    shard->elsewhere.push_back(std::move(run));
  }
  return {};
}

// [[first chunk, width, [bytes, ...]], ...]
Status DecodeEncoded(const json& from, const std::string& name, Shard* shard) {
  const json* list = json_fields::Find(from, "encoded");
  if (list == nullptr) return {};
  if (!list->is_array()) return Corrupt(name + " has an 'encoded' that is no list");
  const auto is_size = [](const json& item) {
    return item.is_number_unsigned() && item.get<uint64_t>() <= kMaxChunkBytes;
  };
  uint64_t next = 0;
  for (const json& item : *list) {
    if (!item.is_array() || item.size() != 3 || !item[0].is_number_unsigned() || !is_size(item[1]) ||
        !item[2].is_array() || !std::all_of(item[2].begin(), item[2].end(), is_size)) {
      return Corrupt(name + " has an 'encoded' that is not [[first, width, [bytes, ...]], ...]");
    }
    const EncodedRun run{item[0].get<uint64_t>(), item[1].get<uint32_t>(),
                         item[2].get<std::vector<uint32_t>>()};
    if (run.first < next || !shard->AddEncoded(run)) {
      return Corrupt(name +
                     " has an 'encoded' whose chunks are not its own, not in order, or not encoded so");
    }
    next = run.first + run.bytes.size();
  }
  return {};
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
  if (Status status = DecodeElsewhere(from, manifest, name, &shard); !status) return status.error();
  if (Status status = DecodeEncoded(from, name, &shard); !status) return status.error();
  return shard;
}

}  // namespace

uint64_t Shard::BytesOf(uint64_t chunk) const {
  return std::min(chunk_bytes, bytes - chunk * chunk_bytes);
}

const std::string& Shard::PrefixOf(uint64_t chunk) const {
  const auto after = std::upper_bound(elsewhere.begin(), elsewhere.end(), chunk,
                                      [](uint64_t c, const ChunkRun& run) { return c < run.first; });
  if (after == elsewhere.begin()) return prefix;
  const ChunkRun& run = *std::prev(after);
  return chunk - run.first < run.count ? run.prefix : prefix;
}

std::string Shard::ObjectOf(uint64_t chunk) const {
  return ChunkName(PrefixOf(chunk), chunk);
}

void Shard::AddElsewhere(uint64_t chunk, const std::string& other) {
  if (!elsewhere.empty()) {
    ChunkRun& last = elsewhere.back();
    if (last.prefix == other && last.first + last.count == chunk) {
      ++last.count;
      return;
    }
  }
  elsewhere.push_back({chunk, 1, other});
}

ChunkEncoding Shard::EncodingOf(uint64_t chunk) const {
  return chunk < encodings.size() ? encodings[chunk] : ChunkEncoding();
}

uint64_t Shard::StoredBytesOf(uint64_t chunk) const {
  const ChunkEncoding encoding = EncodingOf(chunk);
  return encoding.width == 0 ? BytesOf(chunk) : encoding.bytes;
}

std::vector<EncodedRun> Shard::EncodedRuns() const {
  std::vector<EncodedRun> runs;
  uint64_t next = 0;
  for (uint64_t chunk = 0; chunk < encodings.size(); ++chunk) {
    const ChunkEncoding& encoding = encodings[chunk];
    if (encoding.width == 0) continue;
    if (runs.empty() || chunk != next || runs.back().width != encoding.width)
      runs.push_back({chunk, encoding.width, {}});
    runs.back().bytes.push_back(encoding.bytes);
    next = chunk + 1;
  }
  return runs;
}

bool Shard::AddEncoded(const EncodedRun& run) {
  if (run.bytes.empty() || !IsEncodingWidth(run.width)) return false;
  if (run.first >= chunks.size() || run.bytes.size() > chunks.size() - run.first) return false;
  for (uint64_t i = 0; i < run.bytes.size(); ++i) {
    const uint64_t chunk = run.first + i;
    if (run.bytes[i] == 0 || run.bytes[i] >= BytesOf(chunk) || EncodingOf(chunk).width != 0) return false;
  }
  encodings.resize(chunks.size());
  for (uint64_t i = 0; i < run.bytes.size(); ++i) encodings[run.first + i] = {run.width, run.bytes[i]};
  return true;
}

uint64_t Manifest::TotalBytes() const {
  uint64_t total = 0;
  for (const Shard& shard : shards) total += shard.bytes;
  return total;
}

std::string Manifest::Encode() const {
  json list = json::array();
  uint64_t version = kVersion;
  for (const Shard& shard : shards) {
    std::string chunks;
    chunks.reserve(shard.chunks.size() * kHexDigits);
    for (const Digest& digest : shard.chunks) chunks += ToHex(digest);
    json entry{{"rank", shard.rank},
               {"bytes", shard.bytes},
               {"chunk_bytes", shard.chunk_bytes},
               {"prefix", shard.prefix},
               {"chunks", std::move(chunks)}};
    if (HasWrite(shard.prefix)) version = kVersionWrites;
    if (!shard.elsewhere.empty()) {
      json& runs = entry["elsewhere"] = json::array();
      version = std::max(version, kVersionElsewhere);
      for (const ChunkRun& run : shard.elsewhere) {
        runs.push_back({run.first, run.count, run.prefix});
        if (HasWrite(run.prefix)) version = kVersionWrites;
      }
    }
    if (const std::vector<EncodedRun> encoded = shard.EncodedRuns(); !encoded.empty()) {
      json& runs = entry["encoded"] = json::array();
      for (const EncodedRun& run : encoded) runs.push_back({run.first, run.width, run.bytes});
      version = std::max(version, kVersionEncoded);
    }
    list.push_back(std::move(entry));
  }
  return json{{"format", kFormat},
              {"version", version},
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
  if (!Take(parsed, "version", &version) || version < kVersion) return Corrupt("has no 'version'");
  // A newer program's: it is whole, and what it consists of is not to be removed.
  if (version > kVersionWrites) {
    return Error{Errc::kInvalid, "the manifest is of version " + std::to_string(version) +
                                     ", and this program reads versions 1 to " +
                                     std::to_string(kVersionWrites) + ": upgrade it"};
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
