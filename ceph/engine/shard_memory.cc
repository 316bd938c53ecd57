#include "ceph/engine/shard_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace muster {
namespace {

Error Failed(const char* what, int error) {
  const bool exhausted =
      error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE || error == EFBIG;
  return {exhausted ? Errc::kExhausted : Errc::kInternal,
          std::string("cannot ") + what + " shard memory: " + std::strerror(error)};
}

}  // namespace

Status CheckStagedMemory(const UniqueFd& memory, uint64_t bytes) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0) return Error{Errc::kInvalid, "the staged shard is not in a memfd"};
  if ((seals & F_SEAL_SHRINK) == 0) {
    return Error{Errc::kInvalid, "the staged shard's memfd is not sealed against shrinking"};
  }
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0) return Failed("look at", errno);
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return Error{Errc::kInvalid, "the staged shard's memfd has " + std::to_string(info.st_size) +
                                     " bytes, not the " + std::to_string(bytes) + " that were announced"};
  }
  return {};
}

Status ReadStagedMemory(const UniqueFd& memory, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(memory.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read", errno);
    if (n == 0)
      return Error{Errc::kInvalid, "the staged shard's memfd ends at byte " + std::to_string(offset)};
    offset += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
  return {};
}

Result<UniqueFd> MakeShardMemory(uint64_t bytes) {
  UniqueFd memory(::memfd_create("muster-shard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return Failed("make", errno);
  if (bytes > static_cast<uint64_t>(INT64_MAX) || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("size", bytes > static_cast<uint64_t>(INT64_MAX) ? EFBIG : errno);
  }
  return memory;
}

Status WriteShardMemory(const UniqueFd& memory, uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::pwrite(memory.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write", errno);
    offset += static_cast<uint64_t>(n);
    data = data.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status SealShardMemory(const UniqueFd& memory) {
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    return Failed("seal", errno);
  }
  return {};
}

}  // namespace muster
