// The other half of stand_in_gpu.cc, for stand_in_nccl.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace muster::stand_in {

// MUSTER_STAND_IN_NCCL is a list of faults between commas, "abort-hangs,operation-fails=2".
[[nodiscard]] bool IsAsked(const std::string& fault);
// What is behind the "=" of a fault; empty when it is not asked for.
[[nodiscard]] std::string Asked(const std::string& fault);

// Gives a stream work, which is done behind all that it was given before.
void Enqueue(void* stream, std::function<void()> work);

// The calling thread's device; -1: none.
[[nodiscard]] int CurrentDevice();
// Whether this process sees one device of the machine only.
[[nodiscard]] bool SeesOneDevice();

// The memory behind an address of the device's; nullptr when it is none.
[[nodiscard]] std::byte* Behind(const void* address, std::size_t bytes);

// A kernel of train/kernels.cu; nullptr when there is none of that name.
struct Kernel;
[[nodiscard]] const Kernel* FindKernel(const std::string& name);
// A launch of it, with a copy of its arguments; empty when one of them is an address that is not the device's. A block has one
// thread, or as many as MUSTER_STAND_IN_NCCL=threads=N says, if it was to have so many.
[[nodiscard]] std::function<void()> Bind(const Kernel* kernel, unsigned blocks, unsigned threads,
                                         void** arguments);

}  // namespace muster::stand_in
