#include "net/roce/ways.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/small_files.h"

namespace muster::roce {
namespace {

using nlohmann::json;

constexpr const char* kTrustsDscp = "DSCP";
constexpr const char* kEgress = "EGRESS priority mappings:";

// A knob of the kernel's DCB interface. `object` and `what` are dcb's words for it.
Way Dcb(const Host& host, const PhysicalPort& on, std::vector<std::string> show, const std::string& should,
        std::function<std::string(const json&)> text, std::vector<std::string> set) {
  show.insert(show.begin(), {"dcb", "-j"});
  set.insert(set.begin(), "dcb");
  const auto with_device = [&](std::vector<std::string>& words, size_t at) {
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), {"dev", on.name});
  };
  with_device(show, 4);
  with_device(set, 3);
  return {
      "dcb", should,
      [&host, show, text = std::move(text)]() -> Result<std::string> {
        const auto output = Output(host, show);
        if (!output) return output.error();
        const json document = json::parse(*output, nullptr, false);
        if (!document.is_object())
          return Error{Errc::kUnavailable, fmt::format("dcb says '{}'", LastLine(*output))};
        try {
          return text(document);
        } catch (const json::exception& error) {
          return Error{Errc::kUnavailable, fmt::format("dcb says what was not expected: {}", error.what())};
        }
      },
      Joined(set), Running(host, set)};
}

std::string Mapping(int64_t dscp, int64_t priority) {
  return fmt::format("{}:{}", dscp, priority);
}

}  // namespace

Way Dcbx(const Host& host, const PhysicalPort& on) {
  Way way = Dcb(
      host, on, {"dcbx", "show"}, "host",
      [](const json& document) { return document.value("host", false) ? "host" : "the adapter's firmware"; },
      {"dcbx", "set", "host", "ieee"});
  // As long as the agent of its firmware runs, this driver takes nothing of dcb; it is the host's as soon as the agent has ended.
  if (on.driver == "ice") {
    const std::vector<std::string> set{"ethtool", "--set-priv-flags", on.name, "fw-lldp-agent", "off"};
    way.fix = Joined(set);
    way.set = Running(host, set);
  }
  return way;
}

Way Dscp(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const std::string data = Mapping(settings.dscp, settings.priority);
  const std::string cnp = Mapping(settings.cnp_dscp, settings.cnp_priority);
  const auto text = [settings](const json& document) {
    std::vector<std::string> found;
    for (const json& pair : document.value("dscp_prio", json::array())) {
      const int64_t dscp = pair.at(0);
      if (dscp == settings.dscp || dscp == settings.cnp_dscp) found.push_back(Mapping(dscp, pair.at(1)));
    }
    std::ranges::sort(found, {}, [](const std::string& one) { return std::stoi(one); });
    return found.empty() ? std::string("none") : Joined(found);
  };
  const bool data_first = settings.dscp < settings.cnp_dscp;
  return Dcb(host, on, {"app", "show", "dscp-prio"}, data_first ? data + " " + cnp : cnp + " " + data, text,
             {"app", "replace", "dscp-prio", data, cnp});
}

Way Trust(const Host& host, const Settings& settings, const Interface& on) {
  std::vector<std::string> fixes;
  for (const PhysicalPort& port : on.ports) fixes.push_back(Dscp(host, settings, port).fix);
  return {"dcb", kTrustsDscp,
          [&host, &on]() -> Result<std::string> {
            std::set<std::string> trusted;
            for (const PhysicalPort& port : on.ports) {
              const auto output = Output(host, {"dcb", "-j", "app", "show", "dev", port.name, "dscp-prio"});
              if (!output) return output.error();
              const json document = json::parse(*output, nullptr, false);
              const bool dscp = document.is_object() && !document.value("dscp_prio", json::array()).empty();
              trusted.insert(dscp ? kTrustsDscp : kTrustsPcp);
            }
            return fmt::format("{}", fmt::join(trusted, ", "));
          },
          fmt::format("{}", fmt::join(fixes, " && ")),
          [] {
            return Status(Error{Errc::kUnavailable, "a port of it has no entry for a DSCP: see `dscp`"});
          }};
}

Way Egress(const Host& host, const Settings& settings, const Interface& on) {
  constexpr std::array kKernelPriorities{0, 2, 6, 4};
  const int from = kKernelPriorities[static_cast<size_t>(settings.TrafficClass() >> 3 & 3)];
  const std::string should = Mapping(from, settings.priority);
  const std::vector<std::string> set{"ip",   "link",           "set", "dev", on.name, "type",
                                     "vlan", "egress-qos-map", should};
  return {"ip", should,
          [path = host.root + "/proc/net/vlan/" + on.name, from]() -> Result<std::string> {
            const auto text = ReadSmallFile(path);
            if (!text) return Error{Errc::kUnavailable, fmt::format("{} cannot be read", path)};
            const size_t begin = text->find(kEgress);
            if (begin == std::string::npos)
              return Error{Errc::kUnavailable, fmt::format("{} does not show it", path)};
            const size_t at = begin + std::strlen(kEgress);
            for (const std::string& pair : Words(text->substr(at, text->find('\n', at) - at))) {
              if (pair.starts_with(fmt::format("{}:", from))) return pair;
            }
            return Mapping(from, 0);
          },
          Joined(set), Running(host, set)};
}

Way Pfc(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const std::string priority = std::to_string(settings.priority);
  const bool lossless = settings.pfc == "yes";
  std::vector<std::string> set{"pfc", "set", "prio-pfc", "all:off"};
  if (lossless) set.push_back(priority + ":on");
  const auto text = [](const json& document) {
    const json& flags = document.at("prio_pfc");
    std::vector<std::string> on;
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i] == true || flags[i] == "on") on.push_back(std::to_string(i));
    }
    return on.empty() ? std::string("none") : Joined(on);
  };
  return Dcb(host, on, {"pfc", "show", "prio-pfc"}, lossless ? priority : "none", text, set);
}

}  // namespace muster::roce
