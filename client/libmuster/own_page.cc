#include "client/libmuster/own_page.h"

#include <sys/mman.h>
#include <unistd.h>

#include "client/libmuster/memory_file.h"

namespace muster::client {
namespace {

constexpr int kWipeOnFork = 18;  // MADV_WIPEONFORK, which libcs do not know for long

}  // namespace

OwnPage::~OwnPage() {
  if (mark_ != nullptr) munmap(mark_, wire::kStepPageBytes);
  // A fork has no page there, and may have something else by now.
  if (page_ != nullptr && getpid() == process_) munmap(page_, wire::kStepPageBytes);
}

bool OwnPage::Open() {
  if (page_ != nullptr) return true;
  UniqueFd fd(MakeMemoryFile("muster-steps"));
  if (!fd.valid() || ftruncate(fd.get(), wire::kStepPageBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return false;
  }
  void* at = mmap(nullptr, wire::kStepPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return false;
  process_ = getpid();
  // A forked child has a copy of the handle but may not use it; it is not to keep the page either.
  madvise(at, wire::kStepPageBytes, MADV_DONTFORK);
  void* mark =
      mmap(nullptr, wire::kStepPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mark != MAP_FAILED && madvise(mark, wire::kStepPageBytes, kWipeOnFork) == 0) {
    mark_ = static_cast<uint64_t*>(mark);
    *mark_ = 1;
  } else if (mark != MAP_FAILED) {
    munmap(mark, wire::kStepPageBytes);
  }
  fd_ = static_cast<UniqueFd&&>(fd);
  page_ = static_cast<wire::StepPage*>(at);
  wire::InitPage(page_);
  return true;
}

bool OwnPage::IsForked() const {
  return mark_ != nullptr ? *mark_ == 0 : getpid() != process_;
}

bool OwnPage::Enter(uint64_t step, int64_t now_ns, uint64_t* above) {
  *above = wire::EnterStep(page_, step, now_ns);
  return wire::CurrentOrder(page_) == __atomic_load_n(&order_, __ATOMIC_ACQUIRE) &&
         step < __atomic_load_n(&due_, __ATOMIC_RELAXED) && step + 1 >= *above;
}

wire::StepAnswer OwnPage::Answer(uint64_t step, uint64_t above, wire::AgreedStep* wish) {
  wire::StepOrder order;
  const wire::AgreedStep* found = nullptr;
  uint64_t due = 0;
  if (!wire::ReadOrder(page_, &order)) return wire::StepAnswer::kWait;
  const wire::StepAnswer answer = wire::AnswerStep(order, step, &found, &due);
  if (answer == wire::StepAnswer::kWait) return answer;
  if (const uint64_t passed = wire::PassedStep(order, step, above); passed != wire::kNoStep) {
    __atomic_store_n(&page_->passed_to, step, __ATOMIC_RELEASE);
    __atomic_store_n(&page_->passed, passed, __ATOMIC_RELEASE);
  }
  if (found != nullptr) *wish = *found;
  __atomic_store_n(&due_, due, __ATOMIC_RELAXED);
  __atomic_store_n(&order_, order.order, __ATOMIC_RELEASE);
  return answer;
}

uint32_t OwnPage::Wanted(uint64_t saved_wants) {
  wire::StepOrder order;
  if (!wire::ReadOrder(page_, &order)) return 0;
  const uint64_t wanted = order.wants > saved_wants ? order.wanted : order.wanted & wire::kWishExit;
  return static_cast<uint32_t>(wanted & (wire::kWishSave | wire::kWishExit));
}

uint64_t OwnPage::wants() const {
  return __atomic_load_n(&page_->wants, __ATOMIC_RELAXED);
}

}  // namespace muster::client
