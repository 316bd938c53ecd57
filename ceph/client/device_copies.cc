#include "ceph/client/device_copies.h"

#include <stdio.h>

namespace muster::client {
namespace {

uint64_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// The context is the calling thread's as long as this lives.
class Current {
 public:
  Current(const Cuda& cuda, Cuda::Context context) : cuda_(cuda), status_(cuda.push_context(context)) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    Cuda::Context popped = nullptr;
    if (status_ == Cuda::kSuccess) cuda_.pop_context(&popped);
  }
  [[nodiscard]] int status() const { return status_; }

 private:
  const Cuda& cuda_;
  int status_;
};

}  // namespace

bool DeviceCopies::Fail(const char* what, int code) {
  const char* text = nullptr;
  if (cuda_.error_text(code, &text) != Cuda::kSuccess || text == nullptr) text = "an unknown error";
  snprintf(error_, sizeof(error_), "%s: CUDA error %d, %s", what, code, text);
  return false;
}

bool DeviceCopies::Check(const void* from) {
  if (!found_ && !cuda_.Find()) {
    snprintf(error_, sizeof(error_), "this process has not loaded CUDA (libcuda.so.1)");
    return false;
  }
  found_ = true;
  int device = 0;
  const int status = cuda_.pointer_attribute(&device, Cuda::kPointerDevice, Address(from));
  return status == Cuda::kSuccess || Fail("it is no memory of a GPU", status);
}

// nullptr: error() says why. Memory out of a pool or of virtual memory management has no context of its own: it is used in
// its GPU's primary one, which is that of CUDA's runtime.
DeviceCopies::Lane* DeviceCopies::LaneOf(const void* from) {
  Lane lane;
  int device = -1;
  int status = cuda_.pointer_attribute(&device, Cuda::kPointerDevice, Address(from));
  if (status != Cuda::kSuccess) {
    Fail("it is no memory of a GPU", status);
    return nullptr;
  }
  status = cuda_.pointer_attribute(&lane.context, Cuda::kPointerContext, Address(from));
  const bool own = status == Cuda::kSuccess && lane.context != nullptr;
  for (Lane& known : lanes_) {
    if (own ? known.context == lane.context : known.primary_of == device) return &known;
  }
  if (!own) {
    status = cuda_.retain_primary(&lane.context, device);
    if (status != Cuda::kSuccess) {
      Fail("the GPU's context cannot be had", status);
      return nullptr;
    }
    lane.primary_of = device;
  }
  if (!Prepare(&lane) || !lanes_.Add(lane)) {
    if (lane.event != nullptr) cuda_.destroy_event(lane.event);
    if (lane.stream != nullptr) cuda_.destroy_stream(lane.stream);
    if (!own) cuda_.release_primary(device);
    return nullptr;
  }
  return lanes_.end() - 1;
}

bool DeviceCopies::Prepare(Lane* lane) {
  const Current current(cuda_, lane->context);
  int status = current.status();
  if (status == Cuda::kSuccess) status = cuda_.create_stream(&lane->stream, Cuda::kStreamNonBlocking);
  if (status == Cuda::kSuccess) status = cuda_.create_event(&lane->event, Cuda::kEventDisableTiming);
  return status == Cuda::kSuccess || Fail("no stream for the copies can be had", status);
}

// Once for each memory. Where the driver does not want to, the copies are slower, not wrong.
void DeviceCopies::Register(const Staging& staging) {
  for (const Registered& known : registered_) {
    if (known.data == staging.data()) return;
  }
  const bool done =
      cuda_.register_memory(staging.data(), staging.capacity(), Cuda::kRegisterPortable) == Cuda::kSuccess;
  if (!registered_.Add({staging.data(), done}) && done) cuda_.unregister_memory(staging.data());
}

bool DeviceCopies::Start(const Staging& staging, void* to, const void* from, size_t bytes, void* stream) {
  Lane* lane = LaneOf(from);
  return lane != nullptr && StartOn(lane, staging, to, from, bytes, stream);
}

bool DeviceCopies::StartOn(Lane* lane, const Staging& staging, void* to, const void* from, size_t bytes,
                           void* stream) {
  const Current current(cuda_, lane->context);
  if (current.status() != Cuda::kSuccess) return Fail("the GPU's context cannot be used", current.status());
  Register(staging);
  int status = cuda_.record_event(lane->event, stream);
  if (status == Cuda::kSuccess) status = cuda_.wait_event(lane->stream, lane->event, 0);
  if (status != Cuda::kSuccess) return Fail("the stream cannot be waited for", status);
  lane->busy = true;
  status = cuda_.copy(Address(to), Address(from), bytes, lane->stream);
  if (status != Cuda::kSuccess) return Fail("the GPU cannot copy it", status);
  status = cuda_.record_event(lane->event, lane->stream);
  if (status == Cuda::kSuccess) status = cuda_.wait_event(stream, lane->event, 0);
  return status == Cuda::kSuccess || Fail("the stream cannot be made to wait", status);
}

// The first error is the one to tell.
bool DeviceCopies::Drain() {
  for (Lane& lane : lanes_) {
    if (!lane.busy) continue;
    lane.busy = false;
    const int status = cuda_.synchronize(lane.stream);
    if (status == Cuda::kSuccess || failed_) continue;
    failed_ = true;
    Fail("the GPU has not copied what was added", status);
  }
  return !failed_;
}

bool DeviceCopies::Wait() {
  const bool good = Drain();
  failed_ = false;
  return good;
}

void DeviceCopies::Release(const Staging& staging) {
  for (size_t i = 0; i < registered_.size(); ++i) {
    if (registered_[i].data != staging.data()) continue;
    Drain();
    if (registered_[i].done) cuda_.unregister_memory(registered_[i].data);
    registered_.Remove(i);
    return;
  }
}

void DeviceCopies::End() {
  Wait();
  for (const Registered& memory : registered_) {
    if (memory.done) cuda_.unregister_memory(memory.data);
  }
  registered_.Clear();
  for (const Lane& lane : lanes_) {
    cuda_.destroy_event(lane.event);
    cuda_.destroy_stream(lane.stream);
    if (lane.primary_of >= 0) cuda_.release_primary(lane.primary_of);
  }
  lanes_.Clear();
}

}  // namespace muster::client
