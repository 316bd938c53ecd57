// The kernel log's records that say why a program may have died. Pure: text in, facts out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

// Whose fault a fact points to.
enum class FactClass {
  kNeutral,   // says nothing about that: a link that came up, a corrected error
  kHardware,  // the infrastructure's: hardware, firmware, drivers, cables
  kUser,      // the program's
};
const char* ToString(FactClass fact_class);

enum class FactKind {
  kXid,       // NVIDIA's driver reports a GPU error
  kGpu,       // the driver says so without an Xid: lost, did not initialise, NVSwitch, peer memory
  kLinkDown,  // of a network interface or a PCIe slot
  kLinkUp,
  kMachineCheck,  // CPU, memory or PCIe: machine checks, EDAC, APEI, AER
  kOomKill,
  kCrash,     // a program's segmentation fault and its kin
  kIoError,   // a block device or a file system
  kReadOnly,  // a file system was remounted read-only or shut down
  kNic,       // a NIC's firmware or driver
  kStuck,     // a task or a CPU that does not go on
};
const char* ToString(FactKind kind);

struct KernelFact {
  FactKind kind = FactKind::kXid;
  FactClass fact_class = FactClass::kNeutral;
  int64_t time_ns = 0;    // CLOCK_REALTIME
  uint64_t sequence = 0;  // the record's number in the kernel's log
  std::string text;       // the kernel's line, printable, at most 256 bytes
  std::string meaning;    // of an Xid: what it means, in a few words; else ""
  std::string device;     // PCI address, interface, disk; "" when the line has none
  uint32_t xid = 0;       // kXid: its number
  pid_t pid = 0;       // kXid, kOomKill, kCrash, kStuck: of the process, as this host numbers it; 0: not told
  std::string comm;    // its name
  std::string cgroup;  // kOomKill: of the process
};

// Whether a fact may explain how process `pid` (as this host numbers it) ended. What the kernel said of another process
// says nothing about this one: nodes are shared. What points to hardware concerns all.
inline bool Concerns(const KernelFact& fact, pid_t pid) {
  return fact.fact_class == FactClass::kHardware || fact.pid == 0 || fact.pid == pid;
}

// A record's line: "priority,sequence,microseconds,flags;text".
struct KernelRecord {
  uint32_t priority = 0;  // syslog's: facility * 8 + level
  uint64_t sequence = 0;
  int64_t log_us = 0;  // of the kernel log's clock: since boot
  std::string_view text;
};
std::optional<KernelRecord> ParseKernelRecord(std::string_view line);

// Not thread-safe; remembers what belongs to a record to come (an OOM kill is told in two).
class KernelFactParser {
 public:
  // A fact without time_ns, or nothing when the record is none of these or not the kernel's own.
  std::optional<KernelFact> Parse(const KernelRecord& record);

 private:
  std::map<pid_t, std::string> oom_cgroups_;  // of kills announced and not yet reported; few
};

struct XidMeaning {
  uint32_t number;
  FactClass fact_class;
  const char* meaning;
};
// Null for a number that is not in the table.
const XidMeaning* FindXid(uint32_t number);

}  // namespace muster
