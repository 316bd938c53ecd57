#include "client/libmuster/staging.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/libmuster/memory_file.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster::client {
namespace {

constexpr size_t kStep = 2u << 20;  // a huge page

}  // namespace

Staging::~Staging() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

void Staging::Abandon() {
  fd_.reset();
  data_ = nullptr;
  capacity_ = 0;
  granted = 0;
  holds = false;
}

int Staging::Make() {
  if (fd_.valid()) return 0;
  fd_.reset(MakeMemoryFile("muster-staging"));
  // musterd reads only memory that cannot be cut off under it.
  if (fd_.valid() && fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0) return 0;
  const int error = errno;
  fd_.reset();
  return error;
}

int Staging::Reserve(size_t bytes) {
  if (bytes <= capacity_) return 0;
  if (bytes > SIZE_MAX / 4) return ENOMEM;
  if (const int error = Make(); error != 0) return error;
  const size_t grown = capacity_ + capacity_ / 2;
  const size_t wanted = ((bytes > grown ? bytes : grown) + kStep - 1) / kStep * kStep;
  if (ftruncate(fd_.get(), static_cast<off_t>(wanted)) != 0) return errno;
  void* at = data_ == nullptr ? mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
                              : mremap(data_, capacity_, wanted, MREMAP_MAYMOVE);
  if (at == MAP_FAILED) return errno;
  data_ = static_cast<char*>(at);
  // The mapping stays writable, and grows; but no hole can be punched any more, so musterd may map it too. A kernel that
  // does not know the seal makes saves dearer, not wrong.
  fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  capacity_ = wanted;
  madvise(data_, capacity_, MADV_HUGEPAGE);  // a hint; not every kernel takes it for shared memory
  return 0;
}

}  // namespace muster::client
