// The memory in which a program stages its shards: a memfd that belongs to a user, and is read with care.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// What is read in pieces of this size and then digested is still in the processor's cache.
inline constexpr size_t kStagedPiece = 256 * 1024;

// A shard in staged memory. What is read may change at any time; only a copy has one content. Thread-safe.
class StagedView {
 public:
  StagedView(std::shared_ptr<const UniqueFd> memory, const std::byte* map, size_t bytes)
      : memory_(std::move(memory)), map_(map), bytes_(bytes) {}
  ~StagedView();
  StagedView(const StagedView&) = delete;
  StagedView& operator=(const StagedView&) = delete;

  // Empty when the memory is not mapped.
  [[nodiscard]] std::span<const std::byte> mapped() const { return {map_, map_ == nullptr ? 0 : bytes_}; }
  // Copies from `offset`. kInvalid when the memory ends before.
  Status Read(uint64_t offset, std::span<std::byte> into) const;

 private:
  const std::shared_ptr<const UniqueFd> memory_;
  const std::byte* const map_;
  const size_t bytes_;
};

// It is mapped only where that can do no harm: a memfd of ordinary memory that cannot shrink, into which nobody can punch
// holes any more (F_SEAL_FUTURE_WRITE), and that has none. Reading a hole through a mapping would allocate it, at this
// process's expense. What cannot be mapped (libmuster before MUSTER_0.3, kernels before 5.1) is read by copies, which takes three
// times the processor. The mapping is kept, because the same memory comes with every second save and its page faults cost
// as much as all digests. To unmap much memory takes long: the last owner of it and of its views should be a thread that
// has time. Thread-safe.
class StagedMemory {
 public:
  // kInvalid when it is not a memfd that is sealed against shrinking.
  static Result<std::shared_ptr<StagedMemory>> Take(UniqueFd&& memory);
  StagedMemory(const StagedMemory&) = delete;
  StagedMemory& operator=(const StagedMemory&) = delete;

  // Whether the descriptor is of the same memory.
  [[nodiscard]] bool Is(const UniqueFd& memory) const;
  // Of the first `bytes` bytes, or more. kInvalid when there are fewer.
  Result<std::shared_ptr<const StagedView>> View(uint64_t bytes);
  // From here on nobody can change it, whoever has it; its size neither. kConflict: somebody has mapped it for writing.
  Status Seal();
  [[nodiscard]] int fd() const { return memory_->get(); }

 private:
  StagedMemory(UniqueFd memory, dev_t device, ino_t inode);
  [[nodiscard]] const std::byte* Map(uint64_t bytes) const;

  const std::shared_ptr<const UniqueFd> memory_;
  const dev_t device_;
  const ino_t inode_;
  std::mutex mutex_;
  std::shared_ptr<const StagedView> view_;  // the latest that is mapped
};

}  // namespace muster
