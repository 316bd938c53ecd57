// A stand-in for NVIDIA's driver library, for machines without a GPU: what libmuster calls of it, and what its test needs
// to make GPU memory. It is strict where the driver is lenient, so that a mistake shows:
// - work given to a stream is done when somebody waits for it, not before, and only as far as was waited for;
// - GPU memory is not readable by the CPU;
// - a handle of another context, memory registered twice or not at all, or registered without a context, is an error.
// stand_in_cuda_fail and stand_in_cuda_count are the test's own. The names and values are those of CUDA's cuda.h.
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalAddress = 700;  // after which nothing works on the stream any more
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kDevices = 2;

struct Stream;
struct Context {
  int device;
  std::unique_ptr<Stream> standard;
};
struct Stream {
  Context* context;
  std::deque<std::function<int()>> work;
  size_t done = 0;  // pieces of work that have left the queue
  int failed = 0;
  int capturing = 0;

  [[nodiscard]] size_t given() const { return done + work.size(); }
  void RunTo(size_t position) {
    while (done < position && !work.empty()) {
      const auto next = std::move(work.front());
      work.pop_front();
      ++done;
      if (const int status = next(); status != 0 && failed == 0) failed = status;
    }
  }
};
struct Event {
  Context* context;
  Stream* stream = nullptr;
  size_t position = 0;
};
struct Allocation {
  size_t bytes;
  char* content;     // of the same bytes, for the "GPU"
  Context* context;  // nullptr: out of a pool
  int device;
};

std::recursive_mutex mutex;
Context contexts[kDevices];
std::map<uint64_t, Allocation> allocations;
std::map<char*, size_t> registered;
std::map<std::string, int> failures;  // by function, for its next call
std::map<std::string, uint64_t> counts;
// All that there have been: a stream may wait for one that has ended, and the library leaves some to themselves.
std::vector<std::unique_ptr<Stream>> streams;
std::vector<std::unique_ptr<Event>> events;
thread_local std::vector<Context*> current;
thread_local int capture_mode = 0;

// The beginning of every function: what the test wants it to fail with.
int Enter(const char* function) {
  ++counts[function];
  const auto failure = failures.find(function);
  if (failure == failures.end()) return 0;
  const int code = failure->second;
  failures.erase(failure);
  return code;
}

Context* Primary(int device) {
  Context& context = contexts[device];
  context.device = device;
  if (context.standard == nullptr) context.standard = std::make_unique<Stream>(Stream{&context, {}});
  return &context;
}

const Allocation* Find(uint64_t address, size_t bytes, char** content) {
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  const uint64_t offset = address - found->first;
  if (offset >= found->second.bytes || bytes > found->second.bytes - offset) return nullptr;
  *content = found->second.content + offset;
  return &found->second;
}

bool IsRegistered(const char* data, size_t bytes) {
  for (const auto& [begin, size] : registered) {
    if (data >= begin && data + bytes <= begin + size) return true;
  }
  return false;
}

Stream* StreamOf(void* stream) {
  if (stream != nullptr) return static_cast<Stream*>(stream);
  return current.empty() ? nullptr : current.back()->standard.get();
}

int Allocate(uint64_t* out, size_t bytes, Context* context, int device) {
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* content = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *out = reinterpret_cast<uintptr_t>(address);
  allocations[*out] = {bytes, static_cast<char*>(content), context, device};
  return 0;
}

}  // namespace

#define STAND_IN extern "C" __attribute__((visibility("default")))
#define ENTER(name)                  \
  const std::lock_guard lock(mutex); \
  if (const int entered = Enter(name); entered != 0) return entered

