// Copies of GPU memory into staging memory: on a stream of their own, so that only what the program does on the memory's
// stream waits for them, and into memory that is registered with the driver once, so that the GPU writes it at the bus's
// full rate.
// Used from the thread that uses the handle.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ceph/client/array.h"
#include "ceph/client/cuda.h"
#include "ceph/client/staging.h"

namespace muster::client {

class DeviceCopies {
 public:
  DeviceCopies() = default;
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Whether `from` is memory that can be copied; if not, error() says why.
  bool Check(const void* from);
  // Starts to copy `bytes` bytes from `from`, which has passed Check, to `to` in `staging`, after everything that
  // `stream` (a CUstream; NULL: the default stream) has been given so far and before what it is given later. False:
  // error() says why; copies that were started before may still be on their way.
  bool Start(const Staging& staging, void* to, const void* from, size_t bytes, void* stream);
  // Waits until all copies are done. False when one of them has failed: error() says why.
  bool Wait();
  // Before the memory of `staging` moves: waits for the copies, and takes the registration back. Wait tells of errors.
  void Release(const Staging& staging);
  // Gives everything back to the driver. Not in a forked process, which has no use of its parent's driver.
  void End();
  [[nodiscard]] const char* error() const { return error_; }

 private:
  // One for each GPU's context that memory came from.
  struct Lane {
    Cuda::Context context = nullptr;
    int primary_of = -1;  // the GPU whose primary context has been retained for it
    Cuda::Stream stream = nullptr;
    Cuda::Event event = nullptr;
    bool busy = false;
  };
  struct Registered {
    void* data;
    bool done;  // false: the driver did not want to
  };

  bool Fail(const char* what, int code);
  Lane* LaneOf(const void* from);
  bool Prepare(Lane* lane);
  void Register(const Staging& staging);
  bool StartOn(Lane* lane, const Staging& staging, void* to, const void* from, size_t bytes, void* stream);
  bool Drain();

  Cuda cuda_{};
  bool found_ = false;
  Array<Lane> lanes_;
  Array<Registered> registered_;
  bool failed_ = false;  // a copy, since the last Wait
  char error_[256] = "";
};

}  // namespace muster::client
