// A stand-in for NCCL, for machines without a GPU: its functions over Gloo and the stand-in's device memory, with NCCL's
// manners. A communicator connects behind its maker's back. What a stream is given comes there only when somebody has asked
// for the communicator's state. An operation that cannot end stays on the stream until the communicator is aborted.
//
// It fails as MUSTER_STAND_IN_NCCL says, a list between commas:
//   init-hangs, init-fails, init-dies   this member never connects, or says an error, or is killed
//   operation-hangs=N, operation-fails=N  the Nth operation, from 1 on, does not end, or says an error
//   operation-stops=N   this process stops itself in the Nth operation
//   idle-fails=FILE   an error when the file is there
//   abort-hangs, finalize-hangs
//   version=CODE      as ncclGetVersion gives it
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "net/collectives/gloo_collectives.h"
#include "net/collectives/nccl_abi.h"
#include "net/collectives/store_exchange.h"
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
  std::int64_t device = 0;  // other than that of any other process
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

// A process that sees one device only has been given it alone. Another host's devices are others.
std::int64_t OwnDevice() {
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  const char* const id = std::getenv("NCCL_HOSTID");
  const std::string name = std::string(id != nullptr ? id : host.data()) +
                           (SeesOneDevice() ? "," + std::to_string(::getpid()) : "");
  return static_cast<std::int64_t>(std::hash<std::string>()(name) << 8U) + CurrentDevice();
}

Status RefuseSharedDevices(const Comm& comm, Collectives& gloo) {
  std::vector<std::int64_t> devices(static_cast<std::size_t>(comm.size));
  devices[static_cast<std::size_t>(comm.rank)] = comm.device;
  if (Status gathered = gloo.AllGather(Numbers(devices)); !gathered) return gathered;
  for (int other = 0; other < comm.size; ++other) {
    if (other == comm.rank || devices[static_cast<std::size_t>(other)] != comm.device) continue;
    return Error{Errc::kInvalid, "Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " +
                                     std::to_string(other) + " both on CUDA device " +
                                     std::to_string(comm.device & 0xff)};
  }
  return {};
}

// Some other library's id may be of any bytes.
std::string TextOf(const nccl::UniqueId& id) {
  return {id.bytes.begin(), std::find(id.bytes.begin(), id.bytes.end(), '\0')};
}

bool IsServed(const std::string& id) {
  rendezvous::ClientOptions place{.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20)};
  std::istringstream(id) >> place.host >> place.port >> place.round;
  return rendezvous::Client::Connect(place).ok();
}

// An id is "HOST PORT ROUND": where the maker's process serves the rendezvous, for as long as it lives.
void Connect(const Handle& comm, const std::string& id) {
  const auto deadline = std::chrono::steady_clock::now() + kForever;
  GroupOptions options;
  options.rank = comm->rank;
  options.size = comm->size;
  std::istringstream(id) >> options.master_addr >> options.master_port >> options.round;
  options.operation_timeout = kForever;
  Result<std::unique_ptr<Collectives>> gloo = [&]() -> Result<std::unique_ptr<Collectives>> {
    if (comm->size == 1) return MakeGlooCollectives(options);
    Result<rendezvous::Client> store = rendezvous::Client::Connect({.host = options.master_addr,
                                                                    .port = options.master_port,
                                                                    .round = options.round,
                                                                    .deadline = deadline});
    if (!store) return store.error();
    const Result<std::string> address = store->LocalAddress();
    if (!address) return address.error();
    const Exchange exchange = [&](const std::string& key, const std::string& value, rendezvous::Deadline by) {
      return ExchangeThrough(*store, options, key, value, by);
    };
    return MakeGlooCollectives(options, exchange, *address, deadline);
  }();
  if (!gloo) return Fail(*comm, nccl::kRemoteError, gloo.error().message);
  if (const Status own = RefuseSharedDevices(*comm, **gloo); !own)
    return Fail(*comm, nccl::kInvalidUsage, own.error().message);
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
  if (Asked("operation-stops") == number) ::raise(SIGSTOP);
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
  const char* const node = std::getenv("SLURMD_NODENAME");
  const std::string id = std::string(node == nullptr ? "127.0.0.1" : node) + " " +
                         std::to_string((*server)->port()) + " " + round;
  // As NCCL's own: it serves until the process ends.
  static auto* const kept = new std::vector<std::unique_ptr<rendezvous::Server>>;
  kept->push_back(*std::move(server));
  *out = {};
  id.copy(out->bytes.data(), out->bytes.size() - 1);
  return nccl::kSuccess;
}

// Which member's id a member connects through: the members follow one another, in parts that are as equal as can be.
int IdOf(int rank, int size, int ids) {
  const int larger = size % ids * (size / ids + 1);
  return rank < larger ? rank / (size / ids + 1) : size % ids + (rank - larger) / (size / ids);
}

int last_ids = 0;
STAND_IN int stand_in_nccl_ids() {
  return last_ids;
}

STAND_IN Code ncclCommInitRankScalable(nccl::Communicator* out, int size, int rank, int id_count,
                                       nccl::UniqueId* ids, nccl::Config* config) {
  last_ids = id_count;
  if (id_count < 1 || id_count > size) return nccl::kInvalidArgument;
  std::set<std::string> makers;
  for (int i = 0; i < id_count; ++i) makers.insert(TextOf(ids[i]));
  if (makers.size() != static_cast<std::size_t>(id_count)) return nccl::kInvalidArgument;
  if (config->magic != 0xcafebeef || config->blocking != 0 || config->size < sizeof(nccl::Config))
    return nccl::kInvalidArgument;
  const auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->size = size;
  comm->device = OwnDevice();
  *out = reinterpret_cast<nccl::Communicator>(new Handle(comm));
  if (IsAsked("init-dies")) ::raise(SIGKILL);
  if (IsAsked("init-fails")) Fail(*comm, nccl::kSystemError, "no route to the others");
  if (IsAsked("init-fails") || IsAsked("init-hangs")) return nccl::kInProgress;
  std::thread([comm, all = TextOf(ids[0]), own = TextOf(ids[IdOf(rank, size, id_count)])] {
    if (own != all && !IsServed(own)) return Fail(*comm, nccl::kRemoteError, "nobody serves the id " + own);
    Connect(comm, all);
  }).detach();
  return nccl::kInProgress;
}

STAND_IN Code ncclCommInitRankConfig(nccl::Communicator* out, int size, nccl::UniqueId id, int rank,
                                     nccl::Config* config) {
  return ncclCommInitRankScalable(out, size, rank, 1, &id, config);
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
    case nccl::kInvalidUsage:
      return "invalid usage";
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
