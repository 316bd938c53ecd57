#include "daemon/coordinator/storage_limit.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace muster {
namespace {

// It looks at all of the user's keys, so not after each commit; but when there seems to be no room: what was committed may
// share chunks, older checkpoints have gone. After a refusal something may have been deleted, but not at each save's.
constexpr auto kReadAgain = std::chrono::seconds(30);
constexpr auto kReadAgainAfterRefusal = std::chrono::seconds(1);

}  // namespace

StorageLimit::StorageLimit(Loop& loop, Worker& reader, std::shared_ptr<Store> store, Settings settings,
                           std::function<void(const Room&)> tell)
    : loop_(loop),
      reader_(reader),
      settings_(std::move(settings)),
      tell_(std::move(tell)),
      stored_(std::make_shared<StorageUse>(std::move(store), settings_.space)),
      calls_(loop) {}

bool StorageLimit::HasRoom() const {
  return use_ && *use_ + need_ <= settings_.limit;
}

void StorageLimit::Look() {
  if (settings_.limit == 0 || reading_ || over_) return;
  const bool fresh = read_at_ && loop_.Now() - *read_at_ < kReadAgain;
  if (fresh && !refused_ && HasRoom()) return Tell();
  if (read_at_ && refused_ && loop_.Now() - *read_at_ < kReadAgainAfterRefusal) return;
  reading_ = true;
  reader_.Do([stored = stored_, answer = calls_.Back([this](const Result<uint64_t>& use) { Read(use); })] {
    answer(stored->Read());
  });
}

void StorageLimit::Refused() {
  refused_ = true;
  Look();
}

void StorageLimit::Read(const Result<uint64_t>& use) {
  reading_ = false;
  if (over_) return;
  read_at_ = loop_.Now();
  if (!use) {
    return spdlog::warn("gang {}: what user {} has stored: {}", settings_.gang, settings_.uid,
                        use.error().message);
  }
  use_ = *use;
  refused_ = false;
  if (!HasRoom()) {
    spdlog::info("gang {}: user {} has {} of {} bytes in the store: there is no room for another checkpoint",
                 settings_.gang, settings_.uid, *use, settings_.limit);
  }
  Tell();
}

// What was committed since the use was read counts in full: it may share chunks, but not more.
void StorageLimit::Committed(uint64_t bytes) {
  need_ = bytes;
  if (use_) *use_ += bytes;
  Look();
}

void StorageLimit::Tell() {
  if (use_) tell_({.limit = settings_.limit, .use = *use_, .need = need_});
}

}  // namespace muster
