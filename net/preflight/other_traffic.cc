#include "net/preflight/other_traffic.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstdint>
#include <optional>

#include "base/small_files.h"

namespace muster::preflight {
namespace {

using Clock = std::chrono::steady_clock;

// An adapter's interface does not count what RDMA sends past the kernel, its port does, in words of four bytes. A soft device has no such
// counter: there the interface sees all.
std::optional<uint64_t> Bytes(const Rail& rail, Flow flow) {
  const bool out = flow == Flow::kOut;
  const auto all = ReadNumber(
      fmt::format("/sys/class/net/{}/statistics/{}", rail.interface, out ? "tx_bytes" : "rx_bytes"));
  if (!all || rail.verbs.device.empty()) return all;
  const auto words =
      ReadNumber(fmt::format("/sys/class/infiniband/{}/ports/{}/counters/{}", rail.verbs.device,
                             rail.verbs.port, out ? "port_xmit_data" : "port_rcv_data"));
  return *all + 4 * words.value_or(0);
}

}  // namespace

double OtherTraffic(const Rail& rail, Flow flow, int socket, std::chrono::milliseconds time) {
  const auto began = Clock::now();
  const auto before = Bytes(rail, flow);
  pollfd entry{socket, POLLIN, 0};
  const bool disturbed = ::poll(&entry, 1, static_cast<int>(time.count())) > 0;
  const auto after = Bytes(rail, flow);
  const std::chrono::duration<double> took = Clock::now() - began;
  if (disturbed || !before || !after || *after < *before) return 0;
  return static_cast<double>(*after - *before) * 8 / took.count() / 1e6;
}

}  // namespace muster::preflight
