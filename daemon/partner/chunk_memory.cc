#include "daemon/partner/chunk_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "ceph/engine/shard_memory.h"

namespace muster {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2 << 20;

uint64_t RoundUp(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
uint64_t Pages(uint64_t bytes) {
  return RoundUp(bytes, kPage);
}

}  // namespace

MemoryChunk::~MemoryChunk() {
  memory_->Free(at_, bytes_);
}

Status MemoryChunk::Write(uint64_t offset, std::span<const std::byte> data) {
  if (offset > bytes_ || data.size() > bytes_ - offset) {
    return Error{Errc::kInvalid, "a chunk has " + std::to_string(bytes_) + " bytes, no more"};
  }
  return WriteShardMemory(memory_->file_, at_ + offset, data);
}

Status MemoryChunk::Read(uint64_t offset, std::span<std::byte> into) const {
  if (offset > bytes_ || into.size() > bytes_ - offset) {
    return Error{Errc::kInvalid, "a chunk has " + std::to_string(bytes_) + " bytes, no more"};
  }
  return ReadShardMemory(memory_->file_, at_ + offset, into);
}

int MemoryChunk::fd() const {
  return memory_->file_.get();
}

Result<std::shared_ptr<ChunkMemory>> ChunkMemory::Make(uint64_t limit, Spare spare) {
  UniqueFd file(::memfd_create("muster-partner", MFD_CLOEXEC));
  if (!file.valid()) {
    return Error{Errc::kInternal,
                 std::string("cannot make memory for copies of shards: ") + std::strerror(errno)};
  }
  return std::shared_ptr<ChunkMemory>(new ChunkMemory(std::move(file), limit, std::move(spare)));
}

Status ChunkMemory::MayTake(uint64_t need, uint64_t freed, uint64_t spare, const std::string& whose) const {
  const uint64_t in_use = used();
  const uint64_t left = in_use - std::min(in_use, freed);
  if (need <= spare + freed && left <= limit_ && need <= limit_ - left) return {};
  return Error{Errc::kExhausted,
               fmt::format("no memory for {} bytes of {}: what is kept of others has {} of {} bytes "
                           "(partner_memory), and the node can spare {}",
                           need, whose, left, limit_, spare)};
}

Result<std::shared_ptr<MemoryChunk>> ChunkMemory::Allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t pages = Pages(bytes);
  if (pages > limit_ || used_ > limit_ - pages) {
    return Error{Errc::kExhausted, "copies of shards take " + std::to_string(used_) + " of the " +
                                       std::to_string(limit_) + " bytes that they may (partner_memory)"};
  }
  // Where the kernel gives huge pages, none is shared by two large chunks.
  const uint64_t at = pages < kHugePage ? next_ : RoundUp(next_, kHugePage);
  next_ = at + pages;
  used_ += pages;
  return std::make_shared<MemoryChunk>(shared_from_this(), at, bytes);
}

uint64_t ChunkMemory::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void ChunkMemory::Free(uint64_t at, uint64_t bytes) {
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
              static_cast<off_t>(Pages(bytes)));
  const std::lock_guard lock(mutex_);
  used_ -= Pages(bytes);
}

}  // namespace muster
