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

// The memory behind an address of the device's; nullptr when it is none.
[[nodiscard]] std::byte* Behind(const void* address, std::size_t bytes);

}  // namespace muster::stand_in
