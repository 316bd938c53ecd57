#include "ceph/engine/shard_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace muster {
namespace {

constexpr size_t kHugePage = 2u << 20;

Error Failed(const char* what, int error) {
  const bool exhausted =
      error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE || error == EFBIG;
  return {exhausted ? Errc::kExhausted : Errc::kInternal,
          std::string("cannot ") + what + " shard memory: " + std::strerror(error)};
}

// Whether shared memory that asks for huge pages gets them (packaging/systemd/muster.conf).
bool HugePages() {
  static const bool on = [] {
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    std::string text;
    std::getline(file, text);
    return file && text.find("[never]") == std::string::npos && text.find("[deny]") == std::string::npos;
  }();
  return on;
}

}  // namespace

Result<UniqueFd> MakeShardMemory(uint64_t bytes) {
  UniqueFd memory(::memfd_create("muster-shard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return Failed("make", errno);
  if (bytes > static_cast<uint64_t>(INT64_MAX) || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed("size", bytes > static_cast<uint64_t>(INT64_MAX) ? EFBIG : errno);
  }
  return memory;
}

// Only a mapping can ask for huge pages; what is written later by the descriptor goes into them. It covers them whole, for
// else the last one would be of small pages; but nothing past the piece is touched.
void PrepareShardMemory(const UniqueFd& memory, uint64_t offset, size_t bytes) {
  if (bytes < kHugePage || !HugePages()) return;
  const uint64_t begin = offset / kHugePage * kHugePage;
  const auto touched = static_cast<size_t>(offset + bytes - begin);
  const size_t mapped = (touched + kHugePage - 1) / kHugePage * kHugePage;
  void* at =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), static_cast<off_t>(begin));
  if (at == MAP_FAILED) return;
  if (::madvise(at, mapped, MADV_HUGEPAGE) == 0) (void)::madvise(at, touched, MADV_POPULATE_WRITE);
  ::munmap(at, mapped);
}

Status ReadShardMemory(const UniqueFd& memory, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(memory.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read", errno);
    if (n == 0) return Error{Errc::kInvalid, "the shard's memory ends at byte " + std::to_string(offset)};
    offset += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
  return {};
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
