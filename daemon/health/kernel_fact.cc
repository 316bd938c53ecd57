#include "daemon/health/kernel_fact.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "base/small_files.h"

namespace muster {
namespace {

constexpr size_t kMaxText = 256;
constexpr size_t kMaxName = 64;
constexpr size_t kMaxCgroup = 512;
constexpr size_t kMaxPendingKills = 64;

using std::string_view;

bool Has(string_view text, string_view part) {
  return text.find(part) != string_view::npos;
}
bool HasAny(string_view text, std::initializer_list<string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](string_view part) { return Has(text, part); });
}
std::string Lower(string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// What lies between two texts, or "". The end may also be the text's end.
string_view Between(string_view text, string_view begin, string_view end) {
  const size_t at = text.find(begin);
  if (at == string_view::npos) return {};
  text.remove_prefix(at + begin.size());
  return text.substr(0, text.find(end));
}
string_view LastWord(string_view text) {
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text.substr(text.rfind(' ') + 1);  // npos + 1 is 0
}

template <typename Number>
Number NumberIn(string_view text) {
  Number number = 0;
  const size_t quote = text.find_first_not_of(" '");
  if (quote != string_view::npos) text.remove_prefix(quote);
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}
pid_t PidIn(string_view text) {
  return std::max<pid_t>(NumberIn<pid_t>(text), 0);
}

std::string Printable(string_view text, size_t limit) {
  std::string clean(text.substr(0, limit));
  for (char& c : clean) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return clean;
}

KernelFact Make(FactKind kind, FactClass fact_class, string_view device = {}) {
  KernelFact fact;
  fact.kind = kind;
  fact.fact_class = fact_class;
  fact.device = Printable(device, kMaxName);
  return fact;
}

// "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."; older drivers leave out
// "PCI:", pid and name, and write '<unknown>' for either.
std::optional<KernelFact> Nvidia(string_view text) {
  if (Has(text, "SXid (")) {
    const bool fatal = Has(text, "Fatal") && !Has(text, "Non-fatal");
    return Make(FactKind::kGpu, fatal ? FactClass::kHardware : FactClass::kNeutral,
                Between(text, "(PCI:", ")"));
  }
  if (Has(text, "NVRM: Xid (")) {
    string_view address = Between(text, "Xid (", ")");
    if (address.starts_with("PCI:")) address.remove_prefix(4);
    const auto number = NumberIn<uint32_t>(Between(text, "): ", ","));
    const XidMeaning* const known = FindXid(number);
    KernelFact fact =
        Make(FactKind::kXid, known != nullptr ? known->fact_class : FactClass::kNeutral, address);
    fact.xid = number;
    fact.meaning = known != nullptr ? known->meaning : "not in Muster's table";
    fact.pid = PidIn(Between(text, " pid=", ","));
    const string_view name = Between(text, " name=", ",");
    if (!name.starts_with('<')) fact.comm = Printable(name, kMaxName);
    return fact;
  }
  if (Has(text, "NVRM: ") &&
      HasAny(text, {"fallen off the bus", "RmInitAdapter failed", "GPU lost", "API mismatch"})) {
    return Make(FactKind::kGpu, FactClass::kHardware, Between(text, "GPU ", ": "));
  }
  if (HasAny(text, {"nvidia-peermem", "nvidia_peermem", "nv_peer_mem"}) &&
      HasAny(Lower(text), {"error", "fail"})) {
    return Make(FactKind::kGpu, FactClass::kNeutral);
  }
  return std::nullopt;
}

std::optional<KernelFact> Link(string_view text) {
  const std::string lower = Lower(text);
  for (const string_view phrase : {"link is down", "link down", "link status definitely down", "link is up",
                                   "link up", "link status definitely up"}) {
    const size_t at = lower.find(phrase);
    if (at == std::string::npos) continue;
    string_view before = text.substr(0, at);
    if (before.ends_with("SATA ")) return std::nullopt;  // an empty socket, at each boot
    if (before.ends_with("NIC ")) before.remove_suffix(4);
    string_view device = LastWord(before);
    while (!device.empty() && (device.back() == ':' || device.back() == ')')) {
      if (device.back() == ')' && Has(device, "(")) break;
      device.remove_suffix(1);
    }
    const bool down = phrase.ends_with("down");
    return Make(down ? FactKind::kLinkDown : FactKind::kLinkUp,
                down ? FactClass::kHardware : FactClass::kNeutral, device);
  }
  return std::nullopt;
}

// "... Bank 5: be00000000800400": bit 61 of the bank's status says that the error was not corrected.
bool UncorrectedBank(string_view text) {
  string_view status = Between(text, "Bank ", "\n");
  status = status.substr(std::min(status.find(": ") + 2, status.size()));
  uint64_t bits = 0;
  std::from_chars(status.data(), status.data() + status.size(), bits, 16);
  return Has(text, "Bank ") && (bits >> 61 & 1) != 0;
}

std::optional<KernelFact> MachineCheck(string_view text) {
  const std::string lower = Lower(text);
  const bool edac = Has(text, "EDAC ") && HasAny(text, {" CE ", " UE "});
  const bool memory = Has(text, "Memory failure: ");
  const bool pcie = (Has(text, "AER: ") && Has(lower, "error")) || Has(text, "PCIe Bus Error: ");
  const bool machine = Has(text, "[Hardware Error]") || Has(lower, "machine check") ||
                       (Has(text, "mce: ") && Has(lower, "uncorrected"));
  if (!edac && !memory && !pcie && !machine) return std::nullopt;
  const bool bad =
      (edac && Has(text, " UE ")) || memory || UncorrectedBank(text) ||
      HasAny(lower, {"event severity: fatal", "event severity: recoverable", "uncorrected", "uncorrectable"});
  return Make(FactKind::kMachineCheck, bad ? FactClass::kHardware : FactClass::kNeutral);
}

std::optional<KernelFact> Storage(string_view text) {
  const std::string lower = Lower(text);
  string_view device = Between(text, "dev ", ",");
  if (HasAny(text, {"EXT4-fs", "XFS (", "BTRFS", "F2FS"})) {
    device = Between(text, "(", ")");
    if (device.starts_with("device ")) device.remove_prefix(7);
  }
  if (Has(text, "nvme nvme")) device = Between(text, "nvme ", ":");
  if (HasAny(lower, {"remounting filesystem read-only", "forced readonly", "shutting down filesystem",
                     "filesystem has been shut down"})) {
    return Make(FactKind::kReadOnly, FactClass::kHardware, device);
  }
  if (device.starts_with("fd") || device.starts_with("sr")) return std::nullopt;  // drives without a medium
  const bool filesystem = HasAny(text, {"EXT4-fs error", "BTRFS error", "BTRFS critical"}) ||
                          (Has(text, "XFS (") && HasAny(lower, {"i/o error", "corruption"}));
  const bool disk = HasAny(text, {"I/O error, dev ", "I/O error on dev ", "critical medium error",
                                  "critical target error"}) ||
                    (Has(text, "nvme nvme") && HasAny(lower, {" timeout", "controller is down"}));
  if (!filesystem && !disk) return std::nullopt;
  return Make(FactKind::kIoError, FactClass::kHardware, device.substr(0, device.find(' ')));
}

std::optional<KernelFact> Nic(string_view text) {
  if (Has(text, "NETDEV WATCHDOG: ")) {
    return Make(FactKind::kNic, FactClass::kHardware, Between(text, "WATCHDOG: ", " "));
  }
  if (Has(text, "mlx5_core ") && HasAny(text, {"health compromised", "assert_var", "Will cause a leak",
                                               "Fatal error", "fatal sensor"})) {
    return Make(FactKind::kNic, FactClass::kHardware, Between(text, "mlx5_core ", ": "));
  }
  if (Has(text, "bnxt_en ") && HasAny(text, {"Firmware fatal", "firmware fatal", "not responding"})) {
    return Make(FactKind::kNic, FactClass::kHardware, Between(text, "bnxt_en ", ": "));
  }
  return std::nullopt;
}

// "python[1234]: segfault at 0 ip ...", "traps: python[1234] general protection fault ip:...".
std::optional<KernelFact> Crash(string_view text) {
  const bool trap = text.starts_with("traps: ");
  if (!trap && !Has(text, "]: segfault at ")) return std::nullopt;
  if (trap) text.remove_prefix(7);
  const size_t bracket = text.rfind('[', text.find("] "));
  const size_t segfault_bracket = text.rfind('[', text.find("]: segfault at "));
  const size_t at = trap ? bracket : segfault_bracket;
  if (at == string_view::npos) return std::nullopt;
  KernelFact fact = Make(FactKind::kCrash, FactClass::kUser);
  fact.comm = Printable(text.substr(0, at), kMaxName);
  fact.pid = PidIn(text.substr(at + 1));
  return fact;
}

std::optional<KernelFact> Stuck(string_view text) {
  if (Has(text, " blocked for more than ") && Has(text, "task ")) {
    const string_view task = Between(text, "task ", " blocked for more than ");
    KernelFact fact = Make(FactKind::kStuck, FactClass::kNeutral);
    const size_t colon = task.rfind(':');
    if (colon != string_view::npos) {
      fact.comm = Printable(task.substr(0, colon), kMaxName);
      fact.pid = PidIn(task.substr(colon + 1));
    }
    return fact;
  }
  if (HasAny(text, {"hard LOCKUP", "BUG: unable to handle", "kernel BUG at "})) {
    return Make(FactKind::kStuck, FactClass::kHardware);
  }
  if (HasAny(text, {"BUG: soft lockup", "self-detected stall on CPU", "detected stalls on CPUs"})) {
    return Make(FactKind::kStuck, FactClass::kNeutral);
  }
  return std::nullopt;
}

// "Memory cgroup out of memory: Killed process 1234 (python) total-vm:...". A name may contain what looks like the
// line's own text; only that name is then wrong.
std::optional<KernelFact> OomKill(string_view text) {
  if (!Has(text, "ut of memory") || !Has(text, "Killed process ")) return std::nullopt;
  const string_view rest = Between(text, "Killed process ", "\n");
  KernelFact fact = Make(FactKind::kOomKill, FactClass::kUser);
  fact.pid = PidIn(rest);
  const size_t open = rest.find('(');
  const size_t marked = rest.rfind(") total-vm:");
  const size_t close = marked != string_view::npos ? marked : rest.rfind(')');
  if (open != string_view::npos && close != string_view::npos && close > open) {
    fact.comm = Printable(rest.substr(open + 1, close - open - 1), kMaxName);
  }
  return fact;
}

}  // namespace

