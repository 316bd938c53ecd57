#include "daemon/partner/gang_partner.h"

#include <algorithm>
#include <utility>

#include "daemon/partner/group_fetch.h"

namespace muster {
namespace {

constexpr size_t kFetchers = 4;  // shards at the same time

}  // namespace

GangPartner::GangPartner(PartnerTier& tier, std::string gang) : tier_(tier), gang_(std::move(gang)) {}

GangPartner::~GangPartner() {
  cancel_->Now();
  Let(tier_.stock().copies->End(gang_));
  Let(tier_.stock().parity->End(gang_));
  tier_.stock().own->End(gang_);
  tier_.worker().Do([sender = std::move(sender_), builder = std::move(builder_),
                     fetchers = std::move(fetchers_)]() mutable {
    sender.reset();
    builder.reset();
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
  tier_.worker().Do([sender = std::move(sender_), builder = std::move(builder_)] {});
  sender_.reset();
  builder_.reset();
  std::vector<uint32_t> kept;
  partner_.clear();
  group_.reset();
  committed_.reset();
  const auto topology = tier_.topology();
  for (Roster::Node& node : roster.nodes) node.domain = topology->DomainOf(node.name);
  tier_.RefreshTopology();  // for the next one
  for (size_t place = 0; place < roster.nodes.size(); ++place) {
    if (roster.nodes[place].name != self) continue;
    group_ = GroupOf(roster, place, tier_.group());
    if (group_) continue;
    kept = RanksKeptBy(roster, place);
    if (const auto partner = PartnerOf(roster, place)) partner_ = roster.nodes[*partner].name;
  }
  std::erase_if(rosters_, [&](const auto& item) { return item.first != restore_generation; });
  rosters_[generation] = std::move(roster);
  Let(tier_.stock().copies->Begin(gang_, generation, kept, restore_generation, restore_step));
  Let(tier_.stock().parity->Begin(gang_, generation, restore_generation, restore_step));
}

void GangPartner::Committed(uint64_t generation, uint64_t step, std::vector<CommittedShard> shards) {
  // A step may be told again, and when its commit was tried again after one that is newer.
  if (generation != generation_ || (committed_ && step < *committed_)) return;
  committed_ = step;
  Let(tier_.stock().copies->Committed(gang_, generation));
  size_t slots = 0;
  if (group_) slots = group_->SlotsOfOthers();
  Let(tier_.stock().parity->Committed(gang_, generation, slots));
  if (group_) {
    tier_.stock().own->Committed(gang_, shards);
    if (!builder_) {
      builder_ = std::make_shared<ParityBuilder>(gang_, *group_, tier_.port(), tier_.max_shard_bytes(),
                                                 tier_.stock().parity, cancel_);
    }
    return builder_->Build(generation, step);
  }
  if (partner_.empty() || shards.empty()) return;
  if (!sender_) sender_ = std::make_shared<CopySender>(gang_, partner_, tier_.port());
  for (CommittedShard& shard : shards) {
    if (auto overtaken = sender_->Push(std::move(shard)))
      tier_.worker().Do([overtaken = *std::move(overtaken)] {});
  }
}

bool GangPartner::Fetch(uint32_t rank, uint64_t generation, uint64_t step, uint32_t savers, Fetched done) {
  const auto roster = rosters_.find(generation);
  if (roster == rosters_.end() || roster->second.Savers() != savers) return false;
  const auto place = roster->second.PlaceOf(rank);
  if (!place) return false;
  const CopyName name{gang_, generation, step, rank};
  std::function<Result<FetchedCopy>()> fetch;
  std::string from;
  if (auto group = GroupOf(roster->second, *place, tier_.group())) {
    from = group->NamesOfOthers();
    fetch = [name, port = tier_.port(), most = tier_.max_shard_bytes(), cancel = cancel_,
             group = *std::move(group)] { return FetchFromGroup(group, port, name, most, cancel); };
  } else if (const auto partner = PartnerOf(roster->second, *place)) {
    from = roster->second.nodes[*partner].name;
    fetch = [name, port = tier_.port(), most = tier_.max_shard_bytes(), cancel = cancel_, from] {
      return FetchCopy(from, port, name, most, cancel);
    };
  } else {
    return false;
  }
  if (!fetchers_) fetchers_ = std::make_shared<WorkerPool>(kFetchers, "muster-fetch");
  fetchers_->Post(
      [done = std::move(done), from = std::move(from), fetch = std::move(fetch)] { done(from, fetch()); });
  return true;
}

}  // namespace muster
