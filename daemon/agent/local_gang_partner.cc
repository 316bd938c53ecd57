// The part of LocalGang that keeps copies of its members' shards on another node, and gets them back from there: a node that
// takes a lost one's place needs no store for its members' state.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/agent/let_go.h"
#include "daemon/agent/local_gang.h"
#include "daemon/partner/gang_partner.h"

namespace muster {

void LocalGang::BeginPartner() {
  if (!partner_) return;
  const bool all_save = std::none_of(spec_.nodes.begin(), spec_.nodes.end(),
                                     [](const ClusterSpec::Node& node) { return node.Trains(); });
  Roster roster;
  for (const ClusterSpec::Node& node : spec_.nodes)
    roster.nodes.push_back({node.name, all_save || node.Trains(), node.ranks});
  partner_->Begin(start_->generation(), std::move(roster), context_.self,
                  start_->restore() ? start_->restore_generation() : 0, start_->restore_step());
}

// After the commit: the drain has the network and the store to itself until then, and only what a gang may start from is
// worth another node's memory.
void LocalGang::CopyToPartner(uint64_t generation, uint64_t step) {
  if (!partner_) return;
  std::vector<CommittedShard> shards;
  for (const auto& [task, member] : members_) {
    const HeldShard* held = held_.Find(member.rank, generation, step);
    if (held != nullptr) shards.push_back({generation, step, held->shard, held->memory});
  }
  partner_->Committed(generation, step, std::move(shards));
}

// False when nobody is known to have it.
bool LocalGang::RestoreFromPartner(const Asker& asker, uint64_t step, int64_t begun_ns) {
  if (!partner_ || !start_->restore() || step != start_->restore_step() || !Saves()) return false;
  return partner_->Fetch(
      asker.rank, start_->restore_generation(), step, world_.spec.MemberCount(),
      [weak = weak_from_this(), mailbox = context_.loop.mailbox(), chores = context_.chores, asker, step,
       begun_ns](const std::string& partner, Result<FetchedCopy> copy) {
        auto shared = LetGoBy(chores, std::move(copy));
        mailbox->Post([weak, asker, step, begun_ns, partner, shared] {
          const auto self = weak.lock();
          if (self) self->PartnerAnswered(asker, step, partner, shared, begun_ns);
        });
      });
}

void LocalGang::PartnerAnswered(const Asker& asker, uint64_t step, const std::string& partner,
                                const std::shared_ptr<Result<FetchedCopy>>& answer, int64_t begun_ns) {
  Result<FetchedCopy>& copy = *answer;
  if (ClientOf(asker) == nullptr) return;
  if (!copy) {
    spdlog::info("gang {}: rank {}, step {}: not from the memory of {}: {}", job_.Id(), asker.rank, step,
                 partner, copy.error().message);
    return RestoreFromStore(asker, step, wire::kOwnShard, begun_ns);
  }
  spdlog::info("gang {}: rank {}, step {}: {} of {} bytes from the memory of {}{}{}", job_.Id(), asker.rank,
               step, copy->bytes, copy->shard.bytes, partner, copy->problem.empty() ? "" : ": ",
               copy->problem);
  if (copy->problem.empty()) {
    TellRestored(asker.rank, asker.generation, copy->shard.bytes, false, copy->bytes, begun_ns);
    const auto memory = LetGoBy(context_.chores, Result<UniqueFd>(std::move(copy->memory)));
    return RestoreDone(asker, step, *memory, copy->shard);
  }
  auto done = [weak = weak_from_this(), mailbox = context_.loop.mailbox(), chores = context_.chores, asker,
               step, begun_ns, shard = copy->shard, bytes = copy->bytes](Result<UniqueFd> memory) {
    auto shared = LetGoBy(chores, std::move(memory));
    mailbox->Post([weak, asker, step, begun_ns, shard, bytes, shared] {
      const auto self = weak.lock();
      if (!self || self->ClientOf(asker) == nullptr) return;
      if (!*shared) return self->RestoreFromStore(asker, step, wire::kOwnShard, begun_ns);
      self->TellRestored(asker.rank, asker.generation, shard.bytes, false, bytes, begun_ns);
      self->RestoreDone(asker, step, *shared, shard);
    });
  };
  context_.engine.ReadMissing(job_.Space(), copy->shard, std::move(copy->memory), std::move(copy->have),
                              std::move(done));
}

}  // namespace muster
