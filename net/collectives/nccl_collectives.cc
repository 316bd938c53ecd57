#include "net/collectives/nccl_collectives.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "net/collectives/cuda_device.h"
#include "net/collectives/group_members.h"
#include "net/collectives/nccl_communicator.h"
#include "net/collectives/one_line.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kToClose(2000);
constexpr milliseconds kBetweenHearings(1);
// Nobody sleeps in the time that a small operation takes, and later not for long.
constexpr milliseconds kAwake(1);
constexpr std::chrono::microseconds kBetweenLooks(50);

// The id behind kGiven, or why there is none behind kRefused.
constexpr const char* kIdKey = "nccl/id";
constexpr char kGiven = '+';
constexpr char kRefused = '-';

std::string HereKey(int rank) {
  return "nccl/here/" + std::to_string(rank);
}

std::string Milliseconds(milliseconds time) {
  return std::to_string(time.count()) + " ms";
}

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const GroupOptions& options, std::unique_ptr<Members> members, nccl::Library library,
                  std::unique_ptr<CudaDevice> device)
      : Collectives(options, std::move(members)),
        options_(options),
        device_(std::move(device)),
        communicator_(std::move(library)) {}

  ~NcclCollectives() override {
    if (!State() || !communicator_.Close(Clock::now() + kToClose)) device_->Abandon();
  }

  [[nodiscard]] MemoryKind memory() const override { return options_.memory; }
  [[nodiscard]] bool repeatable() const override { return false; }

  Status Connect(Clock::time_point deadline) {
    Result<nccl::UniqueId> id = members() == nullptr ? communicator_.NewId()
                                : rank() == 0        ? GiveId(deadline)
                                                     : TakeId();
    Status connected = id ? communicator_.Begin(size(), *id, rank()) : id.error();
    if (connected && members() != nullptr) connected = members()->Listen();
    if (connected) connected = Await(deadline, options_.connect_timeout, [] { return Result<bool>(true); });
    if (connected) return {};
    return GiveUp("connecting rank " + std::to_string(rank()) + " of " + std::to_string(size()),
                  "the connecting", connected.error());
  }

 private:
  // By rank 0, which makes the id when all have come: who fails before that is missed here, by name, and not in NCCL.
  Result<nccl::UniqueId> GiveId(Clock::time_point deadline) {
    rendezvous::Client& store = members()->store();
    // Before those give up who began with this member, for they are told who is missing.
    store.SetDeadline(deadline - options_.connect_timeout / 10, options_.end_timeout / 4);
    Status all;
    for (int other = 1; other < size() && all; ++other) {
      if (Result<std::string> here = store.Get(HereKey(other)); !here) {
        all = Error{Errc::kUnavailable, "rank " + std::to_string(other) + " of " + std::to_string(size()) +
                                            " did not come within " + Milliseconds(options_.connect_timeout)};
      }
    }
    Result<nccl::UniqueId> id = all ? communicator_.NewId() : all.error();
    store.SetDeadline(deadline, options_.end_timeout / 4);
    const Status told = store.Set(kIdKey, id ? kGiven + std::string(id->bytes.data(), id->bytes.size())
                                             : kRefused + id.error().message);
    if (id && !told) return told.error();
    return id;
  }

  // By the others.
  Result<nccl::UniqueId> TakeId() {
    rendezvous::Client& store = members()->store();
    // No two processes write the same.
    const std::string self =
        std::to_string(::getpid()) + " " + std::to_string(Clock::now().time_since_epoch().count());
    if (Status said = store.Set(HereKey(rank()), self); !said) return said.error();
    Result<std::string> given = store.Get(kIdKey);
    if (!given) return given.error();
    nccl::UniqueId id{};
    if (given->starts_with(kRefused)) return Error{Errc::kUnavailable, OneLine(given->substr(1))};
    if (!given->starts_with(kGiven) || given->size() != id.bytes.size() + 1)
      return Error{Errc::kInvalid, "rank 0 has not given an id of NCCL's"};
    std::copy(given->begin() + 1, given->end(), id.bytes.begin());
    return id;
  }

  Status Carry(const Operation& operation, void* data) override {
    const auto deadline = Clock::now() + options_.operation_timeout;
    if (Status entered = device_->Enter(); !entered) return entered;
    if (operation.kind == Operation::Kind::kBarrier) {
      Operation one = operation;
      one.count = 1;
      one.bytes = BytesOf(one.type);
      Result<std::byte*> number = device_->Staging(one.bytes);
      return number ? OnDevice(one, *number, deadline) : number.error();
    }
    if (options_.memory == MemoryKind::kCuda)
      return OnDevice(operation, static_cast<std::byte*>(data), deadline);
    return OnHost(operation, static_cast<std::byte*>(data), deadline);
  }

  // By way of device memory; only what others need of this member goes there, and only what it gets comes back.
  Status OnHost(const Operation& operation, std::byte* data, Clock::time_point deadline) {
    Result<std::byte*> staging = device_->Staging(operation.bytes);
    if (!staging) return staging.error();
    const std::size_t part_bytes = operation.bytes / static_cast<std::size_t>(size());
    const std::size_t part = part_bytes * static_cast<std::size_t>(rank());
    const bool gives_part = operation.kind == Operation::Kind::kAllGather;
    const bool gets_part = operation.kind == Operation::Kind::kReduceScatter;
    const bool gives = operation.kind != Operation::Kind::kBroadcast || operation.root == rank();
    Status done;
    if (gives_part) {
      done = device_->Copy(*staging + part, data + part, part_bytes);
    } else if (gives) {
      done = device_->Copy(*staging, data, operation.bytes);
    }
    if (done) done = OnDevice(operation, *staging, deadline);
    if (!done) return done;
    done = gets_part ? device_->Copy(data + part, *staging + part, part_bytes)
                     : device_->Copy(data, *staging, operation.bytes);
    return done ? AwaitStream(deadline) : done;
  }

  Status OnDevice(const Operation& operation, std::byte* data, Clock::time_point deadline) {
    Status given = communicator_.Enqueue(operation, data, device_->stream());
    // Until NCCL says so the stream does not have it, and an event would be too early.
    if (given) given = Await(deadline, options_.operation_timeout, [] { return Result<bool>(true); });
    return given ? AwaitStream(deadline) : given;
  }

  Status AwaitStream(Clock::time_point deadline) {
    if (Status marked = device_->Mark(); !marked) return marked;
    return Await(deadline, options_.operation_timeout, [this] { return device_->Reached(); });
  }

  // Until NCCL and `done` say so. NCCL is asked last: what it had to give up may look as if it were done.
  Status Await(Clock::time_point deadline, milliseconds timeout, const std::function<Result<bool>()>& done) {
    const auto begun = Clock::now();
    auto hearing = begun + kBetweenHearings;
    for (;;) {
      const Result<bool> is_done = done();
      if (!is_done) return is_done.error();
      const Result<bool> ready = communicator_.Ready();
      if (!ready) return ready.error();
      if (*is_done && *ready) return {};
      const auto now = Clock::now();
      if (now >= hearing) {
        if (Status heard = Heard(); !heard) return heard;
        hearing = now + kBetweenHearings;
      }
      if (now >= deadline) {
        return Error{Errc::kUnavailable,
                     communicator_.library_name() + " was not done within " + Milliseconds(timeout)};
      }
      if (now - begun < kAwake) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kBetweenLooks);
      }
    }
  }

  Status Look() override {
    const Result<bool> ready = communicator_.Ready();
    return ready ? Status() : ready.error();
  }

  void Cut(const std::string&) override { communicator_.StartAbort(); }

  std::string StuckAt(Clock::time_point deadline) override {
    if (communicator_.AbortedBy(deadline)) return {};
    return "ncclCommAbort has not come back after " + Milliseconds(options_.end_timeout) +
           ", so the device is free only when this process has ended";
  }

  const GroupOptions options_;
  const std::unique_ptr<CudaDevice> device_;
  NcclCommunicator communicator_;
};

}  // namespace

Result<std::unique_ptr<Collectives>> MakeNcclCollectives(const GroupOptions& options) {
  const auto deadline = Clock::now() + options.connect_timeout;
  // Before the others are met: a member that cannot start says so itself, and is missed by name.
  Result<nccl::Library> library = nccl::Load(options.nccl_library);
  if (!library) return library.error();
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(options.cuda_library, options.device);
  if (!device) return device.error();
  std::unique_ptr<Members> members;
  if (options.size > 1) {
    // That it is here; and the id.
    Result<std::unique_ptr<Members>> met = Members::Meet(options, 2, deadline);
    if (!met) return met.error();
    members = std::move(*met);
  }
  auto made =
      std::make_unique<NcclCollectives>(options, std::move(members), std::move(*library), std::move(*device));
  if (Status connected = made->Connect(deadline); !connected) return connected.error();
  return std::unique_ptr<Collectives>(std::move(made));
}

}  // namespace muster
