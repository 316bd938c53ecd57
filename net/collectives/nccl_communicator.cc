#include "net/collectives/nccl_communicator.h"

#include <condition_variable>
#include <thread>
#include <utility>

#include "net/collectives/one_line.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kForAnotherCall(100);
constexpr milliseconds kAtTheEnd(300);
constexpr milliseconds kBetweenLooksAtState(1);

nccl::Type TypeOf(DataType type) {
  return type == DataType::kFloat ? nccl::kFloat32 : nccl::kInt64;
}

nccl::Reduction ReductionOf(ReduceOp op) {
  return op == ReduceOp::kSum ? nccl::kSum : nccl::kMax;
}

// Whether it is this member, or its program, that is wrong.
bool IsOwnFault(nccl::Code code) {
  return code == nccl::kUnhandledCudaError || code == nccl::kInternalError ||
         code == nccl::kInvalidArgument || code == nccl::kInvalidUsage;
}

}  // namespace

struct DetachedCall::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;
};

DetachedCall::DetachedCall(std::function<void()> call) : state_(std::make_shared<State>()) {
  std::thread([state = state_, call = std::move(call)] {
    call();
    const std::lock_guard lock(state->mutex);
    state->returned = true;
    state->changed.notify_all();
  }).detach();
}

bool DetachedCall::ReturnedBy(Clock::time_point deadline) const {
  if (state_ == nullptr) return true;
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline, [this] { return state_->returned; });
}

NcclCommunicator::~NcclCommunicator() {
  StartAbort();
  (void)AbortedBy(abort_begun_ + kAtTheEnd);
}

Error NcclCommunicator::Failed(const char* call, nccl::Code code) const {
  const char* said = library_.functions.GetErrorString(code);
  const char* more = library_.functions.GetLastError(nullptr);
  return Error{IsOwnFault(code) ? Errc::kInternal : Errc::kUnavailable,
               library_.name + ", " + call + ": " +
                   (said == nullptr ? "error " + std::to_string(code) : OneLine(said)) +
                   (more == nullptr || *more == '\0' ? "" : " (" + OneLine(more) + ")")};
}

Result<nccl::UniqueId> NcclCommunicator::NewId() const {
  nccl::UniqueId id{};
  if (const nccl::Code code = library_.functions.GetUniqueId(&id); code != nccl::kSuccess)
    return Failed("ncclGetUniqueId", code);
  return id;
}

Status NcclCommunicator::Begin(int size, std::vector<nccl::UniqueId> ids, int rank) {
  const std::lock_guard lock(calls_);
  size_ = size;
  rank_ = rank;
  nccl::Config config;
  nccl::Communicator made = nullptr;
  const bool one = ids.size() == 1;
  const nccl::Functions& call = library_.functions;
  const nccl::Code code =
      one ? call.CommInitRankConfig(&made, size, ids.front(), rank, &config)
          : call.CommInitRankScalable(&made, size, rank, static_cast<int>(ids.size()), ids.data(), &config);
  communicator_ = made;
  if (code != nccl::kSuccess && code != nccl::kInProgress)
    return Failed(one ? "ncclCommInitRankConfig" : "ncclCommInitRankScalable", code);
  return {};
}

Status NcclCommunicator::Enqueue(const Operation& operation, std::byte* data, nccl::Stream stream) {
  const std::lock_guard lock(calls_);
  nccl::Communicator const comm = communicator_;
  if (comm == nullptr) return Error{Errc::kUnavailable, "the communicator was aborted"};
  const nccl::Functions& call = library_.functions;
  const nccl::Type type = TypeOf(operation.type);
  const nccl::Reduction op = ReductionOf(operation.op);
  // This member's part, which NCCL takes for "in place".
  const std::size_t part_count = operation.count / static_cast<std::size_t>(size_);
  std::byte* const part = data + part_count * BytesOf(operation.type) * static_cast<std::size_t>(rank_);
  nccl::Code code = nccl::kSuccess;
  switch (operation.kind) {
    case Operation::Kind::kAllReduce:
    case Operation::Kind::kBarrier:
      code = call.AllReduce(data, data, operation.count, type, op, comm, stream);
      break;
    case Operation::Kind::kReduceScatter:
      code = call.ReduceScatter(data, part, part_count, type, op, comm, stream);
      break;
    case Operation::Kind::kAllGather:
      code = call.AllGather(part, data, part_count, type, comm, stream);
      break;
    case Operation::Kind::kBroadcast:
      code = call.Broadcast(data, data, operation.bytes, nccl::kUint8, operation.root, comm, stream);
      break;
  }
  if (code != nccl::kSuccess && code != nccl::kInProgress) return Failed("giving it to the stream", code);
  return {};
}

Result<bool> NcclCommunicator::Ready() {
  const std::lock_guard lock(calls_);
  nccl::Communicator const comm = communicator_;
  if (comm == nullptr) return Error{Errc::kUnavailable, "the communicator was aborted"};
  nccl::Code state = nccl::kSuccess;
  const nccl::Code code = library_.functions.CommGetAsyncError(comm, &state);
  if (code != nccl::kSuccess) return Failed("ncclCommGetAsyncError", code);
  if (state == nccl::kInProgress) return false;
  if (state != nccl::kSuccess) return Failed("working", state);
  return true;
}

void NcclCommunicator::StartAbort() {
  const std::lock_guard abort_lock(abort_mutex_);
  std::unique_lock lock(calls_, std::defer_lock);
  (void)lock.try_lock_for(kForAnotherCall);
  nccl::Communicator const comm = communicator_.exchange(nullptr);
  if (comm == nullptr) return;
  abort_begun_ = Clock::now();
  abort_ = DetachedCall([abort = library_.functions.CommAbort, comm] { (void)abort(comm); });
}

bool NcclCommunicator::AbortedBy(Clock::time_point deadline) {
  DetachedCall abort;
  {
    const std::lock_guard lock(abort_mutex_);
    abort = abort_;
  }
  return abort.ReturnedBy(deadline);
}

bool NcclCommunicator::Close(Clock::time_point deadline) {
  nccl::Communicator comm = nullptr;
  {
    const std::lock_guard lock(calls_);
    comm = communicator_.exchange(nullptr);
  }
  if (comm == nullptr) return true;
  const DetachedCall close([call = library_.functions, comm, deadline] {
    nccl::Code state = call.CommFinalize(comm);
    while (state == nccl::kInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kBetweenLooksAtState);
      if (const nccl::Code code = call.CommGetAsyncError(comm, &state); code != nccl::kSuccess) state = code;
    }
    (void)(state == nccl::kSuccess ? call.CommDestroy(comm) : call.CommAbort(comm));
  });
  return close.ReturnedBy(deadline);
}

}  // namespace muster
