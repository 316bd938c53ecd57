#include "spank-plugin/supervisor/beat_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace muster::supervisor {

bool BeatPage::Open(const UniqueFd& memory) {
  struct stat about {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);  // refused for all but memory
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(memory.get(), &about) != 0 ||
      about.st_size < static_cast<off_t>(wire::kBeatPageBytes)) {
    return false;
  }
  void* at = mmap(nullptr, wire::kBeatPageBytes, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (at == MAP_FAILED) return false;
  madvise(at, wire::kBeatPageBytes, MADV_DONTFORK);  // it is not the member's
  Close();
  page_ = static_cast<const wire::BeatPage*>(at);
  if (page_->magic == wire::kBeatPageMagic) return true;
  Close();
  return false;
}

void BeatPage::Close() {
  if (page_ != nullptr) munmap(const_cast<wire::BeatPage*>(page_), wire::kBeatPageBytes);
  page_ = nullptr;
}

int64_t BeatPage::NewestMs() const {
  return page_ == nullptr ? 0 : __atomic_load_n(&page_->monotonic_ns, __ATOMIC_ACQUIRE) / 1000000;
}

bool BeatPage::Leased() const {
  return page_ != nullptr && __atomic_load_n(&page_->leased, __ATOMIC_ACQUIRE) != 0;
}

}  // namespace muster::supervisor
