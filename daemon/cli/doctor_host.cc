// What the host is; its units, their limits, its name.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>

#include "base/run_program.h"
#include "base/small_files.h"
#include "daemon/cli/ask.h"
#include "daemon/cli/doctor_checks.h"
#include "daemon/cli/plugstack.h"
#include "daemon/cli/table.h"

namespace muster::cli {
namespace {

constexpr auto kSystemctl = std::chrono::seconds(10);

int ToInt(const std::string& text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// What `systemctl show` says of one unit.
Unit ParseUnit(std::map<std::string, std::string> fields) {
  Unit unit;
  unit.name = fields["Id"];
  unit.installed = fields["LoadState"] == "loaded";
  unit.state = fields["ActiveState"];
  unit.result = fields["Result"];
  unit.says = fields["StatusText"];
  unit.memlock = fields["LimitMEMLOCK"];
  unit.pid = ToInt(fields["MainPID"]);
  unit.wanted =
      unit.installed && (fields["UnitFileState"].starts_with("enabled") || unit.state != "inactive");
  return unit;
}

std::vector<Unit> ParseUnits(const std::string& text) {
  std::vector<Unit> units;
  std::map<std::string, std::string> fields;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = line.find('=');
    if (equals != std::string::npos) fields[line.substr(0, equals)] = line.substr(equals + 1);
    if ((!line.empty() && at < text.size()) || fields.empty()) continue;
    units.push_back(ParseUnit(std::move(fields)));
    fields.clear();
  }
  return units;
}

// Why it does not run, as far as systemd or the service itself has said.
std::string Why(const Unit& unit) {
  if (unit.state == "inactive" && unit.result == "success") return "";  // somebody has stopped it
  const std::string why = unit.result == "success" ? "" : fmt::format(" ({})", unit.result);
  return unit.says.empty() ? why : fmt::format("{}: {}", why, unit.says);
}

// Soft limit of locked memory; nothing: it cannot be read. UINT64_MAX: none.
std::optional<uint64_t> MemlockOf(int pid) {
  constexpr std::string_view kName = "Max locked memory";
  const std::string text = ReadSmallFile(fmt::format("/proc/{}/limits", pid)).value_or("");
  const size_t at = text.find(kName);
  if (at == std::string::npos) return std::nullopt;
  const auto words = Words(text.substr(at + kName.size(), text.find('\n', at) - at - kName.size()));
  if (words.empty()) return std::nullopt;
  return words[0] == "unlimited" ? UINT64_MAX : ParseDecimal(words[0]);
}

std::string Limit(uint64_t bytes) {
  return bytes == UINT64_MAX ? "unlimited" : Bytes(bytes);
}

std::string AddressText(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bits = address->sa_family == AF_INET
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                         : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  ::inet_ntop(address->sa_family, bits, text.data(), text.size());
  return text.data();
}

bool IsIp(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::vector<std::string> OwnAddresses() {
  ifaddrs* found = nullptr;
  std::vector<std::string> addresses;
  if (::getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(found, &::freeifaddrs);
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (IsIp(one->ifa_addr)) addresses.push_back(AddressText(one->ifa_addr));
  }
  return addresses;
}

// In the order in which programs try them. An error: why there is none.
Result<std::vector<std::string>> Resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found); error != 0)
    return Error{Errc::kNotFound, ::gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (IsIp(one->ai_addr)) addresses.push_back(AddressText(one->ai_addr));
  }
  return addresses;
}

bool HostsFileSays(const std::string& name, const std::string& address) {
  const std::string text = ReadText("/etc/hosts").value_or("");
  for (const std::string& line : Words(text, "\n")) {
    const auto words = Words(line);
    if (words.size() > 1 && words[0] == address && std::ranges::find(words, name) != words.end()) return true;
  }
  return false;
}

// How the name comes to stand for an address of this host.
std::string NameFix(const std::string& name, const std::string& wrong, const std::vector<std::string>& own) {
  const auto good = std::ranges::find_if_not(own, IsLoopback);
  const std::string right = good == own.end() ? "ADDRESS" : *good;
  std::string add = fmt::format("echo '{} {}' >>/etc/hosts", right, name);
  if (wrong.empty()) return add;
  if (!HostsFileSays(name, wrong)) return fmt::format("let DNS say {} of {}", right, name);
  const std::string take =
      fmt::format(R"(sed -i '/^{}[[:space:]]/s/[[:space:]]{}\b//g' /etc/hosts)", wrong, name);
  return HostsFileSays(name, right) ? take : take + " && " + add;
}

}  // namespace

const Unit& Host::unit(const std::string& service) const {
  static const Unit none;
  const auto found = std::ranges::find(units, service + ".service", &Unit::name);
  return found == units.end() ? none : *found;
}

