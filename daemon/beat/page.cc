#include "daemon/beat/page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ctime>
#include <utility>

namespace muster {

BeatPage::BeatPage(UniqueFd fd, wire::BeatPage* page) : fd_(std::move(fd)), page_(page) {}

std::shared_ptr<BeatPage> BeatPage::Make() {
  UniqueFd fd(::memfd_create("muster-beats", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), wire::kBeatPageBytes) != 0) return nullptr;
  void* at = ::mmap(nullptr, wire::kBeatPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return nullptr;
  auto* page = static_cast<wire::BeatPage*>(at);
  page->magic = wire::kBeatPageMagic;
  std::shared_ptr<BeatPage> made(new BeatPage(std::move(fd), page));
  // After the mapping: this one may write.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(made->fd(), F_ADD_SEALS, kSeals) != 0) return nullptr;
  return made;
}

BeatPage::~BeatPage() {
  ::munmap(page_, wire::kBeatPageBytes);
}

void BeatPage::Beat(bool leased) {
  if (leased) __atomic_store_n(&page_->leased, 1U, __ATOMIC_RELEASE);
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  __atomic_store_n(&page_->monotonic_ns, now.tv_sec * 1'000'000'000LL + now.tv_nsec, __ATOMIC_RELEASE);
}

}  // namespace muster
