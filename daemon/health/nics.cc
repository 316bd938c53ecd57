#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/small_files.h"
#include "daemon/health/findings.h"

namespace muster {
namespace {

// Errors of the link itself. What congestion makes (drops, retransmissions) is not here.
constexpr std::array kPortErrors = {"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
                                    "local_link_integrity_errors"};
constexpr std::array kNetErrors = {"statistics/rx_crc_errors", "carrier_down_count"};

// "4: ACTIVE" -> "ACTIVE".
std::string StateIn(const std::string& path) {
  const std::string line = ReadLine(path);
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

class Nics {
 public:
  Nics(const HealthOptions& options, Findings& findings)
      : options_(options),
        findings_(findings),
        rdma_(options.sys_root + "/class/infiniband"),
        net_(options.sys_root + "/class/net") {}

  void Check() {
    const std::vector<std::string> devices = ListDirectory(rdma_);
    for (const std::string& name : options_.nics) {
      if (std::find(devices.begin(), devices.end(), name) != devices.end()) {
        Rdma(name, true);
      } else {
        Net(name);
      }
    }
    for (const std::string& device : devices) {
      const auto& named = options_.nics;
      if (std::find(named.begin(), named.end(), device) == named.end()) Rdma(device, false);
    }
  }

 private:
  void Rdma(const std::string& device, bool named) {
    const std::vector<std::string> ports = ListDirectory(fmt::format("{}/{}/ports", rdma_, device));
    for (const std::string& port : ports) {
      const std::string subject = "nic " + device + (ports.size() > 1 ? " port " + port : "");
      findings_.Checking(subject);
      const std::string base = fmt::format("{}/{}/ports/{}", rdma_, device, port);
      const std::string state = StateIn(base + "/state");
      const std::string physical = StateIn(base + "/phys_state");
      const bool up = state == "ACTIVE" && physical == "LinkUp";
      // A port that nobody has named may have no cable; when it was up before, it has lost it.
      const std::string was_up = fmt::format("{}/{} up", device, port);
      const auto last = options_.last_counters.find(was_up);
      const bool lost = last != options_.last_counters.end() && last->second != 0;
      if (!up && (named || lost)) {
        findings_.Sick(fmt::format("is not up: state {}, physical state {}", state, physical));
      }
      findings_.Counter(was_up, up || lost ? 1 : 0);
      for (const char* const error : kPortErrors) {
        Errors(fmt::format("{}/{} {}", device, port, error), fmt::format("{}/counters/{}", base, error),
               error);
      }
    }
  }

  void Net(const std::string& name) {
    findings_.Checking("nic " + name);
    const std::string base = net_ + "/" + name;
    const std::string state = ReadLine(base + "/operstate");
    if (state.empty()) {
      findings_.Sick("is not there");
      return;
    }
    // The carrier cannot be read while the interface is off; "unknown" is what drivers without the state say.
    const std::string carrier = ReadLine(base + "/carrier");
    if ((state != "up" && state != "unknown") || carrier != "1") {
      findings_.Sick(
          fmt::format("is not up: state {}, carrier {}", state, carrier.empty() ? "off" : carrier));
    }
    for (const char* const error : kNetErrors) {
      const std::string_view path(error);
      const std::string_view shown = path.substr(path.rfind('/') + 1);
      Errors(fmt::format("{} {}", name, shown), fmt::format("{}/{}", base, path), shown);
    }
  }

  void Errors(const std::string& name, const std::string& path, std::string_view shown) {
    const auto count = ReadNumber(path);
    if (!count) return;
    const auto last = options_.last_counters.find(name);
    if (last != options_.last_counters.end() && *count > last->second) {
      findings_.Warn(fmt::format("counted {} more {} since the last check", *count - last->second, shown));
    }
    findings_.Counter(name, *count);
  }

  const HealthOptions& options_;
  Findings& findings_;
  std::string rdma_;
  std::string net_;
};

}  // namespace

void CheckNics(const HealthOptions& options, Findings& findings) {
  findings.Checking("nics");
  Nics(options, findings).Check();
}

}  // namespace muster
