// Copies of GPU memory into staging memory: on a stream of their own, so that only what the program does on the memory's
// stream waits for them, and into memory that is registered with the driver once, so that the GPU writes it at the bus's
// full rate.
// Used from the thread that uses the handle. Where the driver leaves open whether it still writes, the staging memory is
// abandoned: neither used again nor unmapped.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/libmuster/array.h"
#include "client/libmuster/cuda.h"
#include "client/libmuster/staging.h"

namespace muster::client {

class DeviceCopies {
 public:
  enum class Checked {
    kGood,
    kRefused,  // no such memory, or not now: nothing is wrong with the GPU
    kFailed,
  };

  DeviceCopies() = default;
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Whether `from` is memory that can be copied in the order of `stream` (a CUstream; NULL: the default stream of the GPU
  // that it is on); if not, error() says why.
  Checked Check(const void* from, void* stream);
  // Whether it has been decided for this save that `staging` is registered, or that it is not.
  [[nodiscard]] bool Knows(const Staging* staging) const;
  // Starts to copy `bytes` bytes from `from`, which has just passed Check with this stream, to `to` in `staging`, after
  // everything that the stream has been given so far and before what it is given later. False: error() says why; copies
  // that were started before may still be on their way.
  bool Start(Staging* staging, void* to, const void* from, size_t bytes, void* stream);
  // Waits until all copies are done; they go to `staging`. False: error() says why, and that memory has been abandoned.
  bool Wait(Staging* staging);
  // The same before the memory moves: takes the registration back too.
  bool Release(Staging* staging);
  // Gives everything back to the driver when no copy is on its way. Not in a forked process, which has no use of its
  // parent's driver.
  void End();
  [[nodiscard]] const char* error() const { return error_; }

 private:
  // One for each GPU's context that memory, or a stream, came from.
  struct Lane {
    Cuda::Context context = nullptr;
    int primary_of = -1;  // the GPU whose primary context has been retained for it
    Cuda::Stream stream = nullptr;
    Cuda::Event event = nullptr;
    bool busy = false;
  };
  struct Registered {
    Staging* staging;
    Cuda::Context context;
    bool done;  // false: not for this save
  };

  bool Fail(const char* what, int code);
  Lane* LaneOfMemory(const void* from);
  Lane* LaneOfContext(Cuda::Context context);
  Lane* AddLane(Lane lane);
  void Register(Staging* staging, Cuda::Context context);
  bool Unregister(const Registered& memory);
  void Abandon(Staging* staging);

  Cuda cuda_{};
  bool found_ = false;
  Array<Lane> lanes_;
  Array<Registered> registered_;
  char error_[256] = "";
};

}  // namespace muster::client
