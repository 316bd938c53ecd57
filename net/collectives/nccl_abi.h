// What Muster uses of NCCL's binary interface, declared after NVIDIA's public documentation: Muster is built without
// NCCL. tests/frameworks/nccl_abi_check.cc holds it against nccl.h of the releases that kOldest and the tests name.
#pragma once

#include <array>
#include <climits>
#include <cstddef>

namespace muster::nccl {

struct CommunicatorHandle;  // opaque
using Communicator = CommunicatorHandle*;
using Stream = void*;  // of CUDA

// As ncclGetVersion says it: 2.21.5 is 22105.
inline constexpr int kOldest = 22105;
inline constexpr int kScalable = 22304;  // has ncclCommInitRankScalable

// ncclResult_t
enum Code : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
// ncclDataType_t
enum Type : int { kUint8 = 1, kInt64 = 4, kFloat32 = 7 };
// ncclRedOp_t
enum Reduction : int { kSum = 0, kMax = 2 };

struct UniqueId {  // ncclUniqueId
  std::array<char, 128> bytes;
};

// The beginning of ncclConfig_t. A newer NCCL takes what lies beyond `size` as not set.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldest;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// The functions, by the ends of their names.
struct Functions {
  Code (*GetVersion)(int* out);
  Code (*GetUniqueId)(UniqueId* out);
  Code (*CommInitRankConfig)(Communicator* out, int size, UniqueId id, int rank, Config* config);
  // From 2.23 on; null before.
  Code (*CommInitRankScalable)(Communicator* out, int size, int rank, int id_count, UniqueId* ids,
                               Config* config);
  Code (*CommFinalize)(Communicator comm);
  Code (*CommDestroy)(Communicator comm);
  Code (*CommAbort)(Communicator comm);
  Code (*CommGetAsyncError)(Communicator comm, Code* out);
  const char* (*GetErrorString)(Code code);
  const char* (*GetLastError)(Communicator comm);
  Code (*AllReduce)(const void* from, void* to, std::size_t count, Type type, Reduction op, Communicator comm,
                    Stream stream);
  Code (*ReduceScatter)(const void* from, void* to, std::size_t part_count, Type type, Reduction op,
                        Communicator comm, Stream stream);
  Code (*AllGather)(const void* from, void* to, std::size_t part_count, Type type, Communicator comm,
                    Stream stream);
  Code (*Broadcast)(const void* from, void* to, std::size_t count, Type type, int root, Communicator comm,
                    Stream stream);
};

}  // namespace muster::nccl
