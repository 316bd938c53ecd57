#include "net/roce/knobs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/small_files.h"
#include "base/unique_fd.h"

namespace muster::roce {
namespace {

using nlohmann::json;

constexpr const char* kNotForced = "not forced";
constexpr const char* kTrustsDscp = "DSCP";
constexpr const char* kTrustsPcp = "PCP";
constexpr const char* kEgress = "EGRESS priority mappings:";

// A knob of one interface with one way to read it and one to set it.
struct Way {
  std::string via;
  std::string should;
  std::function<Result<std::string>()> read;
  std::string fix;              // what a person would type
  std::function<Status()> set;  // none: a person must
  bool at_reboot = false;       // what is set holds from the next one on
};

std::string LastLine(const std::string& text) {
  const auto lines = Words(text, "\n");
  return lines.empty() ? "" : lines.back();
}

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// What a program has printed; an error: why it did not.
Result<std::string> Output(const Host& host, const std::vector<std::string>& words) {
  const auto ran = host.run(words);
  if (!ran) return ran.error();
  if (ran->code == 0) return ran->output;
  if (ran->code == kNoProgram) return Error{Errc::kNotFound, fmt::format("{} is not installed", words[0])};
  if (ran->code == kTooLong) return Error{Errc::kUnavailable, fmt::format("{} does not end", words[0])};
  const std::string said = LastLine(ran->output);
  return Error{Errc::kUnavailable, said.empty() ? fmt::format("{} ended with {}", words[0], ran->code)
                                                : fmt::format("{}: {}", words[0], said)};
}

std::function<Status()> Running(const Host& host, std::vector<std::string> words) {
  return [&host, words = std::move(words)]() -> Status {
    const auto output = Output(host, words);
    return output ? Status() : output.error();
  };
}

// A file of /sys, which takes a value whole or not at all.
Status WriteValue(const std::string& path, const std::string& value) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_TRUNC));
  if (file.valid() && ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size()))
    return {};
  return Error{Errc::kDenied, fmt::format("{}: {}", path, std::strerror(errno))};
}

Result<std::string> ReadValue(const std::string& path) {
  const auto text = ReadSmallFile(path);
  if (!text) return Error{Errc::kUnavailable, fmt::format("{} cannot be read", path)};
  const auto words = Words(*text);
  return words.empty() ? std::string() : words[0];
}

// Several files, each with a value of its own.
struct FileValue {
  std::string name;  // what it is called in answers
  std::string path;
  std::string value;
};

