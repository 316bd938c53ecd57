#include "client/libmuster/shard_reader.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/libmuster/memory_file.h"

namespace muster::client {
namespace {

constexpr uint64_t kKept = 4 * ShardReader::kBlock;

}  // namespace

void ShardReader::Unmap() {
  if (map_ != nullptr) munmap(map_, end_ - begin_);
  map_ = nullptr;
}

void ShardReader::Trim() {
  if (map_ != nullptr && end_ - begin_ > kKept) Unmap();
}

void ShardReader::Forget() {
  Unmap();
  known_ = false;
}

int ShardReader::Read(Session* session, uint64_t step, uint32_t rank, uint64_t begin, uint64_t end,
                      const char** data) {
  const bool here = map_ != nullptr && step == step_ && rank == rank_ && begin >= begin_ && end <= end_;
  if (!here) {
    Unmap();
    const uint64_t from = begin / kBlock * kBlock;
    const uint64_t to = (end + kBlock - 1) / kBlock * kBlock;
    Session::Range range;
    if (const int status = session->FetchRange(step, rank, from, to - from, &range); status != MUSTER_OK)
      return status;
    if (known_ && range.checkpoint != checkpoint_) return kChanged;
    known_ = true;
    checkpoint_ = range.checkpoint;
    shard_bytes_ = range.shard_bytes;
    if (from + range.bytes < end) {
      return session->Fail(
          MUSTER_E_CORRUPT, "the shard of rank %u of step %llu has %llu bytes, and should have %llu", rank,
          static_cast<unsigned long long>(step), static_cast<unsigned long long>(shard_bytes_),
          static_cast<unsigned long long>(end));
    }
    if (!HoldsForGood(range.memory.get(), range.bytes)) {
      return session->Fail(MUSTER_E_PROTOCOL, "musterd sent memory that does not hold the part of the shard");
    }
    void* map = mmap(nullptr, range.bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, range.memory.get(), 0);
    if (map == MAP_FAILED) {
      return session->Fail(MUSTER_E_NO_MEMORY, "no memory for %llu bytes of a shard: %s",
                           static_cast<unsigned long long>(range.bytes), strerror(errno));
    }
    map_ = static_cast<char*>(map);
    step_ = step;
    rank_ = rank;
    begin_ = from;
    end_ = from + range.bytes;
  }
  *data = map_ + (begin - begin_);
  return MUSTER_OK;
}

}  // namespace muster::client
