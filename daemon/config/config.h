// /etc/muster/muster.yaml. Every key has a default and a unit; an unknown key, a wrong type or a value out of
// range is an error that names the file, the line and what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace muster {

struct Config {
  std::string store = "dir:/var/lib/muster";
  std::string ceph_conf = "/etc/ceph/ceph.conf";
  std::string ceph_user = "muster";
  int64_t store_timeout_ms = 30'000;
  std::string socket = "/run/muster/musterd.sock";
  std::string state_dir = "/run/muster/gangs";
  std::string listen_address = "0.0.0.0";
  int64_t port = 303;
  std::string servers;    // node names between commas
  std::string cluster;    // "": as Slurm says
  std::string node_name;  // "": the host's name up to the first dot
  std::string service_user = "root";
  int64_t master_ports_first = 20000;
  int64_t master_ports_last = 29999;
  int64_t keep_checkpoints = 3;
  int64_t keep_every = 0;          // steps
  int64_t user_storage_limit = 0;  // bytes
  std::string incremental = "yes";
  std::string compression = "no";
  int64_t recovery_memory = 50;  // percent of the node's memory
  int64_t partner_memory = 20;   // the same
  int64_t partner_group = 0;     // nodes
  int64_t partner_port = 304;
  std::string slurm_topology;  // "": where slurmd has it
  int64_t collect_pause_ms = 300'000;
  int64_t chunk_bytes = 4 << 20;
  int64_t max_shard_bytes = 64LL << 30;
  int64_t reconnect_ms = 30'000;
  int64_t unkillable_after_ms = 60'000;
  int64_t stranded_after_ms = 60'000;
  int64_t progress_after_ms = 60'000;
  int64_t forgive_after_ms = 86'400'000;
  int64_t beat_ms = 200;
  int64_t lease_ms = 800;
  int64_t silence_ms = 1'200;
  int64_t hang_report_ms = 900;
  int64_t loop_stall_ms = 10'000;
  int64_t preflight_age_ms = 900'000;
  std::string fabric_settings = "/etc/muster/roce.yaml";                       // "": this host has no fabric
  std::string metrics_file = "/var/lib/prometheus/node-exporter/muster.prom";  // "": none
  int64_t metrics_port = 0;                                                    // 0: none
  std::string metrics_address = "127.0.0.1";
  std::string slurm_helper;  // "": muster-slurm where it is installed
  int64_t slurm_timeout_ms = 10'000;
  int64_t slurm_requeue_timeout_ms = 300'000;
  int64_t slurm_node_downs_per_minute = 4;
  int64_t time_limit_margin_ms = 120'000;
  std::string enabled = "yes";
  std::string exit_codes;  // gang::ParseExitCodes takes it
  int64_t health_timeout_ms = 30'000;
  std::string health_nics;  // names between commas, as in health_disks
  std::string health_disks = "/tmp";
  int64_t health_memory_min = 1 << 30;  // bytes
  int64_t health_disk_free = 2;         // percent
  int64_t memlock_limit = 0;            // bytes
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string kernel_log = "/dev/kmsg";
  std::string log_level = "info";
};

// A shard's chunks are listed in one message between daemons (kMaxShardMessage in daemon/proto/shard_message.h).
inline constexpr int64_t kMaxShardChunks = 400'000;
// The largest shard that one member may save: max_shard_size, and no more chunks than that.
uint64_t LargestShard(const Config& config);

// Reads a file; a missing file is an error, an empty one gives the defaults.
Result<Config> LoadConfig(const std::string& path);
Result<Config> ParseConfig(const std::string& text, const std::string& name_for_errors);
// A commented file with every key, its default, unit and range: what packaging ships.
std::string DefaultConfigText();

}  // namespace muster
