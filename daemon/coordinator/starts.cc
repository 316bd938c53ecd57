#include "daemon/coordinator/starts.h"

#include <utility>

#include "base/planted.h"
#include "daemon/coordinator/record_fence.h"

namespace muster {

void Starts::Reject(const std::string& manifest) {
  ++rejecting_;
  if (!MUSTER_PLANTED(bad_start_again)) rejected_.insert(manifest);
}

void Starts::RejectOver(Step newest) {
  newest_ = std::max(newest, meanwhile_);
  if (--rejecting_ == 0) meanwhile_.reset();
}

void Starts::Inherit(uint64_t generation, Step from) {
  if (generation > 0 && generation_ == 0) inherited_.emplace(generation, from);
}

void Starts::Order(const std::vector<uint32_t>& nodes, bool durable) {
  // A start that is still to be told waits for what it had to wait for.
  durable_ = durable || (durable_ && !due_.empty());
  due_.insert(nodes.begin(), nodes.end());
}

Starts::Prepared Starts::Prepare(uint64_t generation, uint64_t term) {
  if (generation == generation_ && term == term_) return {};
  Prepared prepared{.anew = true, .again = generation == generation_};
  const auto started = inherited_.find(generation);
  prepared.inherited = started != inherited_.end();
  if (prepared.inherited) {
    from_ = started->second;
  } else if ((!prepared.again || MUSTER_PLANTED(new_start_each_term)) && !MUSTER_PLANTED(first_start_kept)) {
    from_ = newest_;
  }
  generation_ = generation;
  term_ = term;
  return prepared;
}

std::set<uint32_t> Starts::Due(const RecordFence& fence, uint64_t generation) {
  if (rejecting_ > 0 && !MUSTER_PLANTED(start_before_marked)) return {};
  if (durable_ && fence.durable() < generation && !MUSTER_PLANTED(start_before_record)) return {};
  return std::exchange(due_, {});
}

}  // namespace muster
