// The trainer's CUDA kernels, compiled for the CPU, and how the stand-in for NVIDIA's driver runs them. The threads of a
// block are threads here too, so that a block's loops and barriers are what is tested.
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/unit/net/stand_in_gpu.h"

namespace {

struct Place {
  unsigned int x = 0;
};
thread_local Place threadIdx;
thread_local Place blockIdx;
// Of the launch under way: there is one at a time, for what its threads share is static.
Place blockDim;
Place gridDim;
std::mutex launching;
std::barrier<>* together = nullptr;

void __syncthreads() {  // NOLINT(bugprone-reserved-identifier)
  if (together != nullptr) together->arrive_and_wait();
}

}  // namespace

#define __device__
#define __shared__ static
#include "train/kernels.cu"
#undef __shared__
#undef __device__

namespace muster::stand_in {

struct Kernel {
  const char* name;
  std::function<void()> (*bind)(void** arguments);
};

namespace {

// The device's memory as the CPU sees it; false for an address of other memory. Null stays null.
template <typename T>
bool ToHost(T& argument) {
  if constexpr (std::is_pointer_v<T>) {
    if (argument == nullptr) return true;
    argument = reinterpret_cast<T>(Behind(argument, 1));
    return argument != nullptr;
  }
  return true;
}

template <auto Function, typename... Args, std::size_t... Is>
std::function<void()> BindAll(void (*)(Args...), void** arguments, std::index_sequence<Is...>) {
  std::tuple<Args...> copies(*static_cast<Args*>(arguments[Is])...);
  if (!(ToHost(std::get<Is>(copies)) && ...)) return {};
  return [copies] { std::apply(Function, copies); };
}

template <auto Function, typename... Args>
std::function<void()> BindTo(void (*function)(Args...), void** arguments) {
  return BindAll<Function>(function, arguments, std::index_sequence_for<Args...>());
}

#define KERNEL(name)                                                        \
  {                                                                         \
#name, [](void** arguments) { return BindTo<&name>(&name, arguments); } \
  }
const Kernel kKernels[] = {
    KERNEL(muster_add),
    KERNEL(muster_divide),
    KERNEL(muster_embed),
    KERNEL(muster_embed_tokens),
    KERNEL(muster_embed_positions),
    KERNEL(muster_bias),
    KERNEL(muster_column_sums),
    KERNEL(muster_norm_sums),
    KERNEL(muster_add_partials),
    KERNEL(muster_norm_forward),
    KERNEL(muster_norm_backward),
    KERNEL(muster_gelu_forward),
    KERNEL(muster_gelu_backward),
    KERNEL(muster_softmax),
    KERNEL(muster_softmax_backward),
    KERNEL(muster_losses),
    KERNEL(muster_mean),
    KERNEL(muster_losses_backward),
    KERNEL(muster_squares),
    KERNEL(muster_clip),
    KERNEL(muster_scale),
    KERNEL(muster_adam),
};

// One thread of each block, one block after the other.
void RunBlocks(const std::function<void()>& kernel, unsigned blocks, unsigned thread) {
  threadIdx.x = thread;
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    kernel();
    __syncthreads();
  }
}

}  // namespace

const Kernel* FindKernel(const std::string& name) {
  for (const Kernel& kernel : kKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

std::function<void()> Bind(const Kernel* kernel, unsigned blocks, unsigned threads, void** arguments) {
  std::function<void()> bound = kernel->bind(arguments);
  if (!bound) return {};
  const std::string asked = Asked("threads");
  if (asked.empty()) {
    threads = 1;
  } else {
    threads = std::min(threads, static_cast<unsigned>(std::atoi(asked.c_str())));
  }
  return [bound = std::move(bound), blocks, threads] {
    const std::lock_guard lock(launching);
    blockDim.x = threads;
    gridDim.x = blocks;
    if (threads == 1) return RunBlocks(bound, blocks, 0);
    std::barrier barrier(threads);
    together = &barrier;
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads; ++thread)
      others.emplace_back([&, thread] { RunBlocks(bound, blocks, thread); });
    RunBlocks(bound, blocks, 0);
    for (std::thread& other : others) other.join();
    together = nullptr;
  };
}

}  // namespace muster::stand_in
