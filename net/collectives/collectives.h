// Collective operations among the members of one generation, whatever carries them out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace muster {

// Where a buffer lives. A backend works on one kind; a caller that has the other copies first.
enum class MemoryKind {
  kHost,  // this process's memory
  kCuda,  // memory of the current CUDA device
};

// A communicator of `size` members. Every member calls the same operations in the same order with buffers of
// the same length; each call returns when this member's result is in its buffer.
//
// Buffers are in memory of kind memory(): a pointer into device memory is as good as one into host memory,
// and this interface never reads through it.
//
// Results: the bits of a sum depend on nothing but the members' values, the count of them, and the length:
// the order of the additions is fixed, so a run that is repeated gives the same bits, and every member gets
// the same bits.
//
// Errors: when a member is lost, or the operation timeout passes, the call returns kUnavailable on every
// other member within a bounded time, and the communicator is of no further use: all later calls fail at once
// with that first reason.
//
// Not thread-safe: one operation at a time.
class Collectives {
 public:
  Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  virtual ~Collectives() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual MemoryKind memory() const = 0;

  // Replaces each member's values by the element-wise sum over all members.
  [[nodiscard]] virtual Status AllReduceSum(std::span<float> values) = 0;

  // Replaces each member's bytes by those of member `root`.
  [[nodiscard]] virtual Status Broadcast(std::span<std::byte> bytes, int root) = 0;

  // Returns when all members have called it.
  [[nodiscard]] virtual Status Barrier() = 0;
};

// Who is in the communicator and how they find each other.
struct GroupOptions {
  int rank = 0;
  int size = 1;
  // Where rank 0 serves the rendezvous. Not used when size is 1.
  std::string master_addr;
  std::uint16_t master_port = 0;
  // Names this incarnation of the group (gang and generation); members of another one are never met.
  std::string round;
  // The network interface for the data; empty: the one on the way to rank 0.
  std::string interface;
  // All members have met by then, or creation fails.
  std::chrono::milliseconds connect_timeout{60'000};
  // The most that one operation may take, which includes waiting for the slowest member.
  std::chrono::milliseconds operation_timeout{300'000};
};

// From RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MUSTER_GANG, MUSTER_GENERATION and GLOO_SOCKET_IFNAME.
// Without RANK and WORLD_SIZE: a group of one. kInvalid names the variable that is missing or malformed.
[[nodiscard]] Result<GroupOptions> GroupOptionsFromEnvironment();

// Meets the other members and returns when all are connected. `backend`: "gloo" (host memory, TCP). kInvalid
// for a name that this build does not have. A backend on sockets sets SIGPIPE to be ignored where it was at
// its default: a lost peer is an error here, not the end of the process.
[[nodiscard]] Result<std::unique_ptr<Collectives>> MakeCollectives(std::string_view backend,
                                                                   const GroupOptions& options);

}  // namespace muster