// The next call of `function` gives `code`; "execution" is the next copy when it is done.
STAND_IN void stand_in_cuda_fail(const char* function, int code) {
  const std::lock_guard lock(mutex);
  failures[function] = code;
}
// Calls of a function so far; "registered": memory that is so now; "pageable": bytes that were copied into memory that was
// not; "all": all calls.
STAND_IN uint64_t stand_in_cuda_count(const char* what) {
  const std::lock_guard lock(mutex);
  if (strcmp(what, "registered") == 0) return registered.size();
  if (strcmp(what, "all") != 0) return counts[what];
  uint64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

// As if the program were making a graph of what it gives to the stream.
STAND_IN void stand_in_cuda_capture(void* stream, int capturing) {
  const std::lock_guard lock(mutex);
  static_cast<Stream*>(stream)->capturing = capturing;
}

STAND_IN int cuInit(unsigned) {
  return 0;
}
STAND_IN int cuDeviceGetCount(int* out) {
  *out = kDevices;
  return 0;
}
STAND_IN int cuDevicePrimaryCtxRetain(void** out, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= kDevices) return kInvalidValue;
  *out = Primary(device);
  return 0;
}
STAND_IN int cuDevicePrimaryCtxRelease_v2(int) {
  ENTER("cuDevicePrimaryCtxRelease_v2");
  return 0;
}
STAND_IN int cuCtxPushCurrent_v2(void* context) {
  ENTER("cuCtxPushCurrent_v2");
  current.push_back(static_cast<Context*>(context));
  return 0;
}
STAND_IN int cuCtxPopCurrent_v2(void** out) {
  ENTER("cuCtxPopCurrent_v2");
  if (current.empty()) return kInvalidContext;
  *out = current.back();
  current.pop_back();
  return 0;
}
STAND_IN int cuCtxGetCurrent(void** out) {
  *out = current.empty() ? nullptr : current.back();
  return 0;
}
STAND_IN int cuStreamCreate(void** out, unsigned) {
  ENTER("cuStreamCreate");
  if (current.empty()) return kInvalidContext;
  *out = streams.emplace_back(std::make_unique<Stream>(Stream{current.back(), {}})).get();
  return 0;
}
STAND_IN int cuStreamDestroy_v2(void* stream) {
  ENTER("cuStreamDestroy_v2");
  auto* const ended = static_cast<Stream*>(stream);
  ended->RunTo(ended->given());
  return 0;
}
STAND_IN int cuStreamSynchronize(void* stream) {
  ENTER("cuStreamSynchronize");
  Stream* const waited = StreamOf(stream);
  if (waited == nullptr) return kInvalidContext;
  waited->RunTo(waited->given());
  const int failed = waited->failed;
  if (failed != kIllegalAddress) waited->failed = 0;
  return failed;
}
STAND_IN int cuStreamGetCtx(void* stream, void** out) {
  ENTER("cuStreamGetCtx");
  if (stream == nullptr) return kInvalidHandle;
  *out = static_cast<Stream*>(stream)->context;
  return 0;
}
STAND_IN int cuStreamIsCapturing(void* stream, int* out) {
  ENTER("cuStreamIsCapturing");
  const Stream* const asked = StreamOf(stream);
  if (asked == nullptr) return kInvalidContext;
  *out = asked->capturing;
  return 0;
}
STAND_IN int cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, capture_mode);
  return 0;
}
// Of the calling thread: the test looks that it is as it was.
STAND_IN int stand_in_cuda_capture_mode() {
  return capture_mode;
}
STAND_IN int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  ENTER("cuStreamWaitEvent");
  const auto* const recorded = static_cast<Event*>(event);
  if (recorded->stream == nullptr) return 0;
  Stream* const waits = StreamOf(stream);
  if (waits == nullptr) return kInvalidContext;
  waits->work.emplace_back(
      [of = recorded->stream, position = recorded->position] { return of->RunTo(position), 0; });
  return 0;
}
STAND_IN int cuEventCreate(void** out, unsigned) {
  ENTER("cuEventCreate");
  if (current.empty()) return kInvalidContext;
  *out = events.emplace_back(std::make_unique<Event>(Event{current.back()})).get();
  return 0;
}
STAND_IN int cuEventDestroy_v2(void*) {
  ENTER("cuEventDestroy_v2");
  return 0;
}
STAND_IN int cuEventRecord(void* event, void* stream) {
  ENTER("cuEventRecord");
  auto* const recorded = static_cast<Event*>(event);
  Stream* const of = StreamOf(stream);
  if (of == nullptr || of->context != recorded->context) return kInvalidHandle;
  recorded->stream = of;
  recorded->position = of->given();
  return 0;
}
STAND_IN int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  ENTER("cuMemAlloc_v2");
  if (current.empty()) return kInvalidContext;
  return Allocate(out, bytes, current.back(), current.back()->device);
}
STAND_IN int cuMemAllocAsync(uint64_t* out, size_t bytes, void*) {
  ENTER("cuMemAllocAsync");
  if (current.empty()) return kInvalidContext;
  return Allocate(out, bytes, nullptr, current.back()->device);
}
STAND_IN int cuMemFree_v2(uint64_t address) {
  ENTER("cuMemFree_v2");
  const auto found = allocations.find(address);
  if (found == allocations.end()) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  munmap(found->second.content, found->second.bytes);
  allocations.erase(found);
  return 0;
}
STAND_IN int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* stream) {
  ENTER("cuMemsetD8Async");
  char* content = nullptr;
  Stream* const on = StreamOf(stream);
  if (on == nullptr || Find(address, bytes, &content) == nullptr) return kInvalidValue;
  on->work.emplace_back([=] { return memset(content, value, bytes), 0; });
  return 0;
}
STAND_IN int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  ENTER("cuMemcpyAsync");
  char* content = nullptr;
  Stream* const on = StreamOf(stream);
  const Allocation* const source = Find(from, bytes, &content);
  if (on == nullptr || source == nullptr || source->device != on->context->device) return kInvalidValue;
  on->work.emplace_back([=] {
    if (const int failed = Enter("execution"); failed != 0) return failed;
    auto* const target = reinterpret_cast<char*>(static_cast<uintptr_t>(to));
    if (!IsRegistered(target, bytes)) counts["pageable"] += bytes;
    memcpy(target, content, bytes);
    return 0;
  });
  return 0;
}
STAND_IN int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  ENTER("cuMemHostRegister_v2");
  if (current.empty()) return kInvalidContext;
  auto* const begin = static_cast<char*>(memory);
  for (const auto& [other, size] : registered) {
    if (begin < other + size && other < begin + bytes) return kAlreadyRegistered;
  }
  registered[begin] = bytes;
  return 0;
}
STAND_IN int cuMemHostUnregister(void* memory) {
  ENTER("cuMemHostUnregister");
  if (current.empty()) return kInvalidContext;
  return registered.erase(static_cast<char*>(memory)) == 1 ? 0 : kNotRegistered;
}
STAND_IN int cuPointerGetAttribute(void* out, int attribute, uint64_t address) {
  ENTER("cuPointerGetAttribute");
  char* content = nullptr;
  const Allocation* const found = Find(address, 1, &content);
  if (found == nullptr) return kInvalidValue;
  if (attribute == 1) {
    memcpy(out, &found->context, sizeof(found->context));
  } else if (attribute == 9) {
    memcpy(out, &found->device, sizeof(found->device));
  } else {
    return kInvalidValue;
  }
  return 0;
}
STAND_IN int cuGetErrorString(int error, const char** out) {
  ENTER("cuGetErrorString");
  *out = error == 700 ? "an illegal memory access was encountered" : "invalid argument";
  return 0;
}
