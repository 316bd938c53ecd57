#include "daemon/partner/tier.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/small_files.h"

namespace muster {
namespace {

uint64_t NodeMemory() {
  const auto pages = static_cast<uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
  return pages * static_cast<uint64_t>(std::max(::sysconf(_SC_PAGESIZE), 0L));
}

}  // namespace

uint64_t SpareMemory() {
  const uint64_t available = ReadMemInfo("/proc", "MemAvailable:").value_or(0);
  return available - std::min(available, NodeMemory() / 10);
}

Result<std::unique_ptr<PartnerTier>> PartnerTier::Start(const Config& config, const std::string& self,
                                                        uint32_t service_uid,
                                                        std::shared_ptr<TopologyFile> topology) {
  if (config.partner_memory == 0) return std::unique_ptr<PartnerTier>();
  auto memory =
      ChunkMemory::Make(NodeMemory() / 100 * static_cast<uint64_t>(config.partner_memory), SpareMemory);
  if (!memory) return memory.error();
  std::unique_ptr<PartnerTier> tier(new PartnerTier());
  tier->port_ = static_cast<uint16_t>(config.partner_port);
  tier->max_shard_bytes_ = static_cast<uint64_t>(config.max_shard_bytes);
  tier->group_ = static_cast<size_t>(config.partner_group);
  tier->stock_ = {std::make_shared<PartnerCopies>(*memory, tier->max_shard_bytes_),
                  std::make_shared<ParityParts>(*memory), std::make_shared<OwnShards>()};
  auto server = PartnerServer::Start({config.listen_address, tier->port_, self, service_uid}, tier->stock_);
  if (!server) return server.error();
  tier->server_ = *std::move(server);
  tier->topology_ = std::move(topology);
  tier->topology_->Refresh();
  return tier;
}

void PartnerTier::RefreshTopology() {
  worker_.Do([file = topology_] { file->Refresh(); });
}

}  // namespace muster
