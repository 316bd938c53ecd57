// /etc/muster/muster.yaml. Every key has a default and a unit; an unknown key, a wrong type or a value out of
// range is an error that names the file, the line and what is allowed.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/base/result.h"

namespace muster {

struct Config {
  std::string store = "dir:/var/lib/muster";
  std::string ceph_conf = "/etc/ceph/ceph.conf";
  std::string ceph_user = "muster";
  int64_t store_timeout_ms = 30'000;
  std::string socket = "/run/muster/musterd.sock";
  std::string state_dir = "/run/muster/gangs";
  std::string listen_address = "0.0.0.0";
  int64_t port = 6880;
  std::string node_name;  // "": the host's name up to the first dot
  std::string service_user = "root";
  int64_t master_ports_first = 20000;
  int64_t master_ports_last = 29999;
  int64_t keep_checkpoints = 3;
  int64_t chunk_bytes = 4 << 20;
  int64_t max_shard_bytes = 64LL << 30;
  int64_t reconnect_ms = 30'000;
  int64_t progress_after_ms = 60'000;
  int64_t lease_ms = 0;
  std::string log_level = "info";
};

// Reads a file; a missing file is an error, an empty one gives the defaults.
Result<Config> LoadConfig(const std::string& path);
Result<Config> ParseConfig(const std::string& text, const std::string& name_for_errors);
// A commented file with every key, its default, unit and range: what packaging ships.
std::string DefaultConfigText();

}  // namespace muster
