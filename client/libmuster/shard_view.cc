#include "client/libmuster/shard_view.h"

#include <stdlib.h>
#include <string.h>

#include "client/muster.h"

namespace muster::client {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the shard format is little-endian");

bool IsEntryName(const char* name, size_t size) {
  if (size == 0 || size > MUSTER_NAME_MAX) return false;
  for (size_t i = 0; i < size; ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7f) return false;
  }
  return true;
}

ShardView::~ShardView() {
  free(entries_);
  free(texts_);
}

const char* ShardView::ParseHeader(const void* shard, uint64_t shard_bytes, ShardHeader* out) {
  ShardHeader header;
  if (shard_bytes < sizeof(header)) return "it is shorter than a shard's header";
  memcpy(&header, shard, sizeof(header));
  if (memcmp(header.magic, kShardMagic, sizeof(kShardMagic)) != 0) return "it does not begin as a shard does";
  if (header.version != kShardVersion) return "its format version is not 1";
  if (header.index_offset < sizeof(header) || header.index_offset > shard_bytes ||
      header.index_bytes > shard_bytes - header.index_offset || header.index_offset % 8 != 0) {
    return "its index lies outside of it";
  }
  if (header.entries > header.index_bytes / sizeof(ShardEntry))
    return "its index is too short for its entries";
  *out = header;
  return nullptr;
}

const char* ShardView::ParseIndex(const ShardHeader& header, const void* index, uint64_t shard_bytes) {
  // Names and metas grow by a NUL each, less than the fixed part of an entry that is left out.
  entries_ = static_cast<Entry*>(calloc(header.entries + size_t{1}, sizeof(Entry)));
  texts_ = static_cast<char*>(malloc(header.index_bytes + 1));
  if (entries_ == nullptr || texts_ == nullptr) return "there is no memory for its index";
  count_ = header.entries;
  const char* wrong = ReadEntries(header, static_cast<const char*>(index), shard_bytes);
  if (wrong != nullptr) count_ = 0;
  return wrong;
}

const char* ShardView::Parse(const void* shard, size_t bytes) {
  ShardHeader header;
  if (const char* wrong = ParseHeader(shard, bytes, &header); wrong != nullptr) return wrong;
  const char* at = static_cast<const char*>(shard);
  if (const char* wrong = ParseIndex(header, at + header.index_offset, bytes); wrong != nullptr) return wrong;
  for (size_t i = 0; i < count_; ++i) entries_[i].data = at + entries_[i].offset;
  return nullptr;
}

const char* ShardView::ReadEntries(const ShardHeader& header, const char* index, uint64_t shard_bytes) {
  const char* at = index;
  uint64_t left = header.index_bytes;
  char* text = texts_;
  for (size_t i = 0; i < count_; ++i) {
    ShardEntry entry;
    if (left < sizeof(entry)) return "its index ends in the middle of an entry";
    memcpy(&entry, at, sizeof(entry));
    if (entry.name_bytes > MUSTER_NAME_MAX || entry.meta_bytes > MUSTER_META_MAX) {
      return "an entry's name or metadata is too long";
    }
    const uint64_t used = sizeof(entry) + uint64_t{entry.name_bytes} + entry.meta_bytes;
    const uint64_t padded = (used + 7) / 8 * 8;
    if (padded > left) return "its index ends in the middle of an entry";
    if (entry.offset > header.index_offset || entry.bytes > header.index_offset - entry.offset ||
        entry.offset < sizeof(ShardHeader) || entry.offset > shard_bytes) {
      return "an entry's data lies outside of the data";
    }
    const char* name = at + sizeof(entry);
    const char* meta = name + entry.name_bytes;
    if (!IsEntryName(name, entry.name_bytes)) return "an entry's name is empty or has control characters";
    if (memchr(meta, 0, entry.meta_bytes) != nullptr) return "an entry's metadata has a NUL";
    switch (names_.Add(name, entry.name_bytes)) {
      case NameTable::Insert::kDone:
        break;
      case NameTable::Insert::kDuplicate:
        return "two entries have the same name";
      case NameTable::Insert::kNoMemory:
        return "there is no memory for its index";
    }
    entries_[i] = {text, text + entry.name_bytes + 1, nullptr, entry.bytes, entry.offset};
    memcpy(text, name, entry.name_bytes);
    text[entry.name_bytes] = '\0';
    text += entry.name_bytes + 1;
    if (entry.meta_bytes > 0) memcpy(text, meta, entry.meta_bytes);
    text[entry.meta_bytes] = '\0';
    text += entry.meta_bytes + 1;
    at += padded;
    left -= padded;
  }
  return left == 0 ? nullptr : "its index has bytes behind its entries";
}

const ShardView::Entry* ShardView::Find(const char* name) const {
  size_t index = 0;
  return names_.Find(name, strlen(name), &index) ? &entries_[index] : nullptr;
}

}  // namespace muster::client
