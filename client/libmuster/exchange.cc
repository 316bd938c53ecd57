#include "client/libmuster/exchange.h"

#include <sys/mman.h>

#include "client/libmuster/memory_file.h"

namespace muster::client {

bool ExchangedValues::Take(const UniqueFd& memory, uint64_t bytes, uint32_t members) {
  Forget();
  const uint64_t table = 4ULL * members;
  if (!memory.valid() || bytes < table || members == 0 || !HoldsForGood(memory.get(), bytes)) return false;
  void* map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, memory.get(), 0);
  if (map == MAP_FAILED) return false;
  map_ = static_cast<unsigned char*>(map);
  bytes_ = bytes;
  members_ = members;
  uint32_t before = 0;
  for (uint32_t rank = 0; rank < members; ++rank) {
    const uint32_t end = End(rank);
    if (end < before || end > bytes - table) {
      Forget();
      return false;
    }
    before = end;
  }
  return true;
}

void ExchangedValues::Forget() {
  if (map_ != nullptr) munmap(map_, bytes_);
  map_ = nullptr;
  bytes_ = 0;
  members_ = 0;
}

uint32_t ExchangedValues::End(uint32_t rank) const {
  const unsigned char* at = map_ + 4ULL * rank;
  return at[0] | static_cast<uint32_t>(at[1]) << 8 | static_cast<uint32_t>(at[2]) << 16 |
         static_cast<uint32_t>(at[3]) << 24;
}

const void* ExchangedValues::Value(uint32_t rank, size_t* bytes) const {
  const uint32_t begin = rank == 0 ? 0 : End(rank - 1);
  *bytes = End(rank) - begin;
  return map_ + 4ULL * members_ + begin;
}

}  // namespace muster::client
