#include "client/libmuster/slice_index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <new>

#include "client/libmuster/bytes.h"

namespace muster::client {

void SliceIndex::Clear() {
  for (uint32_t rank = 0; shards_ != nullptr && rank < world_size_; ++rank) {
    if (shards_[rank].view == nullptr) continue;
    shards_[rank].view->~ShardView();
    free(shards_[rank].view);
  }
  free(shards_);
  shards_ = nullptr;
}

bool SliceIndex::Begin(uint64_t step, uint32_t world_size) {
  Clear();
  shards_ = static_cast<Slot*>(calloc(size_t{world_size} + 1, sizeof(Slot)));
  if (shards_ == nullptr) return false;
  step_ = step;
  world_size_ = world_size;
  return true;
}

int SliceIndex::Load(Session* session, ShardReader* reader, uint32_t rank) {
  if (shards_[rank].view != nullptr) return MUSTER_OK;
  const auto corrupt = [&](const char* wrong) {
    return session->Fail(MUSTER_E_CORRUPT, "the shard of rank %u of step %llu cannot be read: %s", rank,
                         static_cast<unsigned long long>(step_), wrong);
  };
  const char* data = nullptr;
  int status = reader->Read(session, step_, rank, 0, sizeof(ShardHeader), &data);
  if (status != MUSTER_OK) return status;
  const uint64_t shard_bytes = reader->shard_bytes();
  ShardHeader header{};
  if (const char* wrong = ShardView::ParseHeader(data, shard_bytes, &header); wrong != nullptr)
    return corrupt(wrong);
  // In pieces: the index of a shard with very many entries may be above what is read at once.
  Bytes index;
  for (uint64_t at = 0; at < header.index_bytes;) {
    const uint64_t left = header.index_bytes - at;
    const uint64_t size = left < ShardReader::kMost ? left : ShardReader::kMost;
    const uint64_t begin = header.index_offset + at;
    status = reader->Read(session, step_, rank, begin, begin + size, &data);
    if (status != MUSTER_OK) return status;
    if (!index.Append(data, size)) return corrupt("there is no memory for its index");
    at += size;
  }
  void* memory = calloc(1, sizeof(ShardView));
  if (memory == nullptr) return corrupt("there is no memory for its index");
  auto* view = new (memory) ShardView;
  if (const char* wrong = view->ParseIndex(header, index.data(), shard_bytes); wrong != nullptr) {
    view->~ShardView();
    free(memory);
    return corrupt(wrong);
  }
  shards_[rank].view = view;
  return MUSTER_OK;
}

int SliceIndex::Next(Session* session, ShardReader* reader, Cursor* cursor, StoredSlice* out,
                     uint64_t* data_at, bool* found) {
  *found = false;
  if (const int status = Load(session, reader, cursor->rank); status != MUSTER_OK) return status;
  for (;;) {
    char name[MUSTER_NAME_MAX + 16];
    const uint32_t number = cursor->next++;
    if (number == 0) {
      snprintf(name, sizeof(name), "%s", cursor->name);
    } else {
      snprintf(name, sizeof(name), "%s#%u", cursor->name, number);
    }
    const ShardView::Entry* entry = shards_[cursor->rank].view->Find(name);
    if (entry == nullptr) return MUSTER_OK;
    const char* wrong = nullptr;
    switch (ParseSlice(entry->meta, entry->bytes, out)) {
      case SliceMeta::kNone:
        continue;
      case SliceMeta::kSlice:
        if (out->part != number) continue;  // another name's
        *data_at = entry->offset;
        *found = true;
        return MUSTER_OK;
      case SliceMeta::kMalformed:
        wrong = "does not say what part of a tensor it is";
        break;
      case SliceMeta::kVersion:
        wrong = "says what part of a tensor it is in a version that this library does not know";
        break;
    }
    return session->Fail(MUSTER_E_CORRUPT, "the entry '%s' in the shard of rank %u of step %llu %s", name,
                         cursor->rank, static_cast<unsigned long long>(step_), wrong);
  }
}

}  // namespace muster::client
