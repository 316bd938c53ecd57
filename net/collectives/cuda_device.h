// A CUDA device, as far as collectives on it need one: a stream, an event, and memory for what lives on the host.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "net/collectives/cuda_abi.h"

namespace muster {

// Not thread-safe. Nothing here waits for the device, but for a copy into memory that the host can page out.
class CudaDevice {
 public:
  // `file`: the driver, as dlopen takes it, "libcuda.so.1". `ordinal`: the place among the devices that the process
  // sees; where it sees one only, that one. kNotFound without driver or device.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> Open(const std::string& file, int ordinal);

  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // Makes the device the calling thread's.
  [[nodiscard]] Status Enter();

  [[nodiscard]] cuda::Stream stream() const { return stream_; }

  // Device memory of at least so many bytes, the same one each time unless it has to grow. It is this object's.
  [[nodiscard]] Result<std::byte*> Staging(std::size_t bytes);
  // Behind all that the stream was given before.
  [[nodiscard]] Status Copy(void* to, const void* from, std::size_t bytes);

  // Whether the stream has done all that it was given before the last Mark.
  [[nodiscard]] Status Mark();
  [[nodiscard]] Result<bool> Reached();

  // What the stream was given may never end, and to free anything would wait for it: leave all to the process's end.
  void Abandon() { abandoned_ = true; }

 private:
  CudaDevice(const cuda::Functions& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  [[nodiscard]] Status Check(const char* what, int code) const;

  const cuda::Functions driver_;
  const int ordinal_;
  bool abandoned_ = false;
  int device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  cuda::Address staging_ = 0;
  std::size_t staging_bytes_ = 0;
};

}  // namespace muster
