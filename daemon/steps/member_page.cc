#include "daemon/steps/member_page.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

namespace muster::steps {

Result<std::shared_ptr<wire::StepPage>> MapPage(const UniqueFd& memory) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat about {};
  struct statfs of {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);  // refused for all but memory
  // Of huge pages there may be none left when it is written.
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(memory.get(), &about) != 0 ||
      about.st_size != static_cast<off_t>(wire::kStepPageBytes) || ::fstatfs(memory.get(), &of) != 0 ||
      of.f_type != TMPFS_MAGIC) {
    return Error{Errc::kInvalid, "not a page of sealed memory"};
  }
  void* const at = ::mmap(nullptr, wire::kStepPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return Error{Errc::kInvalid, std::strerror(errno)};
  return std::shared_ptr<wire::StepPage>(static_cast<wire::StepPage*>(at),
                                         [](wire::StepPage* page) { ::munmap(page, wire::kStepPageBytes); });
}

}  // namespace muster::steps