std::string Show(const std::vector<FileValue>& files,
                 const std::function<std::string(const FileValue&)>& value) {
  std::vector<std::string> parts;
  parts.reserve(files.size());
  for (const FileValue& file : files) parts.push_back(fmt::format("{} {}", file.name, value(file)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

Way OfFiles(const std::string& via, const std::vector<FileValue>& files) {
  std::vector<std::string> fixes;
  fixes.reserve(files.size());
  for (const FileValue& file : files) fixes.push_back(fmt::format("echo {} >{}", file.value, file.path));
  return {via, Show(files, [](const FileValue& file) { return file.value; }),
          [files]() -> Result<std::string> {
            Status good;
            std::string shown = Show(files, [&](const FileValue& file) {
              const auto value = ReadValue(file.path);
              if (!value) good = value.error();
              return value ? *value : "";
            });
            if (!good) return good.error();
            return shown;
          },
          fmt::format("{}", fmt::join(fixes, " && ")),
          [files]() -> Status {
            for (const FileValue& file : files) {
              const auto now = ReadValue(file.path);
              if (now && *now == file.value) continue;
              if (Status written = WriteValue(file.path, file.value); !written) return written;
            }
            return {};
          }};
}

bool AllThere(const std::vector<FileValue>& files) {
  return std::ranges::all_of(files,
                             [](const FileValue& file) { return ::access(file.path.c_str(), F_OK) == 0; });
}

// ---- one knob after another

std::string MtuFile(const Host& host, const std::string& interface) {
  return host.root + "/sys/class/net/" + interface + "/mtu";
}

Way Mtu(const Host& host, const std::string& interface, int64_t bytes) {
  const std::string should = std::to_string(bytes);
  const std::vector<std::string> set{"ip", "link", "set", "dev", interface, "mtu", should};
  return {"ip", should, [path = MtuFile(host, interface)] { return ReadValue(path); }, Joined(set),
          Running(host, set)};
}

// What carries a VLAN may have a larger one, for others.
Way ParentMtu(const Host& host, const Settings& settings, const std::string& interface) {
  const auto now = static_cast<int64_t>(ReadNumber(MtuFile(host, interface)).value_or(0));
  return Mtu(host, interface, std::max(settings.mtu, now));
}

// Of the two sections of `ethtool -g`: what there may be at most, and what there is.
struct Rings {
  int64_t receive = 0;
  int64_t send = 0;
};
Result<std::pair<Rings, Rings>> ReadRings(const Host& host, const PhysicalPort& on) {
  const auto output = Output(host, {"ethtool", "-g", on.name});
  if (!output) return output.error();
  std::array<Rings, 2> sections;
  size_t section = 0;
  for (const std::string& line : Words(*output, "\n")) {
    if (line.starts_with("Current")) section = 1;
    const auto words = Words(line);
    const auto number = words.size() == 2 ? ParseDecimal(words[1]) : std::nullopt;
    if (number && words[0] == "RX:") sections[section].receive = static_cast<int64_t>(*number);
    if (number && words[0] == "TX:") sections[section].send = static_cast<int64_t>(*number);
  }
  if (section == 0 || sections[0].receive == 0 || sections[0].send == 0)
    return Error{Errc::kUnavailable,
                 fmt::format("the driver {} does not say how large they may be", on.driver)};
  return std::pair(sections[0], sections[1]);
}

Result<Way> RingSizes(const Host& host, const Settings& settings, const PhysicalPort& on) {
  const auto read = ReadRings(host, on);
  if (!read) return read.error();
  const Rings& most = read->first;
  const auto text = [](const Rings& rings) {
    return fmt::format("receive {}, send {}", rings.receive, rings.send);
  };
  const Rings should{std::min(settings.rings, most.receive), std::min(settings.rings, most.send)};
  const std::vector<std::string> set{
      "ethtool", "-G", on.name, "rx", std::to_string(should.receive), "tx", std::to_string(should.send)};
  return Way{"ethtool", text(should),
             [&host, on, text]() -> Result<std::string> {
               const auto now = ReadRings(host, on);
               if (!now) return now.error();
               return text(now->second);
             },
             Joined(set), Running(host, set)};
}

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

Way Dcbx(const Host& host, const PhysicalPort& on) {
  return Dcb(
      host, on, {"dcbx", "show"}, "host",
      [](const json& document) { return document.value("host", false) ? "host" : "the adapter's firmware"; },
      {"dcbx", "set", "host", "ieee"});
}

std::string Mapping(int64_t dscp, int64_t priority) {
  return fmt::format("{}:{}", dscp, priority);
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

// By what an adapter finds the priority of a packet: its DSCP, or the PCP of its VLAN's tag. The kernel's drivers trust the DSCP
// as soon as they have an entry for one. Set by `dscp`, of each port.
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

// Where the PCP is trusted, rdma_cm finds it through the VLAN's map, by the priority that the kernel derives from the traffic
// class (ip_tos2prio).
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

Error ShowsNothing(const PhysicalPort& on) {
  return {Errc::kUnavailable, on.driver.empty()
                                  ? std::string("the interface has no driver that could show it")
                                  : fmt::format("the driver {} does not show it", on.driver)};
}

// Which port of its adapter an interface is: each has a PCI function of its own.
std::string FirmwarePort(const PhysicalPort& on) {
  return on.pci.ends_with(".1") ? "_P2" : "_P1";
}

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

// What rdma_cm gives a connection whose program says nothing. A device's directory is made by whoever wants to see it; until then
// nobody has changed the kernel's own values.
Way Cma(const Host& host, const RdmaPort& port, const std::string& file, const std::string& should,
        const std::string& at_first) {
  const std::string all = host.root + "/sys/kernel/config/rdma_cm";
  const std::string device = all + "/" + port.device;
  const std::string path = device + "/ports/" + port.port + "/" + file;
  return {"configfs", should,
          [=]() -> Result<std::string> {
            if (::access(all.c_str(), F_OK) != 0)
              return Error{Errc::kUnavailable, fmt::format("{} is missing: rdma_cm is not loaded", all)};
            const auto text = ReadSmallFile(path);
            if (!text) return at_first;
            return ReadLine(path);
          },
          fmt::format("mkdir -p {} && echo '{}' >{}", device, should, path),
          [=]() -> Status {
            if (::mkdir(device.c_str(), 0755) != 0 && errno != EEXIST)
              return Error{Errc::kDenied, fmt::format("{}: {}", device, std::strerror(errno))};
            return WriteValue(path, should);
          }};
}

// Whether a route to part of a network, or to more than it, leads out of an interface: one that somebody has set, and not the one that
// comes with the address.
Result<bool> Leads(const Host& host, const std::string& network, const HostAddress& own) {
  const char* family = own.text.find(':') == std::string::npos ? "-4" : "-6";
  for (const char* which : {"root", "match"}) {
    const auto routes = Output(host, {"ip", family, "route", "show", "table", "all", which, network});
    if (!routes) return routes.error();
    bool with_address = false;
    for (const std::string& line : Words(*routes, "\n")) {
      const auto words = Words(line);
      if (words.empty()) continue;
      // The next hops of a route have lines of their own.
      if (words[0] != "nexthop")
        with_address = words[0] == "local" || words[0] == "broadcast" || words[0] == "multicast" ||
                       line.find(" proto kernel ") != std::string::npos;
      const auto device = std::ranges::find(words, "dev");
      if (!with_address && device != words.end() && device + 1 != words.end() && device[1] == own.interface)
        return true;
    }
  }
  return false;
}

// The prefix that the kernel has for an address. With a longer one than the network's, others are out of reach where no route leads to
// them; a shorter one takes in other networks of the fabric.
Result<Way> Subnet(const Host& host, const Settings& settings, const HostAddress& own) {
  const auto has = [&own](const Network& network) { return network.Has(own.text); };
  const auto found = std::ranges::find_if(settings.networks, has);
  const auto at = static_cast<size_t>(found - settings.networks.begin());
  const std::string network = Words(settings.networks_text, ", ")[at];
  const std::string is = fmt::format("{}/{}", own.text, own.prefix);
  std::string should = fmt::format("{}/{}", own.text, found->prefix);
  bool fine = own.interface == "lo";
  if (own.prefix < found->prefix) {
    Network mine = *found;
    mine.prefix = own.prefix;
    fine = fine || std::ranges::none_of(settings.networks, [&](const Network& other) {
             return &other != &*found && mine.Overlaps(other);
           });
  } else if (own.prefix > found->prefix && !fine) {
    // With several interfaces in the network each has a part of it.
    fine = std::ranges::any_of(host.addresses(), [&](const HostAddress& other) {
      return other.interface != own.interface && found->Has(other.text);
    });
    if (!fine) {
      const auto leads = Leads(host, network, own);
      if (!leads) return leads.error();
      fine = *leads;
    }
  }
  if (fine) should = is;
  return Way{"ip", should, [is]() -> Result<std::string> { return is; },
             fmt::format("ip address add {} dev {} && ip address del {} dev {}", should, own.interface, is,
                         own.interface)};
}

// The vendor's driver gives each connection a class of its own, whatever programs say, once the file has one.
std::string ForcedClassFile(const Host& host, const RdmaPort& port) {
  return fmt::format("{}/sys/class/infiniband/{}/tc/{}/traffic_class", host.root, port.device, port.port);
}

Way ForcedClass(const Host& host, const Settings& settings, const RdmaPort& port) {
  const std::string path = ForcedClassFile(host, port);
  const auto read = [path]() -> Result<std::string> {
    if (!ReadSmallFile(path)) return Error{Errc::kUnavailable, fmt::format("{} cannot be read", path)};
    const std::string line = ReadLine(path);  // "Global tclass=106"
    return line.empty() ? std::string(kNotForced) : line.substr(line.find('=') + 1);
  };
  const std::string value = std::to_string(settings.TrafficClass());
  const auto now = read();
  return {"sysfs", now && *now == kNotForced ? kNotForced : value, read,
          fmt::format("echo {} >{}", value, path), [path, value] { return WriteValue(path, value); }};
}

Way NcclClass(const std::string& is, const Settings& settings) {
  const int64_t should = settings.TrafficClass();
  // As NCCL reads it: decimal, hexadecimal or octal.
  char* end = nullptr;
  const int64_t value = std::strtoll(is.c_str(), &end, 0);
  const bool same = !is.empty() && *end == '\0' && value == should;
  return {"nccl.conf", same ? is : std::to_string(should), [is]() -> Result<std::string> { return is; },
          fmt::format("sed -i 's/^ *NCCL_IB_TC *=.*/NCCL_IB_TC={}/' /etc/nccl.conf", should)};
}

// An adapter whose host takes no packets pauses its switch without end. After this time it stops that, and drops packets.
Way StormPrevention(const Host& host, const PhysicalPort& on) {
  // 65535: the driver's own time.
  const std::vector<std::string> set{"ethtool", "--set-tunable", on.name, "pfc-prevention-tout", "65535"};
  return {"ethtool", "on",
          [&host, on]() -> Result<std::string> {
            const auto output = Output(host, {"ethtool", "--get-tunable", on.name, "pfc-prevention-tout"});
            if (!output) return output.error();
            const auto words = Words(*output);
            const auto number = words.empty() ? std::nullopt : ParseDecimal(words.back());
            if (!number) return ShowsNothing(on);
            return std::string(*number == 0 ? "off" : "on");
          },
          Joined(set), Running(host, set)};
}

// Pauses that reached the time of their prevention since the driver was loaded. Those of the shorter time, warnings, are no finding.
Way PauseStorms(const Host& host, const PhysicalPort& on) {
  return {"ethtool", "none",
          [&host, on]() -> Result<std::string> {
            const auto output = Output(host, {"ethtool", "-S", on.name});
            if (!output) return output.error();
            std::optional<uint64_t> storms;
            for (const std::string& line : Words(*output, "\n")) {
              const auto words = Words(line, " \t:");
              if (words.size() != 2 || words[0].find("storm") == std::string::npos ||
                  words[0].find("warning") != std::string::npos)
                continue;
              if (const auto number = ParseDecimal(words[1])) storms = storms.value_or(0) + *number;
            }
            if (!storms) return ShowsNothing(on);
            return *storms == 0 ? "none" : fmt::format("{} counted", *storms);
          },
          on.pci.empty() ? fmt::format("ethtool -S {} | grep storm", on.name)
                         : fmt::format("devlink dev reload pci/{}", on.pci)};
}

// ---- all of them

Knob Ask(const std::string& interface, const std::string& driver, const std::string& name,
         const Result<Way>& way, bool set) {
  Knob knob{interface, driver, name, "", "", State::kUnknown, "", "", ""};
  if (!way) {
    knob.why = way.error().message;
    return knob;
  }
  knob.via = way->via;
  knob.should = way->should;
  const auto is = way->read();
  if (!is) {
    knob.why = is.error().message;
    return knob;
  }
  knob.is = *is;
  knob.state = knob.is == knob.should ? State::kIs : State::kDiffers;
  if (knob.state == State::kIs) return knob;
  knob.fix = way->fix;
  knob.can_set = way->set != nullptr;
  if (!set) return knob;
  const Status done = way->set();
  const auto now = way->read();
  if (now && *now == knob.should) {
    knob.state = State::kSet;
    if (way->at_reboot) knob.why = "from the next reboot on";
  } else {
    knob.why = !done ? done.error().message
               : now ? fmt::format("it was set, and is {}", *now)
                     : now.error().message;
  }
  return knob;
}

std::vector<Knob> OfPort(const Host& host, const Settings& settings, const PhysicalPort& on, bool set) {
  const auto ask = [&](const char* name, const Result<Way>& way) {
    return Ask(on.name, on.driver, name, way, set);
  };
  std::vector<Knob> knobs;
  if (settings.rings > 0) knobs.push_back(ask("rings", RingSizes(host, settings, on)));
  knobs.push_back(ask("dcbx", Dcbx(host, on)));
  knobs.push_back(ask("dscp", Dscp(host, settings, on)));
  knobs.push_back(ask("pfc", Pfc(host, settings, on)));
  if (settings.pfc == "yes") knobs.push_back(ask("storm_prevention", StormPrevention(host, on)));
  if (!set) knobs.push_back(ask("pause_storms", PauseStorms(host, on)));
  // Switches mark no packet whose ECN bits are 0, so adapters have no marks to react to (ecn) or to notify (cnp).
  if (settings.ecn_bits != 0) {
    knobs.push_back(ask("ecn", Ecn(host, settings, on)));
    knobs.push_back(ask("cnp", Cnp(host, settings, on)));
  }
  return knobs;
}

std::vector<Knob> Each(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces,
                       bool set) {
  std::vector<Knob> knobs;
  std::set<std::string> seen;
  for (const Interface& on : interfaces) {
    const auto ask = [&](const char* name, const Result<Way>& way) {
      knobs.push_back(Ask(on.name, on.driver, name, way, set));
    };
    for (const std::string& parent : on.parents) {
      if (seen.insert(parent + " mtu").second)
        knobs.push_back(Ask(parent, "", "mtu", ParentMtu(host, settings, parent), set));
    }
    ask("mtu", Mtu(host, on.name, settings.mtu));
    if (!set) {
      for (const HostAddress& own : on.addresses) ask("subnet", Subnet(host, settings, own));
    }
    for (const PhysicalPort& port : on.ports) {
      if (!seen.insert(port.name).second) continue;
      for (Knob& knob : OfPort(host, settings, port, set)) knobs.push_back(std::move(knob));
    }
    if (on.driver == "vlan") {
      ask("trust", Trust(host, settings, on));
      if (knobs.back().is.find(kTrustsPcp) != std::string::npos && knobs.back().state == State::kDiffers)
        ask("egress", Egress(host, settings, on));
    }
    for (const RdmaPort& port : on.rdma) {
      ask("cma_tos", Cma(host, port, "default_roce_tos", std::to_string(settings.TrafficClass()), "0"));
      ask("cma_mode", Cma(host, port, "default_roce_mode", "RoCE v2", "RoCE v2"));
      if (::access(ForcedClassFile(host, port).c_str(), F_OK) == 0)
        ask("traffic_class", ForcedClass(host, settings, port));
    }
  }
  const auto nccl = ReadNcclConf(host);
  const bool rdma = std::ranges::any_of(interfaces, [](const Interface& on) { return !on.rdma.empty(); });
  if (const auto own = nccl.find("NCCL_IB_TC"); !set && rdma && own != nccl.end())
    knobs.push_back(Ask("", "", "nccl_traffic_class", NcclClass(own->second, settings), set));
  return knobs;
}

}  // namespace

const char* Name(State state) {
  constexpr std::array kNames = {"is", "differs", "set", "unknown"};
  return kNames[static_cast<size_t>(state)];
}

std::vector<Knob> Check(const Host& host, const Settings& settings,
                        const std::vector<Interface>& interfaces) {
  return Each(host, settings, interfaces, false);
}

std::vector<Knob> Set(const Host& host, const Settings& settings, const std::vector<Interface>& interfaces) {
  return Each(host, settings, interfaces, true);
}

}  // namespace muster::roce
