#include "ceph/exchange/shard_index.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ceph/engine/shard_format.h"
#include "client/muster.h"

namespace muster {
namespace {

static_assert(sizeof(ShardHeader) == kShardHeaderBytes);

Error NotShard(const std::string& what) {
  return {Errc::kInvalid, "it is not a shard that libmuster has written: " + what};
}

// Nothing when the name and the metadata may be in a shard.
const char* WrongTexts(std::string_view name, std::string_view meta) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.empty() || name.size() > MUSTER_NAME_MAX || std::any_of(name.begin(), name.end(), control))
    return "an entry's name is empty, too long or has control characters";
  if (meta.size() > MUSTER_META_MAX || meta.find('\0') != std::string_view::npos)
    return "an entry's metadata is too long or has a NUL";
  return nullptr;
}

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<ShardIndexPlace> ReadShardHeader(std::span<const std::byte> bytes, uint64_t shard_bytes) {
  ShardHeader header{};
  if (bytes.size() < sizeof header || shard_bytes < sizeof header) return NotShard("it is too short");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kShardMagic, sizeof kShardMagic) != 0)
    return NotShard("it does not begin as one");
  if (header.version != kShardVersion)
    return NotShard("its format has version " + std::to_string(header.version) + ", not 1");
  if (header.index_offset < sizeof header || header.index_offset > shard_bytes ||
      header.index_offset % 8 != 0 || header.index_bytes > shard_bytes - header.index_offset ||
      header.entries > header.index_bytes / sizeof(ShardEntry)) {
    return NotShard("its index lies outside of it");
  }
  return ShardIndexPlace{header.index_offset, header.index_bytes, header.entries};
}

Result<std::vector<ShardEntryInfo>> ReadShardIndex(const ShardIndexPlace& place,
                                                   std::span<const std::byte> index) {
  if (index.size() != place.bytes) return NotShard("its index is cut off");
  std::vector<ShardEntryInfo> entries;
  entries.reserve(place.entries);
  std::unordered_set<std::string_view> names;
  const char* at = reinterpret_cast<const char*>(index.data());
  uint64_t left = index.size();
  for (uint32_t i = 0; i < place.entries; ++i) {
    ShardEntry fixed{};
    if (left < sizeof fixed) return NotShard("its index ends in the middle of an entry");
    std::memcpy(&fixed, at, sizeof fixed);
    const uint64_t padded = RoundUp(sizeof fixed + uint64_t{fixed.name_bytes} + fixed.meta_bytes, 8);
    if (padded > left) return NotShard("its index ends in the middle of an entry");
    const std::string_view name(at + sizeof fixed, fixed.name_bytes);
    const std::string_view meta(name.data() + name.size(), fixed.meta_bytes);
    if (const char* wrong = WrongTexts(name, meta)) return NotShard(wrong);
    if (fixed.offset < sizeof(ShardHeader) || fixed.offset > place.offset ||
        fixed.bytes > place.offset - fixed.offset) {
      return NotShard("an entry's data lies outside of the data");
    }
    if (!names.insert(name).second) return NotShard("two entries have the same name");
    entries.push_back({std::string(name), std::string(meta), fixed.offset, fixed.bytes});
    at += padded;
    left -= padded;
  }
  if (left != 0) return NotShard("its index has bytes behind its entries");
  return entries;
}

Result<ShardLayout> LayOutShard(std::vector<ShardEntryInfo>* entries) {
  ShardLayout layout;
  uint64_t at = sizeof(ShardHeader);
  for (ShardEntryInfo& entry : *entries) {
    if (const char* wrong = WrongTexts(entry.name, entry.meta)) return Error{Errc::kInvalid, wrong};
    entry.offset = at;
    if (__builtin_add_overflow(at, entry.bytes, &at) || at > UINT64_MAX / 2)
      return Error{Errc::kInvalid, "the entries have more bytes than a shard can have"};
    at = RoundUp(at, kShardAlignment);
    const ShardEntry fixed{entry.offset, entry.bytes, static_cast<uint32_t>(entry.name.size()),
                           static_cast<uint32_t>(entry.meta.size())};
    layout.index.append(reinterpret_cast<const char*>(&fixed), sizeof fixed);
    layout.index += entry.name + entry.meta;
    layout.index.resize(RoundUp(layout.index.size(), 8));
  }
  layout.index_offset = at;
  layout.bytes = at + layout.index.size();
  ShardHeader header{};
  std::memcpy(header.magic, kShardMagic, sizeof kShardMagic);
  header.version = kShardVersion;
  header.entries = static_cast<uint32_t>(entries->size());
  header.index_offset = layout.index_offset;
  header.index_bytes = layout.index.size();
  layout.header.assign(reinterpret_cast<const char*>(&header), sizeof header);
  return layout;
}

}  // namespace muster
