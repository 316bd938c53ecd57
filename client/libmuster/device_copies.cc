#include "client/libmuster/device_copies.h"

#include <stdio.h>

namespace muster::client {
namespace {

uint64_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// The context is the calling thread's as long as this lives. What is called meanwhile disturbs no capture of another thread's
// stream.
class Current {
 public:
  Current(const Cuda& cuda, Cuda::Context context) : cuda_(cuda), status_(cuda.push_context(context)) {
    if (status_ == Cuda::kSuccess) cuda_.exchange_capture_mode(&mode_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    if (status_ != Cuda::kSuccess) return;
    Cuda::Context popped = nullptr;
    cuda_.exchange_capture_mode(&mode_);
    cuda_.pop_context(&popped);
  }
  [[nodiscard]] int status() const { return status_; }

 private:
  const Cuda& cuda_;
  int status_;
  int mode_ = Cuda::kCaptureRelaxed;
};

}  // namespace

bool DeviceCopies::Fail(const char* what, int code) {
  const char* text = nullptr;
  if (cuda_.error_text(code, &text) != Cuda::kSuccess || text == nullptr) text = "an unknown error";
  snprintf(error_, sizeof(error_), "%s: CUDA error %d, %s", what, code, text);
  return false;
}

DeviceCopies::Checked DeviceCopies::Check(const void* from, void* stream) {
  if (!found_) {
    const char* missing = nullptr;
    found_ = cuda_.Find(&missing);
    if (!found_) {
      snprintf(error_, sizeof(error_), "%s%s",
               missing == nullptr ? "this process has not loaded CUDA (libcuda.so.1)"
                                  : "this process's CUDA is too old: libcuda.so.1 has no ",
               missing == nullptr ? "" : missing);
      return Checked::kRefused;
    }
  }
  int device = 0;
  if (const int status = cuda_.pointer_attribute(&device, Cuda::kPointerDevice, Address(from));
      status != Cuda::kSuccess) {
    Fail("it is no memory of a GPU", status);
    return status == Cuda::kInvalidValue ? Checked::kRefused : Checked::kFailed;
  }
  const Lane* lane = LaneOfMemory(from);
  if (lane == nullptr) return Checked::kFailed;
  const Current current(cuda_, lane->context);
  if (current.status() != Cuda::kSuccess) {
    Fail("the GPU's context cannot be used", current.status());
    return Checked::kFailed;
  }
  // A copy would become a part of the graph, to be made whenever that is launched, and not now.
  int capturing = Cuda::kNotCapturing;
  if (const int status = cuda_.stream_capturing(stream, &capturing); status != Cuda::kSuccess) {
    Fail("its stream cannot be used", status);
    return Checked::kRefused;
  }
  if (capturing == Cuda::kNotCapturing) return Checked::kGood;
  snprintf(error_, sizeof(error_), "its stream is being captured into a graph");
  return Checked::kRefused;
}

// nullptr: error() says why. Memory out of a pool or of virtual memory management has no context of its own: it is used in
// its GPU's primary one, which is that of CUDA's runtime.
DeviceCopies::Lane* DeviceCopies::LaneOfMemory(const void* from) {
  Cuda::Context context = nullptr;
  if (cuda_.pointer_attribute(&context, Cuda::kPointerContext, Address(from)) == Cuda::kSuccess &&
      context != nullptr) {
    return LaneOfContext(context);
  }
  int device = -1;
  int status = cuda_.pointer_attribute(&device, Cuda::kPointerDevice, Address(from));
  for (Lane& known : lanes_) {
    if (status == Cuda::kSuccess && known.primary_of == device) return &known;
  }
  if (status == Cuda::kSuccess) status = cuda_.retain_primary(&context, device);
  if (status != Cuda::kSuccess) {
    Fail("the GPU's context cannot be had", status);
    return nullptr;
  }
  for (Lane& known : lanes_) {
    if (known.context == context && known.primary_of < 0) {
      known.primary_of = device;
      return &known;
    }
  }
  Lane lane;
  lane.context = context;
  lane.primary_of = device;
  return AddLane(lane);
}

DeviceCopies::Lane* DeviceCopies::LaneOfContext(Cuda::Context context) {
  for (Lane& known : lanes_) {
    if (known.context == context) return &known;
  }
  Lane lane;
  lane.context = context;
  return AddLane(lane);
}

DeviceCopies::Lane* DeviceCopies::AddLane(Lane lane) {
  const Current current(cuda_, lane.context);
  int status = current.status();
  if (status == Cuda::kSuccess) status = cuda_.create_stream(&lane.stream, Cuda::kStreamNonBlocking);
  if (status == Cuda::kSuccess) status = cuda_.create_event(&lane.event, Cuda::kEventDisableTiming);
  if (status != Cuda::kSuccess) {
    Fail("no stream for the copies can be had", status);
  } else if (lanes_.Add(lane)) {
    return lanes_.end() - 1;
  } else {
    snprintf(error_, sizeof(error_), "there is no memory");
  }
  if (lane.event != nullptr) cuda_.destroy_event(lane.event);
  if (lane.stream != nullptr) cuda_.destroy_stream(lane.stream);
  if (lane.primary_of >= 0) cuda_.release_primary(lane.primary_of);
  return nullptr;
}

bool DeviceCopies::Knows(const Staging* staging) const {
  for (size_t i = 0; i < registered_.size(); ++i) {
    if (registered_[i].staging == staging) return true;
  }
  return false;
}

// Once for each memory, if all of it has been granted. Where it is not registered, the copies of this save are slower, not wrong.
void DeviceCopies::Register(Staging* staging, Cuda::Context context) {
  if (Knows(staging)) return;
  const bool done =
      staging->granted >= staging->capacity() &&
      cuda_.register_memory(staging->data(), staging->capacity(), Cuda::kRegisterPortable) == Cuda::kSuccess;
  const Registered memory{staging, context, done};
  if (!registered_.Add(memory)) Unregister(memory);
}

bool DeviceCopies::Unregister(const Registered& memory) {
  if (!memory.done) return true;
  const Current current(cuda_, memory.context);
  int status = current.status();
  if (status == Cuda::kSuccess) status = cuda_.unregister_memory(memory.staging->data());
  return status == Cuda::kSuccess || Fail("the memory's registration cannot be taken back", status);
}

bool DeviceCopies::Start(Staging* staging, void* to, const void* from, size_t bytes, void* stream) {
  // The stream may be another context's than the memory, and an event is recorded by its own.
  Cuda::Context of_stream = nullptr;
  if (stream != nullptr) {
    if (const int status = cuda_.stream_context(stream, &of_stream); status != Cuda::kSuccess)
      return Fail("the stream cannot be waited for", status);
    if (LaneOfContext(of_stream) == nullptr) return false;
  }
  Lane* const lane = LaneOfMemory(from);
  if (lane == nullptr) return false;
  const Lane* const before = of_stream != nullptr ? LaneOfContext(of_stream) : lane;
  const Current current(cuda_, lane->context);
  if (current.status() != Cuda::kSuccess) return Fail("the GPU's context cannot be used", current.status());
  Register(staging, lane->context);
  int status = cuda_.record_event(before->event, stream);
  if (status == Cuda::kSuccess) status = cuda_.wait_event(lane->stream, before->event, 0);
  if (status != Cuda::kSuccess) return Fail("the stream cannot be waited for", status);
  lane->busy = true;
  status = cuda_.copy(Address(to), Address(from), bytes, lane->stream);
  if (status != Cuda::kSuccess) return Fail("the GPU cannot copy it", status);
  status = cuda_.record_event(lane->event, lane->stream);
  if (status == Cuda::kSuccess) status = cuda_.wait_event(stream, lane->event, 0);
  return status == Cuda::kSuccess || Fail("the stream cannot be made to wait", status);
}

bool DeviceCopies::Wait(Staging* staging) {
  bool good = true;
  for (size_t i = lanes_.size(); i-- > 0;) {
    Lane& lane = lanes_[i];
    if (!lane.busy) continue;
    lane.busy = false;
    const int status = cuda_.synchronize(lane.stream);
    if (status == Cuda::kSuccess) continue;
    // What became of it is not known, and whether its handles are still good: it is left to itself.
    if (good) Fail("the GPU has not copied what was added", status);
    good = false;
    lanes_.Remove(i);
  }
  // The next save asks again.
  for (size_t i = registered_.size(); i-- > 0;) {
    if (!registered_[i].done) registered_.Remove(i);
  }
  if (!good) Abandon(staging);
  return good;
}

void DeviceCopies::Abandon(Staging* staging) {
  for (size_t i = registered_.size(); i-- > 0;) {
    if (registered_[i].staging == staging) registered_.Remove(i);
  }
  staging->Abandon();
}

bool DeviceCopies::Release(Staging* staging) {
  if (!Wait(staging)) return false;
  for (size_t i = 0; i < registered_.size(); ++i) {
    if (registered_[i].staging != staging) continue;
    if (!Unregister(registered_[i])) {
      Abandon(staging);
      return false;
    }
    registered_.Remove(i);
    break;
  }
  return true;
}

void DeviceCopies::End() {
  for (const Registered& memory : registered_) {
    if (!Unregister(memory)) memory.staging->Abandon();
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
