// A stand-in for NVIDIA's driver, for collectives on machines without a GPU. What a stream is given is done in order by a
// thread of its own, device memory cannot be read by the CPU, and freeing anything waits for all streams, as the driver's
// own may. MUSTER_STAND_IN_NCCL=devices=N says how many devices there are. Names and values are those of CUDA's cuda.h.
#include "stand_in_gpu.h"

#include <sys/mman.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace muster::stand_in {
namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kNotReady = 600;

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
thread_local void* current = nullptr;
int context = 0;  // its address is the context

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
STAND_IN int cuDevicePrimaryCtxRetain(void** out, int) {
  *out = &context;
  return 0;
}
STAND_IN int cuDevicePrimaryCtxRelease_v2(int) {
  return 0;
}
STAND_IN int cuCtxSetCurrent(void* wanted) {
  current = wanted;
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
  });
  return 0;
}
STAND_IN int cuEventQuery(void* event) {
  const std::shared_ptr<Event>& asked = *static_cast<std::shared_ptr<Event>*>(event);
  const std::lock_guard lock(asked->mutex);
  return asked->reached == asked->recorded ? 0 : kNotReady;
}
STAND_IN int cuMemAlloc_v2(unsigned long long* out, std::size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const content = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::lock_guard lock(mutex);
  allocations[reinterpret_cast<std::uintptr_t>(address)] = {bytes, static_cast<std::byte*>(content)};
  *out = reinterpret_cast<std::uintptr_t>(address);
  return 0;
}
STAND_IN int cuMemFree_v2(unsigned long long address) {
  WaitForAll();
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(static_cast<std::uintptr_t>(address));
  if (found == allocations.end()) return kInvalidValue;
  ::munmap(reinterpret_cast<void*>(found->first), found->second.bytes);
  ::munmap(found->second.content, found->second.bytes);
  allocations.erase(found);
  return 0;
}
STAND_IN int cuMemcpyAsync(unsigned long long to, unsigned long long from, std::size_t bytes, void* stream) {
  const auto memory = [bytes](unsigned long long address) {
    void* const plain = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
    std::byte* const device = Behind(plain, bytes);
    return device != nullptr ? device : static_cast<std::byte*>(plain);
  };
  Enqueue(stream,
          [target = memory(to), source = memory(from), bytes] { std::memcpy(target, source, bytes); });
  return 0;
}
STAND_IN int cuGetErrorString(int, const char** out) {
  *out = "an error of the stand-in's";
  return 0;
}

}  // namespace muster::stand_in
