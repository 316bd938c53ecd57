// The shared memory a save is copied into. It is kept from save to save, so that its pages stay faulted in.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/unique_fd.h"

namespace muster::client {

class Staging {
 public:
  enum class Use {
    kFree,
    kFilling,  // a save is being put together
    kHanded,   // musterd reads it, or is to
  };

  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging();

  // Makes the memory, of no bytes yet. Gives 0 or an errno.
  int Make();
  // Makes room for `bytes` bytes in all. Gives 0 or an errno; the content stays either way.
  int Reserve(size_t bytes);
  // Leaves the memory to whoever may still write it: it is never unmapped, and the next Reserve takes new one.
  void Abandon();
  [[nodiscard]] char* data() const { return data_; }
  [[nodiscard]] size_t capacity() const { return capacity_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

  Use use = Use::kFree;
  // Whether the memory still holds the whole shard of `step`, `bytes` long: from its commit until it is
  // filled again.
  bool holds = false;
  // A newer save needs the memory, or no checkpoint needs its content: musterd is to let it go, and has been told.
  bool give_up = false;
  bool gave_up = false;
  uint64_t step = 0;
  uint64_t bytes = 0;
  int64_t held_ns = 0;  // wire::Save
  // It may come to hold so many without taking memory that is not there.
  size_t granted = 0;

 private:
  UniqueFd fd_;
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace muster::client