const char* ToString(FactClass fact_class) {
  switch (fact_class) {
    case FactClass::kNeutral:
      return "neutral";
    case FactClass::kHardware:
      return "hardware";
    case FactClass::kUser:
      return "user";
  }
  return "neutral";
}

const char* ToString(FactKind kind) {
  switch (kind) {
    case FactKind::kXid:
      return "xid";
    case FactKind::kGpu:
      return "gpu";
    case FactKind::kLinkDown:
      return "link_down";
    case FactKind::kLinkUp:
      return "link_up";
    case FactKind::kMachineCheck:
      return "machine_check";
    case FactKind::kOomKill:
      return "oom_kill";
    case FactKind::kCrash:
      return "crash";
    case FactKind::kIoError:
      return "io_error";
    case FactKind::kReadOnly:
      return "read_only";
    case FactKind::kNic:
      return "nic";
    case FactKind::kStuck:
      return "stuck";
  }
  return "stuck";
}

std::optional<KernelRecord> ParseKernelRecord(string_view line) {
  const size_t semicolon = line.find(';');
  if (semicolon == string_view::npos) return std::nullopt;
  string_view prefix = line.substr(0, semicolon);
  KernelRecord record;
  const auto take = [&](auto* number, bool last) {
    const char* const end = prefix.data() + prefix.size();
    const auto [stop, error] = std::from_chars(prefix.data(), end, *number);
    if (error != std::errc() || (stop == end ? !last : *stop != ',')) return false;
    prefix.remove_prefix(static_cast<size_t>(stop - prefix.data()) + (stop == end ? 0 : 1));
    return true;
  };
  if (!take(&record.priority, false) || !take(&record.sequence, false) || !take(&record.log_us, true)) {
    return std::nullopt;
  }
  if (record.log_us < 0) return std::nullopt;
  record.text = line.substr(semicolon + 1);
  return record;
}

