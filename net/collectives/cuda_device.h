// A CUDA device, as far as collectives and the trainer need one: a stream, events, memory, and kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/collectives/cuda_abi.h"

namespace muster {

class CudaDevice;

// What a stream has been given until a moment. The device outlives it. Any thread may ask it.
class CudaEvent {
 public:
  CudaEvent(const CudaDevice& device, cuda::Event event) : device_(device), event_(event) {}
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent();

  // Whether the stream has done all of it.
  [[nodiscard]] Result<bool> Reached() const;

 private:
  const CudaDevice& device_;
  const cuda::Event event_;
};

// Not thread-safe. Nothing here waits for the device, but Wait, Free, and a copy into memory that the host can page out.
class CudaDevice {
 public:
  // `file`: the driver, as dlopen takes it, "libcuda.so.1". `ordinal`: the place among the devices that the process
  // sees; where it sees one only, that one. kNotFound without driver or device.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> Open(const std::string& file, int ordinal);

  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // Makes the device the calling thread's.
  [[nodiscard]] Status Enter() const;

  [[nodiscard]] cuda::Stream stream() const { return stream_; }

  // Device memory of at least so many bytes, the same one each time unless it has to grow. It is this object's.
  [[nodiscard]] Result<std::byte*> Staging(std::size_t bytes);
  // Memory of the device's, of any content; Free first waits for all that the device was given.
  [[nodiscard]] Result<void*> Allocate(std::size_t bytes) const;
  void Free(void* memory) const;

  // These are done behind all that the stream was given before.
  [[nodiscard]] Status Copy(void* to, const void* from, std::size_t bytes) const;
  [[nodiscard]] Status Zero(void* to, std::size_t bytes) const;
  // `arguments`: a pointer to each. At least one block of at least one thread.
  [[nodiscard]] Status Launch(cuda::Function kernel, unsigned int blocks, unsigned int threads,
                              void** arguments) const;

  // Loads the kernels of an image, as cuModuleLoadData takes it; once. Then gives them by name.
  [[nodiscard]] Status Load(const char* image);
  [[nodiscard]] Result<cuda::Function> Find(const char* kernel) const;

  // Until the stream has done all that it was given.
  [[nodiscard]] Status Wait() const;
  [[nodiscard]] Result<std::shared_ptr<const CudaEvent>> Record() const;

  // Whether the stream has done all that it was given before the last Mark.
  [[nodiscard]] Status Mark();
  [[nodiscard]] Result<bool> Reached() { return HasReached(event_); }

  // What the stream was given may never end, and to free anything would wait for it: leave all to the process's end.
  void Abandon() { abandoned_ = true; }

 private:
  friend class CudaEvent;
  CudaDevice(const cuda::Functions& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  [[nodiscard]] Status Check(const char* what, int code) const;
  [[nodiscard]] Result<bool> HasReached(cuda::Event event) const;

  const cuda::Functions driver_;
  const int ordinal_;
  bool abandoned_ = false;
  int device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  cuda::Module module_ = nullptr;
  cuda::Address staging_ = 0;
  std::size_t staging_bytes_ = 0;
};

}  // namespace muster
