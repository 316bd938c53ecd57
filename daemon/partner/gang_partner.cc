#include "daemon/partner/gang_partner.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

constexpr size_t kFetchers = 4;  // shards at the same time

}  // namespace

GangPartner::GangPartner(PartnerTier& tier, std::string gang) : tier_(tier), gang_(std::move(gang)) {}

GangPartner::~GangPartner() {
  cancel_->Now();
  Let(tier_.copies().End(gang_));
  tier_.worker().Do([sender = std::move(sender_), fetchers = std::move(fetchers_)]() mutable {
    sender.reset();
    fetchers.reset();
  });
}

void GangPartner::Let(PartnerCopies::Dropped dropped) {
  if (!dropped.empty()) tier_.worker().Do([dropped = std::move(dropped)] {});
}

void GangPartner::Begin(uint64_t generation, Roster roster, const std::string& self,
                        uint64_t restore_generation, uint64_t restore_step) {
  if (generation == generation_) return;
  generation_ = generation;
  // What is asked for or sent of the generation before serves nobody any more.
  std::exchange(cancel_, std::make_shared<Cancel>())->Now();
  if (sender_) tier_.worker().Do([sender = std::move(sender_)] {});
  sender_.reset();
  std::vector<uint32_t> kept;
  partner_.clear();
  const auto topology = tier_.topology();
  for (Roster::Node& node : roster.nodes) node.domain = topology->DomainOf(node.name);
  tier_.RefreshTopology();  // for the next one
  for (size_t place = 0; place < roster.nodes.size(); ++place) {
    if (roster.nodes[place].name != self) continue;
    kept = RanksKeptBy(roster, place);
    if (const auto partner = PartnerOf(roster, place)) partner_ = roster.nodes[*partner].name;
  }
  std::erase_if(rosters_, [&](const auto& item) { return item.first != restore_generation; });
  rosters_[generation] = std::move(roster);
  Let(tier_.copies().Begin(gang_, generation, kept, restore_generation, restore_step));
}

void GangPartner::Committed(uint64_t generation, std::vector<CommittedShard> shards) {
  if (generation != generation_) return;
  Let(tier_.copies().Committed(gang_, generation));
  if (partner_.empty() || shards.empty()) return;
  if (!sender_) sender_ = std::make_shared<CopySender>(gang_, partner_, tier_.port());
  for (CommittedShard& shard : shards) sender_->Push(std::move(shard));
}

bool GangPartner::Fetch(uint32_t rank, uint64_t generation, uint64_t step, uint32_t savers, Fetched done) {
  const auto roster = rosters_.find(generation);
  if (roster == rosters_.end() || roster->second.Savers() != savers) return false;
  const auto place = roster->second.PlaceOf(rank);
  const auto partner = place ? PartnerOf(roster->second, *place) : std::nullopt;
  if (!partner) return false;
  if (!fetchers_) fetchers_ = std::make_shared<WorkerPool>(kFetchers, "muster-fetch");
  fetchers_->Post([done = std::move(done), partner = roster->second.nodes[*partner].name,
                   name = CopyName{gang_, generation, step, rank}, port = tier_.port(),
                   most = tier_.max_shard_bytes(),
                   cancel = cancel_] { done(partner, FetchCopy(partner, port, name, most, cancel)); });
  return true;
}

}  // namespace muster
