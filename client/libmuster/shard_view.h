// Reads the layout of ceph/engine/shard_format.h. The bytes have been verified against their digests, but
// they were written by some program: everything in them is checked before it is used.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ceph/engine/shard_format.h"
#include "client/libmuster/bytes.h"
#include "client/libmuster/name_table.h"

namespace muster::client {

class ShardView {
 public:
  struct Entry {
    const char* name;  // NUL-terminated, as is meta; both live as long as the view
    const char* meta;
    const void* data;  // in the shard; nullptr when only the index was parsed
    size_t bytes;
    uint64_t offset;  // of the data in the shard
  };

  ShardView() = default;
  ShardView(const ShardView&) = delete;
  ShardView& operator=(const ShardView&) = delete;
  ~ShardView();

  // Reads `bytes` bytes, which must outlive the view. Gives nullptr, or a sentence on what is wrong; the view
  // is then empty. Once only.
  const char* Parse(const void* shard, size_t bytes);
  // The same in two steps, for one who does not have all of the shard's `shard_bytes` bytes: the first sizeof(ShardHeader),
  // which say where the index is, then that. `index` is not needed any more afterwards.
  static const char* ParseHeader(const void* shard, uint64_t shard_bytes, ShardHeader* header);
  const char* ParseIndex(const ShardHeader& header, const void* index, uint64_t shard_bytes);

  [[nodiscard]] size_t count() const { return count_; }
  [[nodiscard]] const Entry& entry(size_t index) const { return entries_[index]; }
  [[nodiscard]] const Entry* Find(const char* name) const;

 private:
  const char* ReadEntries(const ShardHeader& header, const char* index, uint64_t shard_bytes);

  Entry* entries_ = nullptr;
  size_t count_ = 0;
  char* texts_ = nullptr;  // names and metas
  NameTable names_;
};

// Whether a name may be given to an entry: 1 to 255 bytes, no control characters.
bool IsEntryName(const char* name, size_t size);

}  // namespace muster::client
