// The limit of what a user's checkpoints may take: the coordinator knows the use, the agents refuse the saves.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "ceph/catalog/stored_bytes.h"
#include "daemon/coordinator/coordinator.h"

namespace muster {
namespace {

// It looks at all of the user's keys, so not after each commit; but when there seems to be no room: what was committed may
// share chunks, older checkpoints have gone. After a refusal something may have been deleted, but not at each save's.
constexpr int64_t kReadAgainNs = 30'000'000'000;
constexpr int64_t kReadAgainAfterRefusalNs = 1'000'000'000;

}  // namespace

bool Coordinator::HasRoom() const {
  return storage_use_ &&
         *storage_use_ + checkpoint_bytes_ <= static_cast<uint64_t>(config_.user_storage_limit);
}

void Coordinator::WatchStorage() {
  if (config_.user_storage_limit == 0 || reading_storage_ || over_called_) return;
  const bool fresh = storage_read_ns_ != 0 && BoottimeNs() - storage_read_ns_ < kReadAgainNs;
  if (fresh && !storage_full_ && HasRoom()) return SendStorage();
  if (storage_full_ && BoottimeNs() - storage_read_ns_ < kReadAgainAfterRefusalNs) return;
  reading_storage_ = true;
  if (!storage_) storage_ = std::make_shared<StorageUse>(store_, job_.Space());
  if (!collector_) collector_ = std::make_unique<Worker>();
  collector_->Do([weak = weak_from_this(), storage = storage_, &loop = loop_] {
    loop.Post([weak, use = storage->Read()] {
      if (const auto self = weak.lock()) self->StorageRead(use);
    });
  });
}

void Coordinator::StorageRead(const Result<uint64_t>& use) {
  reading_storage_ = false;
  if (fence_.lost()) return;
  storage_read_ns_ = BoottimeNs();
  if (!use)
    return spdlog::warn("gang {}: what user {} has stored: {}", job_.Id(), job_.uid, use.error().message);
  storage_use_ = *use;
  storage_full_ = false;
  if (!HasRoom()) {
    spdlog::info("gang {}: user {} has {} of {} bytes in the store: there is no room for another checkpoint",
                 job_.Id(), job_.uid, *use, config_.user_storage_limit);
  }
  SendStorage();
}

// What was committed since the use was read counts in full: it may share chunks, but not more.
void Coordinator::StorageCommitted(uint64_t bytes) {
  checkpoint_bytes_ = bytes;
  if (storage_use_) *storage_use_ += bytes;
  WatchStorage();
}

void Coordinator::SendStorage() {
  if (!storage_use_) return;
  auto message = NewMessage();
  message.mutable_storage()->set_limit(static_cast<uint64_t>(config_.user_storage_limit));
  message.mutable_storage()->set_use(*storage_use_);
  message.mutable_storage()->set_need(checkpoint_bytes_);
  Broadcast(message);
}

}  // namespace muster
