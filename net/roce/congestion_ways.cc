#include "net/roce/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/small_files.h"

namespace muster::roce {
namespace {

// Settings in an adapter's firmware, by the tool of mstflint or of its vendor.
struct FirmwareValue {
  std::string key;  // "CNP_DSCP_P1"
  std::function<int64_t(int64_t)> should;
};

std::string ShowFirmware(const std::vector<std::pair<std::string, int64_t>>& values) {
  std::vector<std::string> parts;
  parts.reserve(values.size());
  for (const auto& [key, value] : values) parts.push_back(fmt::format("{}={}", key, value));
  return Joined(parts);
}

// The value that holds from the next boot on is the last of its line.
Result<std::vector<std::pair<std::string, int64_t>>> ReadFirmware(const Host& host, const std::string& tool,
                                                                  const std::string& pci,
                                                                  const std::vector<FirmwareValue>& wanted) {
  std::vector<std::string> query{tool, "-d", pci, "query"};
  for (const FirmwareValue& value : wanted) query.push_back(value.key);
  const auto output = Output(host, query);
  if (!output) return output.error();
  std::vector<std::pair<std::string, int64_t>> values;
  for (const FirmwareValue& value : wanted) {
    std::optional<uint64_t> number;
    for (const std::string& line : Words(*output, "\n")) {
      const auto words = Words(line);
      if (words.size() < 2 || std::ranges::find(words, value.key) == words.end()) continue;
      // "True(1)", or the number alone
      const std::string& last = words.back();
      const size_t open = last.find('(');
      number = ParseDecimal(open == std::string::npos ? last : last.substr(open + 1));
    }
    if (!number) return Error{Errc::kUnavailable, fmt::format("{} does not show {}", tool, value.key)};
    values.emplace_back(value.key, static_cast<int64_t>(*number));
  }
  return values;
}

// What is read of it first says what it should be: bits that are not this fabric's stay.
Result<Way> Firmware(const Host& host, const PhysicalPort& on, const std::vector<FirmwareValue>& wanted) {
  // mstflint's, or the one of NVIDIA's MFT, with the same words.
  std::string tool = "mstconfig";
  auto now = ReadFirmware(host, tool, on.pci, wanted);
  if (!now && now.error().code == Errc::kNotFound) {
    tool = "mlxconfig";
    now = ReadFirmware(host, tool, on.pci, wanted);
    if (!now && now.error().code == Errc::kNotFound)
      return Error{Errc::kNotFound, "neither mstconfig nor mlxconfig is installed"};
  }
  if (!now) return now.error();
  std::vector<std::pair<std::string, int64_t>> should;
  for (size_t i = 0; i < wanted.size(); ++i)
    should.emplace_back(wanted[i].key, wanted[i].should((*now)[i].second));
  std::vector<std::string> set{tool, "-y", "-d", on.pci, "set"};
  for (const auto& [key, value] : should) set.push_back(fmt::format("{}={}", key, value));
  return Way{tool,
             ShowFirmware(should),
             [&host, tool, pci = on.pci, wanted]() -> Result<std::string> {
               const auto values = ReadFirmware(host, tool, pci, wanted);
               if (!values) return values.error();
               return ShowFirmware(*values);
             },
             Joined(set),
             Running(host, set),
             true};
}

// Which port of its adapter an interface is: each has a PCI function of its own.
std::string FirmwarePort(const PhysicalPort& on) {
  return on.pci.ends_with(".1") ? "_P2" : "_P1";
}

}  // namespace

Result<Way> Ecn(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const std::string ecn = host.root + "/sys/class/net/" + on.name + "/ecn/";
  const std::string priority = std::to_string(settings.priority);
  const std::vector<FileValue> files{{"notifies", ecn + "roce_np/enable/" + priority, "1"},
                                     {"reacts", ecn + "roce_rp/enable/" + priority, "1"}};
  if (AllThere(files)) return OfFiles("sysfs", files);
  if (on.driver != "mlx5_core") return ShowsNothing(on);
  return Firmware(host, on,
                  {{"ROCE_CC_PRIO_MASK" + FirmwarePort(on),
                    [bit = int64_t{1} << settings.priority](int64_t mask) { return mask | bit; }}});
}

Result<Way> Cnp(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const std::string dscp = std::to_string(settings.cnp_dscp);
  const std::string priority = std::to_string(settings.cnp_priority);
  const std::string ecn = host.root + "/sys/class/net/" + on.name + "/ecn/roce_np/";
  const std::vector<FileValue> vendors{{"dscp", ecn + "cnp_dscp", dscp},
                                       {"priority", ecn + "cnp_802p_prio", priority}};
  if (AllThere(vendors)) return OfFiles("sysfs", vendors);
  if (on.driver != "mlx5_core") return ShowsNothing(on);
  const std::string kernels = host.root + "/sys/kernel/debug/mlx5/" + on.pci + "/cc_params/";
  const std::vector<FileValue> debug{{"dscp", kernels + "np_cnp_dscp", dscp},
                                     {"priority", kernels + "np_cnp_prio", priority}};
  if (AllThere(debug)) return OfFiles("debugfs", debug);
  const std::string port = FirmwarePort(on);
  return Firmware(host, on,
                  {{"CNP_DSCP" + port, [value = settings.cnp_dscp](int64_t) { return value; }},
                   {"CNP_802P_PRIO" + port, [value = settings.cnp_priority](int64_t) { return value; }}});
}

}  // namespace muster::roce
