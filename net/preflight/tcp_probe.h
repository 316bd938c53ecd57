// One direction of a pair, measured with datagrams and TCP, or RDMA in place of TCP's data.
//
// First a few datagrams, small ones and such that fill the sender's MTU, tell whether packets of either size arrive. When a connection
// stands, both ends look at what their links carry besides. With RDMA small writes go to and fro then, for a fifth of `duration` at most;
// TCP's latency is what the kernel has seen. At last data goes as fast as it can, or as Order::Pace allows, for `duration`; the receiver
// counts once the first fifth of that time is over. A sender that keeps to the rate of its link fills no queue, so that a lost packet is
// the link's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "net/preflight/line_stream.h"
#include "net/preflight/rail.h"

namespace muster::preflight {

// What is asked of both sides; `id` is this measurement's own, and nothing else is counted.
struct Order {
  uint64_t id = 0;
  std::string address;  // the peer's, for the sender
  uint16_t port = 0;
  std::chrono::milliseconds duration{0};
  int64_t rate_mbit_s = 0;  // of the link; 0: unknown
  uint8_t traffic_class = 0;
  bool verbs = false;  // with RDMA

  // What the sender keeps to, with headers, in bytes a second: a little below the link's rate, so that the link's queue stays empty, and
  // others' packets find room. 0: as fast as it can.
  [[nodiscard]] uint64_t Pace() const {
    return static_cast<uint64_t>(rate_mbit_s) * 1'000'000 / 8 * 94 / 100;
  }
};

inline constexpr uint32_t kDatagrams = 4;  // of each size

struct Sent {
  uint64_t packets = 0;
  uint64_t lost = 0;  // sent again, and not heard twice
  bool connected = false;
  double mbit_s = 0;        // with RDMA; of TCP the receiver knows
  double latency_us = 0;    // half of the shortest round trip; 0: unknown
  double other_mbit_s = 0;  // what else goes out of this node's link, just before
  std::string error;
};

struct Received {
  double mbit_s = 0;
  double other_mbit_s = 0;  // what else comes in on this node's link, just before
  uint32_t small_heard = 0;
  uint32_t large_heard = 0;
  std::string error;
};

// Where others reach this node: TCP and UDP have the same port.
class ProbeSockets {
 public:
  // On `address` alone; "": on all.
  static Result<ProbeSockets> Open(const std::string& address);

  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] Received Receive(const Order& order, const Rail& rail) const;

 private:
  UniqueFd tcp_;
  UniqueFd udp_;
  uint16_t port_ = 0;
};

Sent Send(const Order& order, const Rail& rail);

}  // namespace muster::preflight
