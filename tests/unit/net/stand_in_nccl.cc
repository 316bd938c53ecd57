// A stand-in for NCCL, for machines without a GPU: its functions over Gloo and the stand-in's device memory, with NCCL's
// manners. A communicator connects behind its maker's back. What a stream is given comes there only when somebody has asked
// for the communicator's state. An operation that cannot end stays on the stream until the communicator is aborted.
//
// It fails as MUSTER_STAND_IN_NCCL says, a list between commas:
//   init-hangs, init-fails, init-dies   this member never connects, or says an error, or is killed
//   operation-hangs=N, operation-fails=N  the Nth operation, from 1 on, does not end, or says an error
//   idle-fails=FILE   an error when the file is there
//   abort-hangs, finalize-hangs
//   version=CODE      as ncclGetVersion gives it
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/collectives/gloo_collectives.h"
#include "net/collectives/nccl_abi.h"
#include "net/rendezvous/rendezvous_server.h"
#include "stand_in_gpu.h"

namespace muster::stand_in {
namespace {

using nccl::Code;

constexpr std::chrono::hours kForever(24);

[[noreturn]] void Hang() {
  for (;;) ::pause();
}

struct Comm {
  int rank = 0;
  int size = 0;
  std::atomic<Code> state = nccl::kInProgress;
  std::atomic<bool> aborted = false;
  std::mutex mutex;  // guards what follows
  std::shared_ptr<Collectives> gloo;
  std::function<void()> deferred;  // gives an operation to the stream
  int looks = 0;                   // at the state, since there has been one
  int operations = 0;              // that the stream has begun

