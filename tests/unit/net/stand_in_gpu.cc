// A stand-in for NVIDIA's driver, for collectives and the trainer on machines without a GPU. What a stream is given is done
// in order by a thread of its own, device memory cannot be read by the CPU and is garbage at first, and freeing anything
// waits for all streams, as the driver's own may. MUSTER_STAND_IN_NCCL=devices=N says how many devices there are, and
// copies-to-host-take=MILLISECONDS how long each copy into host memory takes. Kernels
// are those of train/kernels.cu, compiled for the CPU, whatever the image; stand_in_kernels.cc runs them. Names and values
// are those of CUDA's cuda.h.
#include "stand_in_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace muster::stand_in {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kPointerContext = 1;
constexpr int kPointerDevice = 9;
constexpr unsigned kMostThreadsOfAll = 1024;

struct Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false;
  bool ended = false;

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !work.empty() || ended; });
      if (work.empty()) return;
      const auto next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return work.empty() && !busy; });
  }
};
struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  int recorded = 0;
  int reached = 0;
};
struct Allocation {
  std::size_t bytes;
  std::byte* content;
};

std::mutex mutex;  // guards what follows
std::map<std::uintptr_t, Allocation> allocations;
std::map<Stream*, std::shared_ptr<Stream>> streams;
thread_local int* current = nullptr;
thread_local std::vector<int*> pushed;  // below it
std::array<int, 64> contexts;           // the address of one is the context of a device

int Devices() {
  const std::string asked = Asked("devices");
  return asked.empty() ? 8 : std::atoi(asked.c_str());
}

void WaitForAll() {
  std::map<Stream*, std::shared_ptr<Stream>> all;
  {
    const std::lock_guard lock(mutex);
    all = streams;
  }
  for (auto& [address, stream] : all) stream->Wait();
}

}  // namespace

std::string Asked(const std::string& fault) {
  const char* set = std::getenv("MUSTER_STAND_IN_NCCL");
  const std::string all = "," + std::string(set == nullptr ? "" : set) + ",";
  const std::size_t found = all.find("," + fault + "=");
  if (found == std::string::npos) return {};
  const std::size_t begin = found + fault.size() + 2;
  return all.substr(begin, all.find(',', begin) - begin);
}

bool IsAsked(const std::string& fault) {
  const char* set = std::getenv("MUSTER_STAND_IN_NCCL");
  return ("," + std::string(set == nullptr ? "" : set) + ",").find("," + fault + ",") != std::string::npos;
}

int CurrentDevice() {
  return current == nullptr ? -1 : static_cast<int>(current - contexts.data());
}
bool SeesOneDevice() {
  return Devices() == 1;
}

void Enqueue(void* stream, std::function<void()> work) {
  auto* const to = static_cast<Stream*>(stream);
  const std::lock_guard lock(to->mutex);
  to->work.push_back(std::move(work));
  to->changed.notify_all();
}

std::byte* Behind(const void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto found = allocations.upper_bound(at);
  if (found == allocations.begin()) return nullptr;
  --found;
  const std::size_t offset = at - found->first;
  if (offset > found->second.bytes || bytes > found->second.bytes - offset) return nullptr;
  return found->second.content + offset;
}

#define STAND_IN extern "C" __attribute__((visibility("default")))

