#include "net/collectives/cuda_device.h"

#include <dlfcn.h>

#include <cstdint>

#include "base/symbols.h"

namespace muster {
namespace {

void* PointerTo(cuda::Address address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

cuda::Address AddressOf(const void* memory) {
  return static_cast<cuda::Address>(reinterpret_cast<std::uintptr_t>(memory));
}

Result<cuda::Functions> LoadDriver(const std::string& file) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return Error{Errc::kNotFound, std::string("NVIDIA's driver cannot be loaded: ") + ::dlerror()};
  cuda::Functions driver{};
  Symbols look{handle, {}};
  look("cuInit", driver.Init);
  look("cuDeviceGetCount", driver.DeviceGetCount);
  look("cuDeviceGet", driver.DeviceGet);
  look("cuDevicePrimaryCtxRetain", driver.DevicePrimaryCtxRetain);
  look("cuDevicePrimaryCtxRelease_v2", driver.DevicePrimaryCtxRelease);
  look("cuCtxSetCurrent", driver.CtxSetCurrent);
  look("cuStreamCreate", driver.StreamCreate);
  look("cuStreamDestroy_v2", driver.StreamDestroy);
  look("cuStreamSynchronize", driver.StreamSynchronize);
  look("cuEventCreate", driver.EventCreate);
  look("cuEventDestroy_v2", driver.EventDestroy);
  look("cuEventRecord", driver.EventRecord);
  look("cuEventQuery", driver.EventQuery);
  look("cuMemAlloc_v2", driver.MemAlloc);
  look("cuMemFree_v2", driver.MemFree);
  look("cuMemcpyAsync", driver.MemcpyAsync);
  look("cuMemsetD8Async", driver.MemsetD8Async);
  look("cuModuleLoadData", driver.ModuleLoadData);
  look("cuModuleUnload", driver.ModuleUnload);
  look("cuModuleGetFunction", driver.ModuleGetFunction);
  look("cuLaunchKernel", driver.LaunchKernel);
  look("cuGetErrorString", driver.GetErrorString);
  if (!look.missing.empty()) return Error{Errc::kInvalid, file + " has no function " + look.missing};
  return driver;
}

}  // namespace

Status CudaDevice::Check(const char* what, int code) const {
  if (code == cuda::kSuccess) return {};
  const char* text = nullptr;
  if (driver_.GetErrorString(code, &text) != cuda::kSuccess || text == nullptr) text = "unknown";
  return Error{Errc::kInternal, "CUDA device " + std::to_string(ordinal_) + ", " + what + ": " + text +
                                    " (error " + std::to_string(code) + ")"};
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Open(const std::string& file, int ordinal) {
  const Result<cuda::Functions> driver = LoadDriver(file);
  if (!driver) return driver.error();
  int count = 0;
  int code = driver->Init(0);
  if (code == cuda::kSuccess) code = driver->DeviceGetCount(&count);
  if (code == cuda::kNoDevice || (code == cuda::kSuccess && count == 0))
    return Error{Errc::kNotFound, "this process sees no CUDA device"};
  if (count == 1) ordinal = 0;
  std::unique_ptr<CudaDevice> device(new CudaDevice(*driver, ordinal));
  Status status = device->Check("asking for it", code);
  if (!status) return status.error();
  if (ordinal >= count) {
    return Error{Errc::kInvalid, "LOCAL_RANK is " + std::to_string(ordinal) + ", but this process sees " +
                                     std::to_string(count) + " CUDA devices"};
  }
  status = device->Check("asking for it", driver->DeviceGet(&device->device_, ordinal));
  if (status) {
    status = device->Check("retaining its context",
                           driver->DevicePrimaryCtxRetain(&device->context_, device->device_));
  }
  if (status) status = device->Enter();
  if (status) {
    status =
        device->Check("making a stream", driver->StreamCreate(&device->stream_, cuda::kStreamNonBlocking));
  }
  if (status)
    status = device->Check("making an event", driver->EventCreate(&device->event_, cuda::kEventNoTiming));
  if (!status) return status.error();
  return device;
}

CudaDevice::~CudaDevice() {
  if (abandoned_ || context_ == nullptr || !Enter()) return;
  if (staging_ != 0) (void)driver_.MemFree(staging_);
  if (module_ != nullptr) (void)driver_.ModuleUnload(module_);
  if (event_ != nullptr) (void)driver_.EventDestroy(event_);
  if (stream_ != nullptr) (void)driver_.StreamDestroy(stream_);
  (void)driver_.DevicePrimaryCtxRelease(device_);
}

Status CudaDevice::Enter() const {
  return Check("entering its context", driver_.CtxSetCurrent(context_));
}

Result<std::byte*> CudaDevice::Staging(std::size_t bytes) {
  if (bytes > staging_bytes_) {
    if (staging_ != 0) (void)driver_.MemFree(staging_);
    staging_ = 0;
    staging_bytes_ = 0;
    const Result<void*> memory = Allocate(bytes);
    if (!memory) return memory.error();
    staging_ = AddressOf(*memory);
    staging_bytes_ = bytes;
  }
  return static_cast<std::byte*>(PointerTo(staging_));
}

Status CudaDevice::Copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return Check("copying", driver_.MemcpyAsync(AddressOf(to), AddressOf(from), bytes, stream_));
}

Result<void*> CudaDevice::Allocate(std::size_t bytes) const {
  cuda::Address address = 0;
  const std::string what = "allocating " + std::to_string(bytes) + " bytes";
  if (Status got = Check(what.c_str(), driver_.MemAlloc(&address, bytes)); !got) return got.error();
  return PointerTo(address);
}

void CudaDevice::Free(void* memory) const {
  (void)driver_.MemFree(AddressOf(memory));
}

Status CudaDevice::Zero(void* to, std::size_t bytes) const {
  if (bytes == 0) return {};
  return Check("clearing memory", driver_.MemsetD8Async(AddressOf(to), 0, bytes, stream_));
}

Status CudaDevice::Launch(cuda::Function kernel, unsigned int blocks, unsigned int threads,
                          void** arguments) const {
  return Check("launching a kernel",
               driver_.LaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream_, arguments, nullptr));
}