  std::shared_ptr<Collectives> Gloo() {
    const std::lock_guard lock(mutex);
    return gloo;
  }
};
using Handle = std::shared_ptr<Comm>;

std::mutex last_mutex;
std::string last_error;

void Fail(Comm& comm, Code code, const std::string& why) {
  {
    const std::lock_guard lock(last_mutex);
    last_error = why;
  }
  comm.state = code;
}

void UntilAborted(const Comm& comm) {
  while (!comm.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Handle& Of(nccl::Communicator comm) {
  return *reinterpret_cast<Handle*>(comm);
}

// An id is "PORT ROUND": where the maker's process serves the rendezvous, for as long as it lives.
void Connect(const Handle& comm, const std::string& id) {
  const auto deadline = std::chrono::steady_clock::now() + kForever;
  GroupOptions options;
  options.rank = comm->rank;
  options.size = comm->size;
  options.master_addr = "127.0.0.1";
  options.master_port = static_cast<std::uint16_t>(std::atoi(id.c_str()));
  options.round = id.substr(id.find(' ') + 1);
  options.operation_timeout = kForever;
  Result<std::unique_ptr<Collectives>> gloo = [&]() -> Result<std::unique_ptr<Collectives>> {
    if (comm->size == 1) return MakeGlooCollectives(options);
    Result<rendezvous::Client> store = rendezvous::Client::Connect({.host = options.master_addr,
                                                                    .port = options.master_port,
                                                                    .round = options.round,
                                                                    .deadline = deadline});
    if (!store) return store.error();
    return MakeGlooCollectives(options, *store, deadline);
  }();
  if (!gloo) return Fail(*comm, nccl::kRemoteError, gloo.error().message);
  {
    const std::lock_guard lock(comm->mutex);
    comm->gloo = std::move(*gloo);
  }
  comm->state = nccl::kSuccess;
}

// The stream's part of an operation.
void Carry(Comm& comm, const std::function<Status(Collectives&)>& operation) {
  if (comm.aborted) return;
  const std::string number = [&] {
    const std::lock_guard lock(comm.mutex);
    return std::to_string(++comm.operations);
  }();
  if (Asked("operation-hangs") == number) return UntilAborted(comm);
  if (Asked("operation-fails") == number) {
    Fail(comm, nccl::kSystemError, "a cable was pulled");
    return UntilAborted(comm);
  }
  const std::shared_ptr<Collectives> gloo = comm.Gloo();
  const Status done = operation(*gloo);
  if (done || comm.aborted) return;
  Fail(comm, nccl::kRemoteError, done.error().message);
  UntilAborted(comm);
}

Code Give(const Handle& comm, void* stream, std::function<Status(Collectives&)> operation) {
  if (comm->state != nccl::kSuccess)
    return comm->state == nccl::kInProgress ? nccl::kInvalidUsage : comm->state.load();
  const std::lock_guard lock(comm->mutex);
  if (comm->deferred) return nccl::kInvalidUsage;
  comm->looks = 0;
  comm->deferred = [comm, stream, operation = std::move(operation)] {
    Enqueue(stream, [comm, operation] { Carry(*comm, operation); });
  };
  return nccl::kInProgress;
}

// `count` elements of device memory as Gloo takes them. Only what is in place is taken here.
bool NumbersAt(const void* data, std::size_t count, nccl::Type type, Numbers* out) {
  const DataType of = type == nccl::kFloat32 ? DataType::kFloat : DataType::kInt64;
  std::byte* const memory = Behind(data, count * BytesOf(of));
  *out = Numbers(memory, count, of);
  return memory != nullptr && (type == nccl::kFloat32 || type == nccl::kInt64);
}

ReduceOp OpOf(nccl::Reduction op) {
  return op == nccl::kMax ? ReduceOp::kMax : ReduceOp::kSum;
}

// Where the part of this member begins, in an array of `part_count` elements a member.
std::size_t PartOffset(const Comm& comm, std::size_t part_count, nccl::Type type) {
  return static_cast<std::size_t>(comm.rank) * part_count *
         BytesOf(type == nccl::kFloat32 ? DataType::kFloat : DataType::kInt64);
}

}  // namespace

#define STAND_IN extern "C" __attribute__((visibility("default")))

STAND_IN Code ncclGetVersion(int* out) {
  const std::string asked = Asked("version");
  *out = asked.empty() ? 22703 : std::atoi(asked.c_str());
  return nccl::kSuccess;
}

STAND_IN Code ncclGetUniqueId(nccl::UniqueId* out) {
  static std::atomic<int> made = 0;
  const std::string round = "stand-in." + std::to_string(::getpid()) + "." + std::to_string(++made);
  Result<std::unique_ptr<rendezvous::Server>> server = rendezvous::Server::Start({.round = round});
  if (!server) return nccl::kSystemError;
  const std::string id = std::to_string((*server)->port()) + " " + round;
  // As NCCL's own: it serves until the process ends.
  static auto* const kept = new std::vector<std::unique_ptr<rendezvous::Server>>;
  kept->push_back(*std::move(server));
  *out = {};
  id.copy(out->bytes.data(), out->bytes.size() - 1);
  return nccl::kSuccess;
}

STAND_IN Code ncclCommInitRankConfig(nccl::Communicator* out, int size, nccl::UniqueId id, int rank,
                                     nccl::Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || config->size < sizeof(nccl::Config))
    return nccl::kInvalidArgument;
  const auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->size = size;
  *out = reinterpret_cast<nccl::Communicator>(new Handle(comm));
  if (IsAsked("init-dies")) ::raise(SIGKILL);
  if (IsAsked("init-fails")) Fail(*comm, nccl::kSystemError, "no route to the others");
  if (IsAsked("init-fails") || IsAsked("init-hangs")) return nccl::kInProgress;
  std::thread([comm, text = std::string(id.bytes.data())] { Connect(comm, text); }).detach();
  return nccl::kInProgress;
}

STAND_IN Code ncclCommGetAsyncError(nccl::Communicator handle, Code* out) {
  Comm& comm = *Of(handle);
  if (const std::string file = Asked("idle-fails"); !file.empty() && ::access(file.c_str(), F_OK) == 0)
    Fail(comm, nccl::kSystemError, "a link went down");
  std::function<void()> give;
  {
    const std::lock_guard lock(comm.mutex);
    if (comm.deferred && ++comm.looks > 1) std::swap(give, comm.deferred);
    *out = comm.deferred && comm.state == nccl::kSuccess ? nccl::kInProgress : comm.state.load();
  }
  if (give) give();
  return nccl::kSuccess;
}

STAND_IN Code ncclCommFinalize(nccl::Communicator) {
  if (IsAsked("finalize-hangs")) Hang();
  return nccl::kSuccess;
}

STAND_IN Code ncclCommDestroy(nccl::Communicator handle) {
  delete &Of(handle);
  return nccl::kSuccess;
}

STAND_IN Code ncclCommAbort(nccl::Communicator handle) {
  if (IsAsked("abort-hangs")) Hang();
  const Handle comm = Of(handle);
  comm->aborted = true;
  if (const std::shared_ptr<Collectives> gloo = comm->Gloo(); gloo != nullptr) gloo->Abort("aborted");
  delete &Of(handle);
  return nccl::kSuccess;
}

STAND_IN const char* ncclGetErrorString(Code code) {
  switch (code) {
    case nccl::kSystemError:
      return "unhandled system error";
    case nccl::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

STAND_IN const char* ncclGetLastError(nccl::Communicator) {
  static thread_local std::string copy;
  const std::lock_guard lock(last_mutex);
  copy = last_error;
  return copy.c_str();
}

STAND_IN Code ncclAllReduce(const void* from, void* to, std::size_t count, nccl::Type type,
                            nccl::Reduction op, nccl::Communicator comm, void* stream) {
  Numbers numbers(nullptr, 0, DataType::kFloat);
  if (from != to || !NumbersAt(to, count, type, &numbers)) return nccl::kInvalidArgument;
  return Give(Of(comm), stream, [=](Collectives& gloo) { return gloo.AllReduce(numbers, OpOf(op)); });
}

STAND_IN Code ncclReduceScatter(const void* from, void* to, std::size_t part_count, nccl::Type type,
                                nccl::Reduction op, nccl::Communicator comm, void* stream) {
  Numbers numbers(nullptr, 0, DataType::kFloat);
  const Comm& of = *Of(comm);
  if (static_cast<const std::byte*>(from) + PartOffset(of, part_count, type) != to ||
      !NumbersAt(from, part_count * static_cast<std::size_t>(of.size), type, &numbers)) {
    return nccl::kInvalidArgument;
  }
  return Give(Of(comm), stream, [=](Collectives& gloo) { return gloo.ReduceScatter(numbers, OpOf(op)); });
}

STAND_IN Code ncclAllGather(const void* from, void* to, std::size_t part_count, nccl::Type type,
                            nccl::Communicator comm, void* stream) {
  Numbers numbers(nullptr, 0, DataType::kFloat);
  const Comm& of = *Of(comm);
  if (static_cast<std::byte*>(to) + PartOffset(of, part_count, type) != from ||
      !NumbersAt(to, part_count * static_cast<std::size_t>(of.size), type, &numbers)) {
    return nccl::kInvalidArgument;
  }
  return Give(Of(comm), stream, [=](Collectives& gloo) { return gloo.AllGather(numbers); });
}

STAND_IN Code ncclBroadcast(const void* from, void* to, std::size_t count, nccl::Type type, int root,
                            nccl::Communicator comm, void* stream) {
  std::byte* const memory = Behind(to, count);
  if (from != to || type != nccl::kUint8 || memory == nullptr) return nccl::kInvalidArgument;
  return Give(Of(comm), stream, [=](Collectives& gloo) { return gloo.Broadcast({memory, count}, root); });
}

}  // namespace muster::stand_in
