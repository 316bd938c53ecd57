// What Muster asks of NVML, declared after NVIDIA's public NVML API reference and loaded when it is there. Values of
// enumerations and layouts of structures are part of NVML's stable C ABI.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace muster::nvml {

struct DeviceHandle;  // opaque
using Device = DeviceHandle*;

// nvmlReturn_t, as far as it is told apart here.
enum Return : int {
  kSuccess = 0,
  kNotSupported = 3,
  kNoPermission = 4,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kFunctionNotFound = 13,
  kVersionMismatch = 25,  // of an argument's structure
};
// nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlEnableState_t
inline constexpr int kUncorrected = 1;
inline constexpr int kVolatile = 0;
inline constexpr int kEnabled = 1;
// nvmlClocksEventReason*
inline constexpr unsigned long long kHardwareSlowdown = 0x08;
inline constexpr unsigned long long kSoftwareThermal = 0x20;
inline constexpr unsigned long long kHardwareThermal = 0x40;
inline constexpr unsigned long long kPowerBrake = 0x80;

struct Memory {  // nvmlMemory_t; bytes
  unsigned long long total = 0, free = 0, used = 0;
};
struct MemoryV2 {  // nvmlMemory_v2_t: without what the driver keeps for itself
  unsigned int version = sizeof(MemoryV2) | 2U << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
struct Process {  // nvmlProcessInfo_t since the functions' _v2
  unsigned int pid = 0;
  unsigned long long used_bytes = 0;
  unsigned int gpu_instance = 0, compute_instance = 0;
};

// The library's functions; those that an older one lacks are null.
struct Api {
  Return (*init)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*count)(unsigned int*) = nullptr;
  Return (*by_index)(unsigned int, Device*) = nullptr;
  Return (*ecc_errors)(Device, int type, int counter, unsigned long long*) = nullptr;
  Return (*remapped_rows)(Device, unsigned int* corrected, unsigned int* uncorrected, unsigned int* pending,
                          unsigned int* failed) = nullptr;
  Return (*retired_pending)(Device, int* state) = nullptr;
  Return (*compute_processes)(Device, unsigned int* count, Process*) = nullptr;
  Return (*graphics_processes)(Device, unsigned int* count, Process*) = nullptr;
  Return (*memory)(Device, Memory*) = nullptr;
  Return (*memory_v2)(Device, MemoryV2*) = nullptr;
  Return (*throttle_reasons)(Device, unsigned long long*) = nullptr;
};

// kNotFound when there is no such library; kInvalid when it is something else. It stays loaded.
Result<Api> Load(const std::string& library);

}  // namespace muster::nvml
