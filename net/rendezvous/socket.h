// The few TCP calls that the rendezvous needs, each with a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster::rendezvous {

using Deadline = std::chrono::steady_clock::time_point;

// A non-blocking listening socket on every address of this host (IPv6 and IPv4 where the kernel has both),
// with SO_REUSEADDR: the port of a killed generation is free for the next one at once. `port` 0 lets the
// kernel choose.
[[nodiscard]] Result<UniqueFd> Listen(std::uint16_t port);

// The port that a socket is bound to.
[[nodiscard]] Result<std::uint16_t> LocalPort(int fd);

// The address of this end of a connected socket, in numbers.
[[nodiscard]] Result<std::string> LocalAddress(int fd);

// Whether an address in numbers is one that only this host can reach.
[[nodiscard]] bool IsLoopback(const std::string& address);

// Connects to host:port, again and again until `deadline`: rank 0 may not listen yet. The socket is
// non-blocking. kUnavailable names the endpoint and the last reason.
[[nodiscard]] Result<UniqueFd> ConnectUntil(const std::string& host, std::uint16_t port, Deadline deadline);

// Sends all of `bytes`, or says why not; never raises SIGPIPE.
[[nodiscard]] Status SendAll(int fd, std::span<const std::byte> bytes, Deadline deadline);

// Receives at least one byte into `buffer`; the count. An end of stream is kUnavailable.
[[nodiscard]] Result<std::size_t> ReceiveSome(int fd, std::span<std::byte> buffer, Deadline deadline);

}  // namespace muster::rendezvous
