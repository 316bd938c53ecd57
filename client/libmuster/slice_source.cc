#include "client/libmuster/slice_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/libmuster/cover.h"
#include "client/libmuster/large_copy.h"
#include "client/libmuster/shard_view.h"

namespace muster::client {
namespace {

constexpr int kAttempts = 3;

// The ranks of a checkpoint in the order in which their shards are looked into: the first, then its neighbours, who most
// likely have what is next to its parts.
uint32_t Nth(uint32_t first, uint32_t n, uint32_t world_size) {
  const uint64_t away = (uint64_t{n} + 1) / 2 % world_size;
  return static_cast<uint32_t>((first + (n % 2 == 1 ? away : world_size - away)) % world_size);
}

// In the order in which they lie in the store.
int Compare(const void* a, const void* b) {
  const auto* one = static_cast<const Piece*>(a);
  const auto* other = static_cast<const Piece*>(b);
  if (one->rank != other->rank) return one->rank < other->rank ? -1 : 1;
  if (one->begin != other->begin) return one->begin < other->begin ? -1 : 1;
  return 0;
}

// Whose shard is this member's when more or fewer saved them.
uint32_t InPlaceOf(const wire::ClientWelcome& welcome, uint32_t world_size) {
  if (welcome.world_size == 0) return 0;
  const uint64_t rank = uint64_t{welcome.rank} * world_size / welcome.world_size;
  return static_cast<uint32_t>(rank % world_size);
}

unsigned long long Number(uint64_t value) {
  return value;
}

}  // namespace

void SliceSource::Forget() {
  index_.Clear();
  reader_.Forget();
}

int SliceSource::Begin(Session* session, uint64_t step) {
  const uint64_t asked = step;
  if (step == MUSTER_LATEST) step = session->welcome().restore_step;
  if (step == MUSTER_LATEST) return session->Fail(MUSTER_E_NOT_FOUND, "this gang has no checkpoint yet");
  if (index_.holds(step)) return MUSTER_OK;
  Forget();
  uint64_t actual = 0;
  uint32_t world_size = 0;
  if (const int status = session->Describe(asked, &actual, &world_size); status != MUSTER_OK) return status;
  if (world_size == 0) {
    return session->Fail(MUSTER_E_PROTOCOL, "musterd says that nobody saved the checkpoint of step %llu",
                         Number(step));
  }
  if (!index_.Begin(actual, world_size)) {
    return session->Fail(MUSTER_E_NO_MEMORY, "no memory for the index of a checkpoint of %u members",
                         world_size);
  }
  return MUSTER_OK;
}

int SliceSource::Restore(Session* session, uint64_t step, const muster_slice_wanted* wanted, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const size_t name_bytes = wanted[i].name != nullptr ? strnlen(wanted[i].name, MUSTER_NAME_MAX + 1) : 0;
    if (!IsEntryName(wanted[i].name, name_bytes)) {
      return session->Fail(MUSTER_E_INVALID, "a tensor's name has 1 to %d bytes and no control characters",
                           MUSTER_NAME_MAX);
    }
    char text[kSliceText];
    if (const char* wrong = CheckSlice(&wanted[i].want, wanted[i].bytes, text); wrong != nullptr)
      return session->Fail(MUSTER_E_INVALID, "'%s' %s", wanted[i].name, wrong);
    if (wanted[i].into == nullptr && wanted[i].bytes > 0)
      return session->Fail(MUSTER_E_INVALID, "there is nowhere to put '%s'", wanted[i].name);
  }
  int status = ShardReader::kChanged;
  for (int i = 0; i < kAttempts && status == ShardReader::kChanged; ++i) {
    status = Begin(session, step);
    if (status == MUSTER_OK) status = TryRestore(session, wanted, count);
    if (status == ShardReader::kChanged) Forget();
  }
  reader_.Trim();
  pieces_.Clear();
  if (status != ShardReader::kChanged) return status;
  return session->Fail(MUSTER_E_STORE, "the checkpoint is being saved anew while it is read");
}