Status CudaDevice::Load(const char* image) {
  return Check("loading the kernels", driver_.ModuleLoadData(&module_, image));
}

Result<cuda::Function> CudaDevice::Find(const char* kernel) const {
  cuda::Function found = nullptr;
  if (Status good = Check(kernel, driver_.ModuleGetFunction(&found, module_, kernel)); !good)
    return good.error();
  return found;
}

Status CudaDevice::Wait() const {
  return Check("working", driver_.StreamSynchronize(stream_));
}

Result<std::shared_ptr<const CudaEvent>> CudaDevice::Record() const {
  cuda::Event made = nullptr;
  if (Status good = Check("making an event", driver_.EventCreate(&made, cuda::kEventNoTiming)); !good)
    return good.error();
  auto event = std::make_shared<const CudaEvent>(*this, made);
  if (Status good = Check("recording an event", driver_.EventRecord(made, stream_)); !good)
    return good.error();
  return event;
}

CudaEvent::~CudaEvent() {
  if (device_.Enter()) (void)device_.driver_.EventDestroy(event_);
}

Result<bool> CudaEvent::Reached() const {
  if (Status entered = device_.Enter(); !entered) return entered.error();
  return device_.HasReached(event_);
}

Status CudaDevice::Mark() {
  return Check("recording an event", driver_.EventRecord(event_, stream_));
}

Result<bool> CudaDevice::HasReached(cuda::Event event) const {
  const int code = driver_.EventQuery(event);
  if (code == cuda::kNotReady) return false;
  if (Status good = Check("working", code); !good) return good.error();
  return true;
}

}  // namespace muster