std::optional<KernelFact> KernelFactParser::Parse(const KernelRecord& record) {
  if (record.priority >> 3 != 0) return std::nullopt;  // written by a program through /dev/kmsg
  const string_view text = record.text;
  // The victim's cgroup is in a line of its own, just before.
  if (text.starts_with("oom-kill:")) {
    if (oom_cgroups_.size() >= kMaxPendingKills) oom_cgroups_.clear();
    const size_t pid_at = text.rfind(",pid=");  // after the name, which may contain anything
    const size_t cgroup_at = text.find("task_memcg=");
    if (pid_at != string_view::npos && cgroup_at != string_view::npos) {
      const string_view cgroup = text.substr(cgroup_at + 11);
      oom_cgroups_[PidIn(text.substr(pid_at + 5))] =
          Printable(cgroup.substr(0, cgroup.find(",task=")), kMaxCgroup);
    }
    return std::nullopt;
  }
  for (const auto parse : {OomKill, Nvidia, Crash, Stuck, MachineCheck, Storage, Nic, Link}) {
    std::optional<KernelFact> fact = parse(text);
    if (!fact) continue;
    fact->sequence = record.sequence;
    fact->text = Printable(text, kMaxText);
    if (fact->kind == FactKind::kOomKill) {
      if (const auto known = oom_cgroups_.extract(fact->pid)) fact->cgroup = known.mapped();
    }
    return fact;
  }
  return std::nullopt;
}

}  // namespace muster