int SliceSource::TryRestore(Session* session, const muster_slice_wanted* wanted, size_t count) {
  pieces_.Clear();
  for (size_t i = 0; i < count; ++i) {
    if (const int status = Locate(session, wanted[i], i); status != MUSTER_OK) return status;
  }
  if (pieces_.size() == 0) return MUSTER_OK;
  for (size_t i = 0; i < count; ++i) ExpectFill(wanted[i].into, wanted[i].bytes);
  qsort(pieces_.begin(), pieces_.size(), sizeof(Piece), Compare);
  return ReadPieces(session, wanted);
}

// Whose shard is looked into first.
int SliceSource::First(Session* session, uint32_t asked, uint32_t* first) {
  const uint32_t world_size = index_.world_size();
  *first = asked == MUSTER_ANY_RANK ? InPlaceOf(session->welcome(), world_size) : asked;
  if (*first < world_size) return MUSTER_OK;
  return session->Fail(MUSTER_E_INVALID,
                       "the checkpoint of step %llu has no shard of rank %u: it was saved by %u members",
                       Number(index_.step()), asked, world_size);
}

// Finds out who has what is wanted, and adds it to pieces_.
int SliceSource::Locate(Session* session, const muster_slice_wanted& wanted, size_t number) {
  const uint32_t world_size = index_.world_size();
  uint32_t first = 0;
  if (const int status = First(session, wanted.first_rank, &first); status != MUSTER_OK) return status;
  const auto no_memory = [&] {
    return session->Fail(MUSTER_E_NO_MEMORY, "no memory to put '%s' together", wanted.name);
  };
  Cover cover;
  Array<Box> boxes;
  if (!cover.Begin(BoxOf(wanted.want), wanted.want.dims)) return no_memory();
  for (uint32_t n = 0; n < world_size && !cover.complete(); ++n) {
    SliceIndex::Cursor cursor{wanted.name, Nth(first, n, world_size)};
    for (;;) {
      StoredSlice stored;
      uint64_t data_at = 0;
      bool found = false;
      int status = index_.Next(session, &reader_, &cursor, &stored, &data_at, &found);
      if (status != MUSTER_OK) return status;
      if (!found) break;
      status = CheckAlike(session, wanted, stored, cursor.rank);
      if (status != MUSTER_OK) return status;
      boxes.Clear();
      switch (cover.Take(stored.box, &boxes)) {
        case Cover::Taken::kDone:
          break;
        case Cover::Taken::kNoMemory:
          return no_memory();
        case Cover::Taken::kTooMany:
          return session->Fail(MUSTER_E_TOO_LARGE, "'%s' is cut into too many parts to be put together",
                               wanted.name);
      }
      Piece piece{number, cursor.rank, stored.element_bytes, stored.dims, data_at, stored.box, {{0}, {0}}, 0,
                  0};
      for (const Box& box : boxes) {
        piece.box = box;
        if (!AddPiece(piece, ShardReader::kBlock, &pieces_)) return no_memory();
      }
    }
  }
  return cover.complete() ? MUSTER_OK : Missing(session, wanted, cover.missing());
}

int SliceSource::CheckAlike(Session* session, const muster_slice_wanted& wanted, const StoredSlice& stored,
                            uint32_t rank) {
  const muster_slice& want = wanted.want;
  const bool alike = strcmp(want.dtype, stored.dtype) == 0 && want.element_bytes == stored.element_bytes &&
                     want.dims == stored.dims &&
                     memcmp(want.global_shape, stored.global_shape, want.dims * sizeof(uint64_t)) == 0;
  if (alike) return MUSTER_OK;
  char saved[kDimsText];
  char wanted_shape[kDimsText];
  return session->Fail(
      MUSTER_E_INVALID,
      "'%s' was saved by rank %u as %s (%u bytes) of shape %s, not as %s (%u bytes) of shape %s", wanted.name,
      rank, stored.dtype, stored.element_bytes, FormatDims(stored.global_shape, stored.dims, saved),
      want.dtype, want.element_bytes, FormatDims(want.global_shape, want.dims, wanted_shape));
}

