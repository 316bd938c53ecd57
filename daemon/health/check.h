// Is this node fit to run members? GPUs (NVML), memory, disks, clock, NICs. What is checked, with which limit and
// which severity, is a table in docs/architecture.md, "Health".
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster {

struct Config;

enum class HealthSeverity {
  kWarning,  // for people; the node can be used
  kSick,     // the node must be replaced and drained
};

struct HealthFinding {
  std::string subject;  // "gpu 3", "nic rdma0", "memory", "disk /tmp", "clock", "node"
  std::string
      what;  // one sentence without the subject: "has 2 uncorrectable memory errors since it was reset"
  HealthSeverity severity = HealthSeverity::kWarning;
};

struct HealthReport {
  std::vector<HealthFinding> findings;  // empty: nothing found
  // Error counters of this node, by name: hand them to the next check as `last_counters`.
  std::map<std::string, uint64_t> counters;

  [[nodiscard]] bool sick() const;
  // The findings that make it sick in one line of at most 200 bytes, for Slurm's reason: "gpu 3 has ...; disk /tmp
  // is ...". Empty when it is not sick.
  [[nodiscard]] std::string Reason() const;
};

struct HealthOptions {
  std::string sys_root = "/sys";
  std::string proc_root = "/proc";
  std::string nvml_library = "libnvidia-ml.so.1";  // "" or not there: GPUs are not checked
  std::string helper;  // path of muster-health; "": beside this program, else in ../libexec/muster/
  std::chrono::milliseconds timeout{30'000};  // for the whole check
  // What a process that was just killed held is given so long to become free.
  std::chrono::milliseconds settle{3'000};

  std::vector<uint32_t> gpus;              // NVML's indices; empty: all
  std::vector<std::string> nics;           // must be there and up: RDMA devices or network interfaces
  std::string state_dir;                   // its file system must be writable and have room; "": not checked
  std::vector<std::string> disks;          // must be writable; without room: a warning
  uint64_t memory_min_bytes = 1ULL << 30;  // of MemAvailable
  uint32_t disk_free_percent = 2;          // of bytes, and of inodes
  uint64_t gpu_unowned_max_bytes = 1ULL << 30;  // memory in use on a GPU that no living process accounts for
  std::map<std::string, uint64_t> last_counters;  // of the last report; empty: the first check
};

// Options as the configuration has them.
HealthOptions HealthOptionsOf(const Config& config);

// Checks this node. Blocks for `timeout` at most, whatever hangs: call it on a worker thread. The work is done by a
// process of its own, muster-health, because a driver or a disk that hangs leaves its caller in an uninterruptible
// sleep, in which a thread could not be given up, and because a fault in a vendor's library must not end musterd.
// What did not answer in time is a finding (sick) that names it. Never throws. Thread-safe.
HealthReport CheckNode(const HealthOptions& options);

}  // namespace muster