bool Host::Has(const std::string& service) const {
  if (systemd) return unit(service).wanted;
  std::error_code ignored;
  if (service == "musterd") return config && std::filesystem::exists(config->socket, ignored);
  return service == "slurmd" ? !slurm.conf.empty() : false;
}

Host LookAtHost(const std::string& config_path, const std::vector<std::string>& needs) {
  Host host;
  host.root = ::geteuid() == 0;
  host.config_path = config_path;
  if (auto config = LoadConfig(config_path)) {
    host.config = *std::move(config);
  } else {
    host.config_error = config.error().message;
  }
  host.name = OwnName(host.config.value_or(Config()));
  host.slurm = FindSlurm();
  std::vector<std::string> words = {
      "systemctl", "show",
      "--property=Id,LoadState,UnitFileState,ActiveState,Result,StatusText,LimitMEMLOCK,MainPID"};
  for (const char* service : kServices) words.push_back(std::string(service) + ".service");
  const auto shown = RunProgram(std::move(words), kSystemctl);
  if (shown && shown->code == 0) host.units = ParseUnits(shown->output);
  host.systemd = !host.units.empty();
  for (Unit& unit : host.units) {
    unit.wanted |= std::ranges::any_of(
        needs, [&](const std::string& service) { return unit.name == service + ".service"; });
  }
  return host;
}

void CheckUnits(const Host& host, DoctorNotes& notes) {
  if (!host.systemd) return notes.Unchecked("services: systemd does not answer here");
  for (const Unit& unit : host.units) {
    if (!unit.wanted) continue;
    DoctorFinding finding{"unit-down", unit.name + " stopped", "", "active", ""};
    if (!unit.installed) {
      finding.is = unit.name + " is not installed";
      finding.fix = fmt::format("install the package that has {}", unit.name);
    } else {
      if (unit.state != "inactive" || unit.result != "success") finding.about = unit.name + " failed";
      finding.is = fmt::format("{} is {}{}", unit.name, unit.state, Why(unit));
      finding.fix = "systemctl restart " + unit.name;
    }
    notes.Check(unit.state == "active", finding);
  }
}

void CheckMemlock(const Host& host, DoctorNotes& notes) {
  if (!host.config || !host.systemd) return;
  const uint64_t least =
      host.config->memlock_limit == 0 ? UINT64_MAX : static_cast<uint64_t>(host.config->memlock_limit);
  for (const char* service : {"slurmd", "musterd"}) {
    const Unit& unit = host.unit(service);
    const auto limit = unit.pid > 0 ? MemlockOf(unit.pid) : std::nullopt;
    if (!limit) continue;
    const uint64_t said = unit.memlock == "infinity" ? UINT64_MAX : ParseDecimal(unit.memlock).value_or(0);
    const std::string restart = fmt::format("systemctl restart {}", unit.name);
    const std::string drop_in = fmt::format("/etc/systemd/system/{}.d", unit.name);
    const std::string raise = fmt::format(
        R"(mkdir -p {0} && printf '[Service]\nLimitMEMLOCK=infinity\n' >{0}/zz-memlock.conf && systemctl daemon-reload && {1})",
        drop_in, restart);
    notes.Check(
        *limit >= least,
        {"memlock", unit.name, fmt::format("{} may lock {} of memory", unit.name, Limit(*limit)),
         least == UINT64_MAX ? "unlimited, or what memlock_limit in muster.yaml says"
                             : fmt::format("at least {} (memlock_limit in muster.yaml)", Bytes(least)),
         said >= least ? restart : raise});
  }
}

void CheckName(const Host& host, DoctorNotes& notes) {
  const std::string should = "an address of this host";
  notes.Next({"hosts-entry", "", fmt::format("the name service does not answer for {}", host.name), should,
              "see /etc/nsswitch.conf and /etc/resolv.conf; /etc/hosts needs no server"});
  const std::vector<std::string> own = OwnAddresses();
  const auto resolved = Resolve(host.name);
  DoctorFinding finding{"hosts-entry", "", "", should, ""};
  std::string wrong;
  if (resolved) {
    for (const std::string& address : *resolved) {
      if (IsLoopback(address) || std::ranges::find(own, address) != own.end()) continue;
      wrong = address;
      break;
    }
    finding.is = fmt::format("{} stands for {}, which this host does not have", host.name, wrong);
  } else {
    finding.is = fmt::format("{} stands for no address: {}", host.name, resolved.error().message);
  }
  finding.fix = NameFix(host.name, wrong, own);
  notes.Check(resolved.ok() && wrong.empty(), finding);
}

}  // namespace muster::cli
