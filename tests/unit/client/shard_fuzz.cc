// Shards are written by programs and read by libmuster in other programs: every entry must lie inside of the
// shard.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "client/libmuster/shard_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of the exact size, so that the sanitizer sees a read beyond it.
  const std::unique_ptr<uint8_t[]> shard(new uint8_t[size]);
  if (size > 0) std::memcpy(shard.get(), data, size);
  muster::client::ShardView view;
  if (view.Parse(shard.get(), size) != nullptr) return view.count() == 0 ? 0 : (std::abort(), 0);
  unsigned sum = 0;
  for (size_t i = 0; i < view.count(); ++i) {
    const auto& entry = view.entry(i);
    for (size_t k = 0; k < entry.bytes; ++k) sum += static_cast<const uint8_t*>(entry.data)[k];
    sum += static_cast<unsigned>(std::strlen(entry.name) + std::strlen(entry.meta));
    if (view.Find(entry.name) != &entry) std::abort();
  }
  return sum == 0xffffffff ? 1 : 0;
}
