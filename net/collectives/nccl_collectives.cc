#include "net/collectives/nccl_collectives.h"

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "net/collectives/cuda_device.h"
#include "net/collectives/group_members.h"
#include "net/collectives/nccl_communicator.h"
#include "net/collectives/one_line.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kToClose(2000);
constexpr milliseconds kToCopy(100);  // at least, when an operation has failed
constexpr milliseconds kBetweenHearings(1);
// Nobody sleeps in the time that a small operation takes, and later not for long.
constexpr milliseconds kAwake(1);
constexpr std::chrono::microseconds kBetweenLooks(50);

// The id behind kGiven, or why there is none behind kRefused.
constexpr const char* kIdKey = "collectives.nccl";
constexpr char kGiven = '+';
constexpr char kRefused = '-';

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
    Result<std::vector<nccl::UniqueId>> ids = members() == nullptr ? OwnId() : ExchangeIds(deadline);
    Status connected = ids ? communicator_.Begin(size(), *std::move(ids), rank()) : ids.error();
    if (connected && members() != nullptr) connected = members()->Listen();
    if (connected) connected = Await(deadline, options_.connect_timeout, [] { return Result<bool>(true); });
    if (connected) return {};
    return GiveUp("connecting rank " + std::to_string(rank()) + " of " + std::to_string(size()),
                  "the connecting", connected.error());
  }

 private:
  Result<std::vector<nccl::UniqueId>> OwnId() {
    const Result<nccl::UniqueId> made = communicator_.NewId();
    if (!made) return made.error();
    return std::vector<nccl::UniqueId>{*made};
  }

  // Those of the members that serve the others, when all have come: who fails before that is missed here, by name, and not in
  // NCCL.
  Result<std::vector<nccl::UniqueId>> ExchangeIds(Clock::time_point deadline) {
    const std::vector<int> servers = Servers();
    std::string own;
    if (std::find(servers.begin(), servers.end(), rank()) != servers.end()) {
      const Result<nccl::UniqueId> made = communicator_.NewId();
      own = made ? kGiven + std::string(made->bytes.data(), made->bytes.size())
                 : kRefused + made.error().message;
    }
    const Result<std::vector<std::string>> values = members()->Exchanged(kIdKey, own, deadline);
    if (!values) return values.error();
    std::vector<nccl::UniqueId> ids;
    for (const int server : servers) {
      const std::string& given = values->at(static_cast<std::size_t>(server));
      nccl::UniqueId& id = ids.emplace_back();
      if (given.starts_with(kRefused)) return Error{Errc::kUnavailable, OneLine(given.substr(1))};
      if (!given.starts_with(kGiven) || given.size() != id.bytes.size() + 1)
        return Error{Errc::kInvalid, "rank " + std::to_string(server) + " has not given an id of NCCL's"};
      std::copy(given.begin() + 1, given.end(), id.bytes.begin());
    }
    return ids;
  }

  // NCCL has the members of one id after another. Each id's first member gives it, because its process serves the others.
  [[nodiscard]] std::vector<int> Servers() const {
    const int each = options_.members_of_an_id;
    const int ids = communicator_.TakesSeveralIds() ? (size() + each - 1) / each : 1;
    std::vector<int> servers;
    for (int i = 0; i < ids; ++i) servers.push_back(size() / ids * i + std::min(i, size() % ids));
    return servers;
  }

  Status Carry(const Operation& operation, void* data, Clock::time_point deadline) override {
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

  Status CarryOnHost(const Operation& operation, void* data, Clock::time_point deadline) override {
    if (Status entered = device_->Enter(); !entered) return entered;
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
        return Error{Errc::kExhausted,
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
    if (!communicator_.AbortedBy(deadline)) {
      return "ncclCommAbort has not come back after " + Milliseconds(options_.end_timeout) +
             ", so the device is free only when this process has ended";
    }
    if (IsIdleBy(std::max(deadline, Clock::now() + kToCopy))) return {};
    return "the device has not come to rest after " + Milliseconds(options_.end_timeout) +
           " and may still copy from or into the buffer";
  }

  // Whether the stream has no work left, and so nobody's buffer either. A device that fails does no more work.
  [[nodiscard]] bool IsIdleBy(Clock::time_point deadline) const {
    if (!device_->Enter()) return true;
    const Result<std::shared_ptr<const CudaEvent>> end = device_->Record();
    for (Result<bool> reached = end ? (*end)->Reached() : true; reached && !*reached;
         reached = (*end)->Reached()) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kBetweenLooks);
    }
    return true;
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
    Result<std::unique_ptr<Members>> met = Members::Meet(options, deadline);
    if (!met) return met.error();
    members = std::move(*met);
  }
  auto made =
      std::make_unique<NcclCollectives>(options, std::move(members), std::move(*library), std::move(*device));
  if (Status connected = made->Connect(deadline); !connected) return connected.error();
  return std::unique_ptr<Collectives>(std::move(made));
}

}  // namespace muster
