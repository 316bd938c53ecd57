#include "daemon/service/checkpoint_queries.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "ceph/engine/shard_memory.h"
#include "ceph/exchange/exact_text.h"
#include "ceph/exchange/shard_export.h"
#include "ceph/exchange/shard_index.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr uint32_t kShownShards = 8;           // whose entries are told without being asked for
constexpr uint64_t kMaxIndexBytes = 16 << 20;  // of a shard, and of its structure
constexpr size_t kMaxEntries = 20'000;         // in one answer

json InfoJson(const GangHead& head, const CheckpointInfo& info) {
  return {{"step", info.step},
          {"generation", info.fence.generation},
          {"term", info.fence.term},
          {"bytes", info.bytes},
          {"members", info.world_size},
          {"created_ns", info.created_ns},
          {"state", info.good ? "good" : "bad"},
          {"reason", info.reason},
          {"pinned", info.pinned},
          {"latest", head.latest == info.step}};
}

// Bytes of the chunks that were written for this checkpoint; the others it shares with older ones.
uint64_t OwnBytes(const Shard& shard) {
  uint64_t shared = 0;
  for (const ChunkRun& run : shard.elsewhere) {
    for (uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) shared += shard.BytesOf(chunk);
  }
  return shard.bytes - shared;
}

// What they take of the store, with those that are shared.
uint64_t StoredBytesOf(const Shard& shard) {
  uint64_t stored = 0;
  for (uint64_t chunk = 0; chunk < shard.chunks.size(); ++chunk) stored += shard.StoredBytesOf(chunk);
  return stored;
}

// What is in a shard, or why that cannot be told.
class Contents {
 public:
  Contents(const CheckpointsOf& of, const Shard& shard) : of_(of), shard_(shard) {}

  // At most *room entries, which it counts down.
  void AddTo(json* document, size_t* room) {
    if (Status read = Read(); !read) {
      (*document)["entries"] = nullptr;
      (*document)["unreadable"] = read.error().message;
      return;
    }
    const std::vector<ShownEntry> shown = ShowEntries(entries_);
    json list = json::array();
    size_t left_out = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (shown[i].name.empty()) continue;
      if (*room == 0) {
        ++left_out;
        continue;
      }
      --*room;
      list.push_back({{"name", shown[i].name},
                      {"bytes", entries_[i].bytes},
                      {"dtype", shown[i].dtype},
                      {"shape", shown[i].shape},
                      {"meta", PrintableText(entries_[i].meta)}});
    }
    (*document)["entries"] = std::move(list);
    (*document)["entries_left_out"] = left_out;
  }

 private:
  Result<std::string> Range(uint64_t offset, uint64_t bytes) {
    if (bytes > kMaxIndexBytes) return Error{Errc::kExhausted, "its index is too long to be shown"};
    // Shared: set_value may still be at work when get returns.
    const auto promise = std::make_shared<std::promise<Result<UniqueFd>>>();
    of_.engine.ReadRange(of_.space, shard_, offset, bytes,
                         [promise](Result<UniqueFd> memory) { promise->set_value(std::move(memory)); });
    const Result<UniqueFd> memory = promise->get_future().get();
    if (!memory) return memory.error();
    std::string data(bytes, '\0');
    if (Status read = ReadShardMemory(*memory, 0, std::as_writable_bytes(std::span(data))); !read)
      return read.error();
    return data;
  }

  Status Read() {
    const auto header = Range(0, std::min<uint64_t>(kShardHeaderBytes, shard_.bytes));
    if (!header) return header.error();
    const auto place = ReadShardHeader(std::as_bytes(std::span(*header)), shard_.bytes);
    if (!place) return place.error();
    const auto index = Range(place->offset, place->bytes);
    if (!index) return index.error();
    auto entries = ReadShardIndex(*place, std::as_bytes(std::span(*index)));
    if (!entries) return entries.error();
    entries_ = *std::move(entries);
    return {};
  }

  const CheckpointsOf& of_;
  const Shard& shard_;
  std::vector<ShardEntryInfo> entries_;
};

}  // namespace

Result<json> ListCheckpoints(const CheckpointsOf& of) {
  const auto head = Catalog(of.store, of.space, of.key).Load();
  if (!head) return head.error();
  json list = json::array();
  for (const CheckpointInfo& info : head->checkpoints) list.push_back(InfoJson(*head, info));
  return json{{"gang", of.gang}, {"key", of.key}, {"checkpoints", std::move(list)}};
}

Result<json> ShowCheckpoint(const CheckpointsOf& of, std::optional<uint64_t> step,
                            std::optional<uint32_t> rank) {
  Catalog catalog(of.store, of.space, of.key);
  const auto head = catalog.Load();
  if (!head) return head.error();
  if (!step) step = head->latest;
  const auto info = std::find_if(head->checkpoints.begin(), head->checkpoints.end(),
                                 [&](const CheckpointInfo& one) { return one.step == step; });
  if (!step || info == head->checkpoints.end()) {
    return Error{Errc::kNotFound, step ? fmt::format("{} has no checkpoint of step {}", of.key, *step)
                                       : fmt::format("{} has no good checkpoint", of.key)};
  }
  const auto manifest = catalog.LoadManifest(*step);
  if (!manifest) return manifest.error();
  if (rank && *rank >= manifest->world_size) {
    return Error{Errc::kInvalid,
                 fmt::format("the checkpoint of step {} has no rank {}: it was saved by {} members", *step,
                             *rank, manifest->world_size)};
  }
  json shards = json::array();
  size_t chunks = 0;
  uint64_t own = 0;
  uint64_t stored = 0;
  size_t room = kMaxEntries;
  for (const Shard& shard : manifest->shards) {
    chunks += shard.chunks.size();
    own += OwnBytes(shard);
    stored += StoredBytesOf(shard);
    json item = {{"rank", shard.rank},
                 {"bytes", shard.bytes},
                 {"own_bytes", OwnBytes(shard)},
                 {"stored_bytes", StoredBytesOf(shard)},
                 {"chunks", shard.chunks.size()},
                 {"chunk_bytes", shard.chunk_bytes}};
    const bool told = rank ? shard.rank == *rank : manifest->world_size <= kShownShards || shard.rank == 0;
    if (told) Contents(of, shard).AddTo(&item, &room);
    shards.push_back(std::move(item));
  }
  json document = InfoJson(*head, *info);
  document["gang"] = of.gang;
  document["key"] = of.key;
  document["manifest"] = info->manifest;
  document["own_bytes"] = own;
  document["stored_bytes"] = stored;
  document["chunks"] = chunks;
  document["shards"] = std::move(shards);
  return document;
}

}  // namespace muster
