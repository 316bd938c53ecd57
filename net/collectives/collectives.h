// Collective operations among the members of one generation, whatever carries them out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/collectives/operation.h"

namespace muster {

class Members;

// Where a buffer lives.
enum class MemoryKind {
  kHost,  // this process's memory
  kCuda,  // memory of the member's CUDA device; what was to be written there has been
};

// How members give one another values before they are connected: each gives one under `key` and gets all, by rank. When not
// all have come by `deadline` the error says who has not. A key is used once.
using Exchange = std::function<Result<std::vector<std::string>>(
    const std::string& key, const std::string& value, std::chrono::steady_clock::time_point deadline)>;

// Who is in the communicator and how they find each other.
struct GroupOptions {
  int rank = 0;
  int size = 1;
  // The host of rank 0. Not used when size is 1.
  std::string master_addr;
  // Of a gang: how its members meet, under two keys that begin with "collectives.". Its members of other generations are
  // never met.
  Exchange exchange;
  // Without an exchange: the port of rank 0's host where they meet, and what names this incarnation of the group.
  std::uint16_t master_port = 0;
  std::string round;
  // The network interface for the data; empty: the one on the way to rank 0.
  std::string interface;
  // All members have met and are connected by then, or creation fails.
  std::chrono::milliseconds connect_timeout{60'000};
  // The most that one operation may take, which includes waiting for the slowest member.
  std::chrono::milliseconds operation_timeout{300'000};
  // The most that a member takes for its end when it has failed or another one has: its error comes so much later.
  std::chrono::milliseconds end_timeout{400};
  // Whether members compare each operation before they begin it, which costs an all-gather of 40 bytes each: those that
  // differ hear of it at once. Else over Gloo they hear of it at the operation's deadline, and over NCCL perhaps never.
  bool compare = false;
  // Where the caller's buffers live, and the place of this member's CUDA device among those that the process sees.
  MemoryKind memory = MemoryKind::kHost;
  int device = 0;
  // For the backend on NCCL: how many members one of them serves when all connect, where NCCL is 2.23.4 or newer; at least 1.
  int members_of_an_id = 128;
  // And the libraries, as dlopen takes them.
  std::string nccl_library = "libnccl.so.2";
  std::string cuda_library = "libcuda.so.1";
};

// Numbers in memory of the communicator's kind.
struct Numbers {
  explicit Numbers(std::span<float> values)
      : data(values.data()), count(values.size()), type(DataType::kFloat) {}
  explicit Numbers(std::span<std::int64_t> values)
      : data(values.data()), count(values.size()), type(DataType::kInt64) {}
  Numbers(void* device_data, std::size_t device_count, DataType device_type)
      : data(device_data), count(device_count), type(device_type) {}

  void* data;
  std::size_t count;
  DataType type;
};

// A communicator of `size` members. Every member calls the same operations in the same order with buffers of
// the same length and type; each call returns when this member's result is in its buffer.
//
// Buffers are in memory of kind memory(): a pointer into device memory is as good as one into host memory,
// and this interface never reads through it.
//
// Results: every member gets the same bits.
//
// Errors: when a member is lost, the call returns kUnavailable on every other member within a bounded time. When the
// operation timeout passes it returns kExhausted on the member whose time it was, and kUnavailable on all others. Then the
// communicator is of no further use: all later calls fail at once with that first reason. So it is when members call
// different operations, or with different lengths or types, where the group compares them or the backend notices. The reason
// names the operation, its place in the communicator's sequence and the operations before it, the member that failed first,
// and who has ended, says nothing or is in another operation.
//
// One operation at a time. Abort and State may be called from any thread at any time.
class Collectives {
 public:
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] virtual MemoryKind memory() const = 0;

  // Whether the bits of a sum depend on nothing but the members' values, the count of them, and the length.
  // Then a run that is repeated gives the same bits, whatever nodes it has.
  [[nodiscard]] virtual bool repeatable() const = 0;

  // The most that one operation may take.
  [[nodiscard]] std::chrono::milliseconds operation_timeout() const { return operation_timeout_; }

  // Replaces each member's values by their element-wise sum, or maximum, over all members.
  [[nodiscard]] Status AllReduce(Numbers values, ReduceOp op);
  // The same with a deadline in the operation timeout's place.
  [[nodiscard]] Status AllReduce(Numbers values, ReduceOp op, std::chrono::steady_clock::time_point deadline);

  // `values` has size() equal parts. Afterwards part rank() is reduced over all members; the others are undefined.
  [[nodiscard]] Status ReduceScatter(Numbers values, ReduceOp op);

  // `values` has size() equal parts. Each member gives part rank(), and gets all others.
  [[nodiscard]] Status AllGather(Numbers values);

  // Replaces each member's bytes by those of member `root`.
  [[nodiscard]] Status Broadcast(std::span<std::byte> bytes, int root);

  // Returns when all members have called it.
  [[nodiscard]] Status Barrier();

  // Ends the communicator: the operation under way returns with an error, here and on all other members.
  void Abort(const std::string& why);

  // Whether the communicator is still good: this member's part of it is, and no other member has said that it has failed.
  // Returns at once, but when it finds a failure: then it ends the communicator, which takes up to the end timeout.
  [[nodiscard]] Status State();

 protected:
  // `members`: how the others hear of a failure; nullptr where there are none, or the caller tells them.
  Collectives(const GroupOptions& options, std::unique_ptr<Members> members);

  // Does it by the deadline. An error says why not; what was to be done is said by the caller. The backend may use `data`
  // until StuckAt has come back.
  [[nodiscard]] virtual Status Carry(const Operation& operation, void* data,
                                     std::chrono::steady_clock::time_point deadline) = 0;
  // The same, where `data` is host memory whatever memory() is.
  [[nodiscard]] virtual Status CarryOnHost(const Operation& operation, void* data,
                                           std::chrono::steady_clock::time_point deadline) {
    return Carry(operation, data, deadline);
  }
  // What went wrong between operations. Any thread calls it.
  [[nodiscard]] virtual Status Look() { return {}; }
  // Makes an operation under way return; there will be no other. Returns soon. Any thread calls it, again and again.
  virtual void Cut(const std::string& why) = 0;
  // Waits until that is done and no buffer is in use any more; what is not so by then, in words.
  [[nodiscard]] virtual std::string StuckAt(std::chrono::steady_clock::time_point) { return {}; }

  // nullptr where there are none.
  [[nodiscard]] Members* members() const { return members_.get(); }
  // That another member has failed.
  [[nodiscard]] Status Heard() const;
  // This one has failed, doing `what` (as in "all-reduce 17 (...)"). All are told, and end. Gives the communicator's first
  // reason, which says more of it and begins with `heading`.
  [[nodiscard]] Error GiveUp(const std::string& heading, const std::string& what, const Error& why);

 private:
  [[nodiscard]] Status Run(Operation operation, void* data);
  [[nodiscard]] Status Run(Operation operation, void* data, std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] Status Compare(const Operation& operation, std::chrono::steady_clock::time_point deadline);
  [[nodiscard]] Status RunOnParts(Operation::Kind kind, Numbers values, ReduceOp op);

  const int rank_;
  const int size_;
  const bool compare_;
  const std::chrono::milliseconds operation_timeout_;
  const std::chrono::milliseconds end_timeout_;
  const std::unique_ptr<Members> members_;
  // Of the operation under way; when it fails a backend may use them until GiveUp has come back.
  std::vector<std::int64_t> compared_;
  std::mutex mutex_;  // guards what follows
  std::uint64_t operations_ = 0;
  std::optional<Operation> running_;
  RecentOperations recent_;
  std::optional<Error> failure_;
};

// From RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME and MUSTER_COMPARE_OPERATIONS (1: yes).
// Without RANK and WORLD_SIZE: a group of one. kInvalid names the variable that is missing or malformed.
[[nodiscard]] Result<GroupOptions> GroupOptionsFromEnvironment();

// Meets the other members and returns when all are connected. `backend`: "gloo" (host memory, TCP) or "nccl" (CUDA
// devices; host memory goes by way of the device). kInvalid for a name that this build does not have. A backend on
// sockets sets SIGPIPE to be ignored where it was at its default: a lost peer is an error here, not the end of the
// process.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeCollectives(std::string_view backend,
                                                                   const GroupOptions& options);

}  // namespace muster
