// Restores parts of tensors from whatever members saved them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/array.h"
#include "client/libmuster/client_session.h"
#include "client/libmuster/shard_reader.h"
#include "client/libmuster/slice.h"
#include "client/libmuster/slice_copy.h"
#include "client/libmuster/slice_index.h"
#include "client/muster.h"

namespace muster::client {

// What is read of a checkpoint's indexes is kept until another step is asked for. All functions give a muster_error with the
// session's sentence.
class SliceSource {
 public:
  SliceSource() = default;
  SliceSource(const SliceSource&) = delete;
  SliceSource& operator=(const SliceSource&) = delete;

  // As muster_restore_slices and muster_slice_info of muster.h, with what they are given.
  int Restore(Session* session, uint64_t step, const muster_slice_wanted* wanted, size_t count);
  int Info(Session* session, uint64_t step, const char* name, uint32_t first_rank, muster_slice* out,
           const char** meta);

 private:
  int Begin(Session* session, uint64_t step);
  int TryRestore(Session* session, const muster_slice_wanted* wanted, size_t count);
  int Locate(Session* session, const muster_slice_wanted& wanted, size_t number);
  int CheckAlike(Session* session, const muster_slice_wanted& wanted, const StoredSlice& stored,
                 uint32_t rank);
  int Missing(Session* session, const muster_slice_wanted& wanted, const Box& box);
  int ReadPieces(Session* session, const muster_slice_wanted* wanted);
  int Find(Session* session, const char* name, uint32_t first_rank, bool* found);
  int First(Session* session, uint32_t asked, uint32_t* first);
  void Forget();

  SliceIndex index_;
  ShardReader reader_;
  Array<Piece> pieces_;
  StoredSlice info_{};
};

}  // namespace muster::client
