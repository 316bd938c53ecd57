// The limit of what a user's checkpoints may take: the coordinator knows the use, the agents refuse the saves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/result.h"
#include "base/worker.h"
#include "ceph/catalog/stored_bytes.h"
#include "ceph/store/store.h"

namespace muster {

// On the loop's thread only.
class StorageLimit {
 public:
  struct Room {
    uint64_t limit = 0;  // bytes, of the user
    uint64_t use = 0;
    uint64_t need = 0;  // of the newest checkpoint
  };
  struct Settings {
    std::string gang;  // its id, for the log
    uint32_t uid = 0;
    std::string space;
    uint64_t limit = 0;  // bytes; 0: none, and nothing happens
  };
  // `reader`: the thread that asks the store, which blocks; the thread ends after this object. `tell` is called with what the agents
  // are to know.
  StorageLimit(Loop& loop, Worker& reader, std::shared_ptr<Store> store, Settings settings,
               std::function<void(const Room&)> tell);

  // Tells how many bytes the user's checkpoints have. Asks the store first where that number is old, or leaves no room for another
  // checkpoint.
  void Look();
  // A save was refused for want of room: the store is asked again, for something may have been deleted.
  void Refused();
  void Committed(uint64_t bytes);
  // Asks and tells no more.
  void End() { over_ = true; }

 private:
  [[nodiscard]] bool HasRoom() const;
  void Read(const Result<uint64_t>& use);
  void Tell();

  Loop& loop_;
  Worker& reader_;
  const Settings settings_;
  const std::function<void(const Room&)> tell_;
  const std::shared_ptr<StorageUse> stored_;  // on the reader's thread
  bool reading_ = false;
  bool refused_ = false;  // since it was read
  bool over_ = false;
  std::optional<Loop::Time> read_at_;
  std::optional<uint64_t> use_;
  uint64_t need_ = 0;
  OwnedCalls calls_;
};

}  // namespace muster
