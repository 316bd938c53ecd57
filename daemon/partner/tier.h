// A node's part in keeping second copies of shards, or parity: what it keeps for others, and how others reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/worker.h"
#include "daemon/config/config.h"
#include "daemon/partner/partner_server.h"
#include "daemon/partner/stock.h"
#include "daemon/slurm/topology.h"

namespace muster {

// Thread-safe.
class PartnerTier {
 public:
  // nullptr where the configuration wants no copies.
  static Result<std::unique_ptr<PartnerTier>> Start(const Config& config, const std::string& self,
                                                    uint32_t service_uid,
                                                    std::shared_ptr<TopologyFile> topology);

  [[nodiscard]] const PartnerStock& stock() const { return stock_; }
  // Nodes that keep parity of each other's shards; fewer than kLeastGroup: copies are kept.
  [[nodiscard]] size_t group() const { return group_; }
  // Where other nodes' daemons listen.
  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] uint64_t max_shard_bytes() const { return max_shard_bytes_; }
  // As read when the tier was started, or at the generation before.
  [[nodiscard]] std::shared_ptr<const Topology> topology() const { return topology_->Now(); }
  void RefreshTopology();
  // For what takes time to let go.
  [[nodiscard]] Worker& worker() { return worker_; }

 private:
  PartnerTier() = default;

  uint16_t port_ = 0;
  uint64_t max_shard_bytes_ = 0;
  size_t group_ = 0;
  PartnerStock stock_;
  std::unique_ptr<PartnerServer> server_;
  std::shared_ptr<TopologyFile> topology_;
  Worker worker_;
};

// What programs could still be given without the last tenth of the node's memory (/proc/meminfo), in bytes.
uint64_t SpareMemory();

}  // namespace muster
