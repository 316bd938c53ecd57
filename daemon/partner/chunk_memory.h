// Memory for chunks of other nodes' shards: bounded, and given back chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

class ChunkMemory;

// Bytes in a memory file that no other chunk has. Thread-safe but for Write. Its end takes time for large ones: the pages
// are given back.
class MemoryChunk {
 public:
  MemoryChunk(std::shared_ptr<ChunkMemory> memory, uint64_t at, uint64_t bytes)
      : memory_(std::move(memory)), at_(at), bytes_(bytes) {}
  ~MemoryChunk();
  MemoryChunk(const MemoryChunk&) = delete;
  MemoryChunk& operator=(const MemoryChunk&) = delete;

  // kInvalid: there are not so many bytes.
  Status Write(uint64_t offset, std::span<const std::byte> data);
  Status Read(uint64_t offset, std::span<std::byte> into) const;
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  // For sendfile(2).
  [[nodiscard]] int fd() const;
  [[nodiscard]] uint64_t at() const { return at_; }

 private:
  const std::shared_ptr<ChunkMemory> memory_;
  const uint64_t at_;
  const uint64_t bytes_;
};

// Thread-safe. One memory file for all: it is sparse, and no place in it is used twice, so it never has to be tidied, and
// what a socket still has of a chunk that was given back is never another's. It is not mapped: its pages do not count as
// the daemon's own, for which the kernel would end it first when memory is short.
class ChunkMemory : public std::enable_shared_from_this<ChunkMemory> {
 public:
  // How much memory the node can spare now, in bytes.
  using Spare = std::function<uint64_t()>;
  static Result<std::shared_ptr<ChunkMemory>> Make(uint64_t limit, Spare spare);

  // What the node can spare; takes some 0.05 ms, so not to be asked under a lock.
  [[nodiscard]] uint64_t spare() const { return spare_(); }
  // Whether there is room for `need` bytes when `freed` bytes have been given back. kExhausted: no; `whose`: for the error.
  [[nodiscard]] Status MayTake(uint64_t need, uint64_t freed, uint64_t spare, const std::string& whose) const;
  // kExhausted: with it there would be more than `limit` bytes in use.
  Result<std::shared_ptr<MemoryChunk>> Allocate(uint64_t bytes);
  [[nodiscard]] uint64_t used() const;
  [[nodiscard]] uint64_t limit() const { return limit_; }

 private:
  friend class MemoryChunk;
  ChunkMemory(UniqueFd file, uint64_t limit, Spare spare)
      : file_(std::move(file)), limit_(limit), spare_(std::move(spare)) {}
  void Free(uint64_t at, uint64_t bytes);

  const UniqueFd file_;
  const uint64_t limit_;
  const Spare spare_;
  mutable std::mutex mutex_;
  uint64_t next_ = 0;
  uint64_t used_ = 0;
};

}  // namespace muster
