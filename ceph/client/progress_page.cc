#include "ceph/client/progress_page.h"

#include <sys/mman.h>
#include <unistd.h>

#include "ceph/client/memory_file.h"

namespace muster::client {

ProgressPage::~ProgressPage() {
  if (page_ != &own_) munmap(page_, wire::kProgressPageBytes);
}

bool ProgressPage::Open() {
  if (page_ != &own_) return true;
  UniqueFd fd(MakeMemoryFile("muster-progress"));
  if (!fd.valid() || ftruncate(fd.get(), wire::kProgressPageBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return false;
  }
  void* at = mmap(nullptr, wire::kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return false;
  // A forked child has a copy of the handle but may not use it; it is not to keep the page either.
  madvise(at, wire::kProgressPageBytes, MADV_DONTFORK);
  fd_ = static_cast<UniqueFd&&>(fd);
  page_ = static_cast<wire::ProgressPage*>(at);
  *page_ = own_;
  return true;
}

void ProgressPage::Write(uint64_t step, int64_t now_ns) {
  const uint64_t sequence = page_->sequence;
  __atomic_store_n(&page_->sequence, sequence + 1, __ATOMIC_RELAXED);
  // Each after the odd number: a fence would do too, but the thread sanitizer does not know fences.
  __atomic_store_n(&page_->step, step, __ATOMIC_RELEASE);
  __atomic_store_n(&page_->calls, page_->calls + 1, __ATOMIC_RELEASE);
  __atomic_store_n(&page_->monotonic_ns, now_ns, __ATOMIC_RELEASE);
  __atomic_store_n(&page_->sequence, sequence + 2, __ATOMIC_RELEASE);
}

}  // namespace muster::client
