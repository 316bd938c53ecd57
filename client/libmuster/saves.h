// What a handle remembers of its latest saves.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace muster::client {

enum class SaveState {
  kQueued,     // not handed to musterd yet, or to be handed to it again
  kSent,       // musterd has the memory
  kDurable,    // this member's shard is durable
  kCommitted,  // all members' are
  kFailed,
};

struct SaveRecord {
  uint64_t step = 0;
  SaveState state = SaveState::kQueued;
  int status = 0;        // a muster_error when it has failed
  bool again = false;    // it is handed over again, though it was durable: musterd went away
  bool lost = false;     // the same, but its memory has been used again, or musterd does not take it
  bool ask = false;      // lost, and musterd is to be asked how it ended
  bool delayed = false;  // the store does not take it now
  char text[256] = "";   // why it failed, or is delayed
};

// The newest saves; older ones are forgotten.
class Saves {
 public:
  // In place of the newest when that is of the same step.
  SaveRecord& Add(uint64_t step) {
    SaveRecord* const again = newest();
    SaveRecord& record = again != nullptr && again->step == step ? *again : records_[count_++ % kKept];
    record = {};
    record.step = step;
    return record;
  }
  // nullptr for a step that this handle has not saved, or has forgotten.
  SaveRecord* Find(uint64_t step) {
    for (size_t i = 0; i < kept(); ++i) {
      if (records_[i].step == step) return &records_[i];
    }
    return nullptr;
  }
  SaveRecord* newest() { return count_ == 0 ? nullptr : &records_[(count_ - 1) % kKept]; }
  [[nodiscard]] size_t kept() const { return count_ < kKept ? count_ : kKept; }
  SaveRecord& at(size_t i) { return records_[i]; }

 private:
  static constexpr size_t kKept = 64;
  SaveRecord records_[kKept];
  size_t count_ = 0;
};

}  // namespace muster::client