int SliceSource::Missing(Session* session, const muster_slice_wanted& wanted, const Box& box) {
  bool found = false;
  if (const int status = Find(session, wanted.name, wanted.first_rank, &found); status != MUSTER_OK)
    return status;
  if (!found) {
    return session->Fail(MUSTER_E_NOT_FOUND,
                         "nobody saved a part of a tensor '%s' in the checkpoint of step %llu", wanted.name,
                         Number(index_.step()));
  }
  char offset[kDimsText];
  char shape[kDimsText];
  return session->Fail(
      MUSTER_E_NOT_FOUND,
      "nobody saved the part of '%s' from %s on, of shape %s, in the checkpoint of step %llu", wanted.name,
      FormatDims(box.offset, wanted.want.dims, offset), FormatDims(box.shape, wanted.want.dims, shape),
      Number(index_.step()));
}

// What lies near each other in a shard is read at once, and then copied to where it belongs.
int SliceSource::ReadPieces(Session* session, const muster_slice_wanted* wanted) {
  for (size_t first = 0; first < pieces_.size();) {
    const uint32_t rank = pieces_[first].rank;
    const uint64_t begin = pieces_[first].begin;
    uint64_t end = pieces_[first].end;
    size_t last = first + 1;
    while (last < pieces_.size() && pieces_[last].rank == rank &&
           pieces_[last].begin <= end + ShardReader::kBlock) {
      if (pieces_[last].end > end) end = pieces_[last].end;
      ++last;
    }
    for (uint64_t at = begin; at < end;) {
      const uint64_t to = end - at < ShardReader::kMost ? end : at + ShardReader::kMost;
      const char* data = nullptr;
      const int status = reader_.Read(session, index_.step(), rank, at, to, &data);
      if (status != MUSTER_OK) return status;
      for (size_t i = first; i < last; ++i) {
        const Piece& piece = pieces_[i];
        if (piece.begin >= to || piece.end <= at) continue;
        const muster_slice_wanted& by = wanted[piece.wanted];
        CopyPiece(piece, BoxOf(by.want), data, at, to, static_cast<char*>(by.into));
      }
      at = to;
    }
    first = last;
  }
  return MUSTER_OK;
}

// The first part of a name into info_.
int SliceSource::Find(Session* session, const char* name, uint32_t first_rank, bool* found) {
  uint32_t first = 0;
  if (const int status = First(session, first_rank, &first); status != MUSTER_OK) return status;
  *found = false;
  for (uint32_t n = 0; n < index_.world_size() && !*found; ++n) {
    SliceIndex::Cursor cursor{name, Nth(first, n, index_.world_size())};
    uint64_t data_at = 0;
    const int status = index_.Next(session, &reader_, &cursor, &info_, &data_at, found);
    if (status != MUSTER_OK) return status;
  }
  return MUSTER_OK;
}

int SliceSource::Info(Session* session, uint64_t step, const char* name, uint32_t first_rank,
                      muster_slice* out, const char** meta) {
  const size_t name_bytes = name != nullptr ? strnlen(name, MUSTER_NAME_MAX + 1) : 0;
  if (!IsEntryName(name, name_bytes)) {
    return session->Fail(MUSTER_E_INVALID, "a tensor's name has 1 to %d bytes and no control characters",
                         MUSTER_NAME_MAX);
  }
  int status = ShardReader::kChanged;
  bool found = false;
  for (int i = 0; i < kAttempts && status == ShardReader::kChanged; ++i) {
    status = Begin(session, step);
    if (status == MUSTER_OK) status = Find(session, name, first_rank, &found);
    if (status == ShardReader::kChanged) Forget();
  }
  reader_.Trim();
  if (status == ShardReader::kChanged)
    return session->Fail(MUSTER_E_STORE, "the checkpoint is being saved anew while it is read");
  if (status != MUSTER_OK) return status;
  if (!found) {
    return session->Fail(MUSTER_E_NOT_FOUND,
                         "nobody saved a part of a tensor '%s' in the checkpoint of step %llu", name,
                         Number(index_.step()));
  }
  if (out != nullptr) {
    *out = {};
    out->dtype = info_.dtype;
    out->element_bytes = info_.element_bytes;
    out->dims = info_.dims;
    memcpy(out->global_shape, info_.global_shape, sizeof(out->global_shape));
    memcpy(out->offset, info_.box.offset, sizeof(out->offset));
    memcpy(out->shape, info_.box.shape, sizeof(out->shape));
  }
  if (meta != nullptr) *meta = info_.meta;
  return MUSTER_OK;
}

}  // namespace muster::client
