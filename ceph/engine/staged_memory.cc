#include "ceph/engine/staged_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "ceph/engine/shard_memory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster {
namespace {

constexpr int kForEver = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Error CannotStage(const char* what, int error) {
  return {Errc::kInternal, std::string("cannot ") + what + " a staged shard: " + std::strerror(error)};
}

// Nobody can punch a hole, and a page that is not there is found, not waited for or refused.
bool MayMap(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct statfs system {};
  return seals >= 0 && (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) != 0 && ::fstatfs(fd, &system) == 0 &&
         system.f_type == TMPFS_MAGIC;
}

}  // namespace

Result<std::shared_ptr<StagedMemory>> StagedMemory::Take(UniqueFd&& memory) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0) return Error{Errc::kInvalid, "the staged shard is not in a memfd"};
  if ((seals & F_SEAL_SHRINK) == 0)
    return Error{Errc::kInvalid, "the staged shard's memfd is not sealed against shrinking"};
  struct stat info {};
  if (::fstat(memory.get(), &info) != 0) return CannotStage("look at", errno);
  return std::shared_ptr<StagedMemory>(new StagedMemory(std::move(memory), info.st_dev, info.st_ino));
}

StagedMemory::StagedMemory(UniqueFd memory, dev_t device, ino_t inode)
    : memory_(std::make_shared<const UniqueFd>(std::move(memory))), device_(device), inode_(inode) {}

bool StagedMemory::Is(const UniqueFd& memory) const {
  struct stat info {};
  return ::fstat(memory.get(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

Result<std::shared_ptr<const StagedView>> StagedMemory::View(uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd(), &info) != 0) return CannotStage("look at", errno);
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return Error{Errc::kInvalid, "the staged shard's memfd has " + std::to_string(info.st_size) +
                                     " bytes, not the " + std::to_string(bytes) + " that were announced"};
  }
  const std::lock_guard lock(mutex_);
  if (view_ && view_->mapped().size() >= bytes) return view_;
  view_.reset();
  auto view = std::make_shared<const StagedView>(memory_, Map(bytes), bytes);
  if (!view->mapped().empty()) view_ = view;
  return view;
}

const std::byte* StagedMemory::Map(uint64_t bytes) const {
  if (bytes == 0 || !MayMap(fd())) return nullptr;
  const off_t hole = ::lseek(fd(), 0, SEEK_HOLE);
  if (hole < 0 || static_cast<uint64_t>(hole) < bytes) return nullptr;
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd(), 0);
  if (at == MAP_FAILED) return nullptr;
  // A daemon that locks its memory shall not lock the users' too.
  ::munlock(at, bytes);
  return static_cast<const std::byte*>(at);
}

Status StagedMemory::Seal() {
  const std::lock_guard lock(mutex_);
  // On some kernels any mapping that is shared counts as one for writing.
  view_.reset();
  const int seals = ::fcntl(fd(), F_GET_SEALS);
  if (seals >= 0 && (seals & kForEver) == kForEver) return {};
  if (::fcntl(fd(), F_ADD_SEALS, kForEver) == 0) return {};
  if (errno == EBUSY || errno == EPERM)
    return Error{Errc::kConflict, "the staged shard is still mapped, or has been sealed by another"};
  return CannotStage("seal", errno);
}

StagedView::~StagedView() {
  if (map_ != nullptr) ::munmap(const_cast<std::byte*>(map_), bytes_);
}

Status StagedView::Read(uint64_t offset, std::span<std::byte> into) const {
  if (offset <= mapped().size() && into.size() <= mapped().size() - offset) {
    if (!into.empty()) std::memcpy(into.data(), map_ + offset, into.size());
    return {};
  }
  return ReadShardMemory(*memory_, offset, into);
}

}  // namespace muster
