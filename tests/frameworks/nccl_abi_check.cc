// Holds net/collectives/nccl_abi.h and cuda_abi.h against NVIDIA's own headers. Compiling it is the check.
#include <cuda.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "net/collectives/cuda_abi.h"
#include "net/collectives/nccl_abi.h"

namespace muster {
namespace {

// Two types that a call passes in the same way. Pointers are as good as one another: what they point to has a check of
// its own where Muster looks at it.
template <typename Ours, typename Theirs>
constexpr bool kAlike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>&& std::is_class_v<Ours> == std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameCall<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<kAlike<OurResult, TheirResult> && (kAlike<Ours, Theirs> && ...)> {
};

constexpr bool Equal(int ours, int theirs) {
  return ours == theirs;
}

// `name` is a member of our functions, `prefix##name##suffix` theirs.
#define SAME_CALL(functions, prefix, name, suffix) \
  static_assert(SameCall<decltype(functions::name), decltype(&prefix##name##suffix)>::value, #name)

SAME_CALL(nccl::Functions, nccl, GetVersion, );
SAME_CALL(nccl::Functions, nccl, GetUniqueId, );
SAME_CALL(nccl::Functions, nccl, CommInitRankConfig, );
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 4)
SAME_CALL(nccl::Functions, nccl, CommInitRankScalable, );
static_assert(Equal(nccl::kScalable, NCCL_VERSION(2, 23, 4)));
#endif
SAME_CALL(nccl::Functions, nccl, CommFinalize, );
SAME_CALL(nccl::Functions, nccl, CommDestroy, );
SAME_CALL(nccl::Functions, nccl, CommAbort, );
SAME_CALL(nccl::Functions, nccl, CommGetAsyncError, );
SAME_CALL(nccl::Functions, nccl, GetErrorString, );
SAME_CALL(nccl::Functions, nccl, GetLastError, );
SAME_CALL(nccl::Functions, nccl, AllReduce, );
SAME_CALL(nccl::Functions, nccl, ReduceScatter, );
SAME_CALL(nccl::Functions, nccl, AllGather, );
SAME_CALL(nccl::Functions, nccl, Broadcast, );

static_assert(Equal(nccl::kSuccess, ncclSuccess));
static_assert(Equal(nccl::kUnhandledCudaError, ncclUnhandledCudaError));
static_assert(Equal(nccl::kSystemError, ncclSystemError));
static_assert(Equal(nccl::kInternalError, ncclInternalError));
static_assert(Equal(nccl::kInvalidArgument, ncclInvalidArgument));
static_assert(Equal(nccl::kInvalidUsage, ncclInvalidUsage));
static_assert(Equal(nccl::kRemoteError, ncclRemoteError));
static_assert(Equal(nccl::kInProgress, ncclInProgress));
static_assert(Equal(nccl::kUint8, ncclUint8));
static_assert(Equal(nccl::kInt64, ncclInt64));
static_assert(Equal(nccl::kFloat32, ncclFloat32));
static_assert(Equal(nccl::kSum, ncclSum));
static_assert(Equal(nccl::kMax, ncclMax));

static_assert(sizeof(nccl::UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(nccl::kOldest <= NCCL_VERSION_CODE);

constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
constexpr nccl::Config kOurs;
#define SAME_FIELD(ours, theirs)                                                 \
  static_assert(offsetof(nccl::Config, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(sizeof(kOurs.ours) == sizeof(kTheirs.theirs))
SAME_FIELD(size, size);
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(cga_cluster_size, cgaClusterSize);
SAME_FIELD(min_ctas, minCTAs);
SAME_FIELD(max_ctas, maxCTAs);
SAME_FIELD(net_name, netName);
SAME_FIELD(split_share, splitShare);
static_assert(kOurs.magic == kTheirs.magic);
static_assert(kOurs.cga_cluster_size == kTheirs.cgaClusterSize);
static_assert(kOurs.min_ctas == kTheirs.minCTAs && kOurs.max_ctas == kTheirs.maxCTAs);
static_assert(kOurs.net_name == kTheirs.netName && kOurs.split_share == kTheirs.splitShare);
// What the oldest release has, and no more.
static_assert(NCCL_VERSION_CODE > nccl::kOldest ? sizeof(nccl::Config) <= sizeof(ncclConfig_t)
                                                : sizeof(nccl::Config) == sizeof(ncclConfig_t));

SAME_CALL(cuda::Functions, cu, Init, );
SAME_CALL(cuda::Functions, cu, DeviceGetCount, );
SAME_CALL(cuda::Functions, cu, DeviceGet, );
SAME_CALL(cuda::Functions, cu, DevicePrimaryCtxRetain, );
SAME_CALL(cuda::Functions, cu, DevicePrimaryCtxRelease, _v2);
SAME_CALL(cuda::Functions, cu, CtxSetCurrent, );
SAME_CALL(cuda::Functions, cu, StreamCreate, );
SAME_CALL(cuda::Functions, cu, StreamDestroy, _v2);
SAME_CALL(cuda::Functions, cu, StreamSynchronize, );
SAME_CALL(cuda::Functions, cu, EventCreate, );
SAME_CALL(cuda::Functions, cu, EventDestroy, _v2);
SAME_CALL(cuda::Functions, cu, EventRecord, );
SAME_CALL(cuda::Functions, cu, EventQuery, );
SAME_CALL(cuda::Functions, cu, MemAlloc, _v2);
SAME_CALL(cuda::Functions, cu, MemFree, _v2);
SAME_CALL(cuda::Functions, cu, MemcpyAsync, );
SAME_CALL(cuda::Functions, cu, MemsetD8Async, );
SAME_CALL(cuda::Functions, cu, ModuleLoadData, );
SAME_CALL(cuda::Functions, cu, ModuleUnload, );
SAME_CALL(cuda::Functions, cu, ModuleGetFunction, );
SAME_CALL(cuda::Functions, cu, LaunchKernel, );
SAME_CALL(cuda::Functions, cu, GetErrorString, );
static_assert(Equal(cuda::kSuccess, CUDA_SUCCESS));
static_assert(Equal(cuda::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(Equal(cuda::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(Equal(cuda::kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(Equal(cuda::kEventNoTiming, CU_EVENT_DISABLE_TIMING));

}  // namespace
}  // namespace muster