STAND_IN int cuInit(unsigned) {
  return 0;
}
STAND_IN int cuDeviceGetCount(int* out) {
  *out = Devices();
  return 0;
}
STAND_IN int cuDeviceGet(int* out, int ordinal) {
  *out = ordinal;
  return ordinal < Devices() ? 0 : kInvalidDevice;
}
STAND_IN int cuDevicePrimaryCtxRetain(void** out, int device) {
  *out = &contexts.at(static_cast<std::size_t>(device));
  return 0;
}
STAND_IN int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
STAND_IN int cuCtxSetCurrent(void* wanted) {
  current = static_cast<int*>(wanted);
  return 0;
}
STAND_IN int cuStreamCreate(void** out, unsigned) {
  if (current == nullptr) return kInvalidContext;
  const auto stream = std::make_shared<Stream>();
  std::thread([stream] { stream->Run(); }).detach();
  const std::lock_guard lock(mutex);
  streams[stream.get()] = stream;
  *out = stream.get();
  return 0;
}
STAND_IN int cuStreamDestroy_v2(void* stream) {
  WaitForAll();
  const std::lock_guard lock(mutex);
  const auto found = streams.find(static_cast<Stream*>(stream));
  if (found == streams.end()) return kInvalidValue;
  {
    const std::lock_guard stream_lock(found->second->mutex);
    found->second->ended = true;
    found->second->changed.notify_all();
  }
  streams.erase(found);
  return 0;
}
STAND_IN int cuEventCreate(void** out, unsigned) {
  if (current == nullptr) return kInvalidContext;
  *out = new std::shared_ptr<Event>(std::make_shared<Event>());
  return 0;
}
STAND_IN int cuEventDestroy_v2(void* event) {
  delete static_cast<std::shared_ptr<Event>*>(event);
  return 0;
}
STAND_IN int cuEventRecord(void* event, void* stream) {
  const std::shared_ptr<Event> recorded = *static_cast<std::shared_ptr<Event>*>(event);
  int number = 0;
  {
    const std::lock_guard lock(recorded->mutex);
    number = ++recorded->recorded;
  }
  Enqueue(stream, [recorded, number] {
    const std::lock_guard lock(recorded->mutex);
    recorded->reached = number;
    recorded->changed.notify_all();
  });
  return 0;
}
STAND_IN int cuEventQuery(void* event) {
  const std::shared_ptr<Event>& asked = *static_cast<std::shared_ptr<Event>*>(event);
  const std::lock_guard lock(asked->mutex);
  return asked->reached == asked->recorded ? 0 : kNotReady;
}
// What libmuster uses besides. A context is any, and a stream is never captured into a graph.
STAND_IN int cuCtxPushCurrent_v2(void* wanted) {
  pushed.push_back(current);
  current = static_cast<int*>(wanted);
  return 0;
}
STAND_IN int cuCtxPopCurrent_v2(void** out) {
  if (pushed.empty()) return kInvalidContext;
  *out = std::exchange(current, pushed.back());
  pushed.pop_back();
  return 0;
}
STAND_IN int cuThreadExchangeStreamCaptureMode(int*) {
  return 0;
}
STAND_IN int cuStreamIsCapturing(void*, int* out) {
  *out = 0;
  return 0;
}
STAND_IN int cuStreamGetCtx(void*, void** out) {
  *out = contexts.data();
  return 0;
}
STAND_IN int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  const std::shared_ptr<Event> awaited = *static_cast<std::shared_ptr<Event>*>(event);
  int number = 0;
  {
    const std::lock_guard lock(awaited->mutex);
    number = awaited->recorded;
  }
  Enqueue(stream, [awaited, number] {
    std::unique_lock lock(awaited->mutex);
    awaited->changed.wait(lock, [&] { return awaited->reached >= number; });
  });
  return 0;
}
STAND_IN int cuMemHostRegister_v2(void*, std::size_t, unsigned) {
  return current == nullptr ? kInvalidContext : 0;
}
STAND_IN int cuMemHostUnregister(void*) {
  return current == nullptr ? kInvalidContext : 0;
}
STAND_IN int cuPointerGetAttribute(void* out, int attribute, unsigned long long address) {
  if (Behind(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), 1) == nullptr)
    return kInvalidValue;
  if (attribute == kPointerContext) {
    *static_cast<void**>(out) = contexts.data();
  } else if (attribute == kPointerDevice) {
    *static_cast<int*>(out) = 0;
  } else {
    return kInvalidValue;
  }
  return 0;
}
STAND_IN int cuMemAlloc_v2(unsigned long long* out, std::size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return kOutOfMemory;
  auto* const content = new std::byte[bytes];
  std::fill_n(content, bytes, std::byte{0xff});
  const std::lock_guard lock(mutex);
  allocations[reinterpret_cast<std::uintptr_t>(address)] = {bytes, content};
  *out = reinterpret_cast<std::uintptr_t>(address);
  return 0;
}
STAND_IN int cuMemFree_v2(unsigned long long address) {
  WaitForAll();
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(static_cast<std::uintptr_t>(address));
  if (found == allocations.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(found->first), found->second.bytes);
  delete[] found->second.content;
  allocations.erase(found);
  return 0;
}
STAND_IN int cuMemcpyAsync(unsigned long long to, unsigned long long from, std::size_t bytes, void* stream) {
  const auto memory = [bytes](unsigned long long address) {
    void* const plain = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    std::byte* const device = Behind(plain, bytes);
    return device != nullptr ? device : static_cast<std::byte*>(plain);
  };
  const bool is_to_host = Behind(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), bytes) == nullptr;
  const std::chrono::milliseconds time(is_to_host ? std::atoi(Asked("copies-to-host-take").c_str()) : 0);
  Enqueue(stream, [target = memory(to), source = memory(from), bytes, time] {
    std::this_thread::sleep_for(time);
    std::memcpy(target, source, bytes);
  });
  return 0;
}
STAND_IN int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t bytes, void* stream) {
  std::byte* const memory = Behind(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), bytes);
  if (memory == nullptr) return kInvalidValue;
  Enqueue(stream, [memory, value, bytes] { std::memset(memory, value, bytes); });
  return 0;
}
STAND_IN int cuStreamSynchronize(void* stream) {
  static_cast<Stream*>(stream)->Wait();
  return 0;
}
STAND_IN int cuModuleLoadData(void** out, const void* image) {
  if (current == nullptr) return kInvalidContext;
  *out = const_cast<void*>(image);
  return image == nullptr ? kInvalidValue : 0;
}
STAND_IN int cuModuleUnload(void*) {
  return 0;
}
STAND_IN int cuModuleGetFunction(void** out, void*, const char* name) {
  *out = const_cast<void*>(static_cast<const void*>(FindKernel(name)));
  return *out == nullptr ? kNotFound : 0;
}
STAND_IN int cuLaunchKernel(void* function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                            unsigned threads, unsigned threads_y, unsigned threads_z, unsigned, void* stream,
                            void** arguments, void**) {
  if (current == nullptr) return kInvalidContext;
  if (blocks == 0 || threads == 0 || threads > kMostThreadsOfAll || blocks_y * blocks_z != 1 ||
      threads_y * threads_z != 1) {
    return kInvalidValue;
  }
  std::function<void()> launch = Bind(static_cast<const Kernel*>(function), blocks, threads, arguments);
  if (!launch) return kInvalidValue;
  Enqueue(stream, std::move(launch));
  return 0;
}
STAND_IN int cuGetErrorString(int, const char** out) {
  *out = "an error of the stand-in's";
  return 0;
}

}  // namespace muster::stand_in
