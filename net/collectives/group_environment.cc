#include <charconv>
#include <cstdlib>
#include <limits>
#include <system_error>

#include "net/collectives/collectives.h"

namespace muster {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// The variable as a number of [low, high]; `fallback` when it is not set.
Result<int> Number(const char* name, int low, int high, int fallback) {
  const std::string text = Variable(name);
  if (text.empty()) return fallback;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Error{Errc::kInvalid, "environment: " + std::string(name) + "='" + text +
                                     "' is not a number from " + std::to_string(low) + " to " +
                                     std::to_string(high)};
  }
  return value;
}

}  // namespace

Result<GroupOptions> GroupOptionsFromEnvironment() {
  constexpr int kMaxSize = 1 << 20;
  const Result<int> size = Number("WORLD_SIZE", 1, kMaxSize, 1);
  if (!size) return size.error();
  const Result<int> rank = Number("RANK", 0, *size - 1, 0);
  if (!rank) return rank.error();
  const Result<int> port = Number("MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max(), 0);
  if (!port) return port.error();
  const Result<int> device = Number("LOCAL_RANK", 0, kMaxSize, 0);
  if (!device) return device.error();
  const Result<int> compare = Number("MUSTER_COMPARE_OPERATIONS", 0, 1, 0);
  if (!compare) return compare.error();
  GroupOptions options;
  options.compare = *compare == 1;
  options.rank = *rank;
  options.size = *size;
  options.device = *device;
  options.master_addr = Variable("MASTER_ADDR");
  options.master_port = static_cast<std::uint16_t>(*port);
  options.interface = Variable("GLOO_SOCKET_IFNAME");
  if (options.size > 1) {
    for (const char* name : {"RANK", "MASTER_ADDR", "MASTER_PORT"}) {
      if (!Variable(name).empty()) continue;
      return Error{Errc::kInvalid, "environment: WORLD_SIZE is " + std::to_string(options.size) + " but " +
                                       name + " is not set"};
    }
  }
  return options;
}

}  // namespace muster
