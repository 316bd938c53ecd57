#include "daemon/coordinator/terms.h"

#include <algorithm>
#include <utility>

#include "base/planted.h"

namespace muster {
namespace {

using lease::WitnessSet;

constexpr size_t kMaxFormer = 8;

void AddFormer(const WitnessSet& set, std::vector<WitnessSet>* former) {
  former->push_back(set);
  if (former->size() > kMaxFormer) former->erase(former->begin(), former->end() - kMaxFormer);
}

Terms::Sets SetsOf(const WitnessSet& witnesses, const std::vector<WitnessSet>& former) {
  Terms::Sets sets{{witnesses.begin(), witnesses.end()}, {}};
  for (const WitnessSet& set : former) sets.former.emplace_back(set.begin(), set.end());
  return sets;
}

// Nothing is to be heard of it any more: it is dead or cut off, has left for good, or never came.
bool IsGone(const gang::Gang::Node& node) {
  return node.lost || node.ended || node.absent;
}

}  // namespace

Terms::Terms(lease::NodeIndex self, std::vector<uint32_t> candidates, Patience patience)
    : candidates_(std::move(candidates)), patience_(patience) {
  lead_.self = self;
}

void Terms::Take(const Origin& origin, const std::optional<Found>& found, const gang::Gang& gang,
                 const std::set<uint32_t>& here) {
  lead_.inherited = found.has_value();
  lead_.promised = origin.promised;
  lead_.returned = !origin.promised;
  lead_.closed = origin.closed;
  lead_.asked_at = origin.asked_at;
  lead_.taken_at = origin.taken_at;
  if (found) {
    for (const std::vector<uint32_t>& set : found->sets.former) lead_.former.push_back(WitnessSet::Of(set));
    AddFormer(WitnessSet::Of(found->sets.witnesses), &lead_.former);
    for (const uint32_t node : found->away) lead_.closed.Add(static_cast<lease::NodeIndex>(node));
  }
  lead_.witnesses = Pick(gang, here);
}

// The first candidates that may be used. One that is lost by the record, and is here, has healed.
WitnessSet Terms::Pick(const gang::Gang& gang, const std::set<uint32_t>& here) const {
  WitnessSet set;
  for (const uint32_t node : candidates_) {
    if (set.size() == lease::kMaxWitnesses) break;
    const auto index = static_cast<lease::NodeIndex>(node);
    const gang::Gang::Node& n = gang.nodes()[node];
    // A set does not grow by a node that is away: it may not be back, and the others would be too few.
    const bool may = n.present || lead_.witnesses.empty() || lead_.witnesses.Contains(index);
    if ((!IsGone(n) && may) || here.contains(node)) set.Add(index);
  }
  return set;
}

Terms::Sets Terms::Next(const gang::Gang& gang) {
  next_ = Pick(gang);
  std::vector<WitnessSet> former = lead_.former;
  AddFormer(lead_.witnesses, &former);
  return SetsOf(next_, former);
}

Terms::Sets Terms::sets() const {
  return SetsOf(lead_.witnesses, lead_.former);
}

void Terms::Raised(lease::Nanos asked_at, lease::Nanos taken_at, const gang::Gang& gang) {
  if (next_.size() > lead_.witnesses.size()) grown_at_ = taken_at;
  AddFormer(lead_.witnesses, &lead_.former);
  lead_.witnesses = next_;
  lead_.inherited = true;
  lead_.promised = lead_.returned = false;
  lead_.closed = WitnessSet::Of(Away(gang));
  for (const uint32_t node : heard_) lead_.heard_before[static_cast<lease::NodeIndex>(node)] = 0;
  for (auto& [node, terms] : lead_.heard_before) ++terms;
  lead_.asked_at = asked_at;
  lead_.taken_at = taken_at;
}

const lease::LeadSettings& Terms::Lead(uint64_t term, const gang::Gang& gang) {
  lead_.term = term;
  lead_.watched.clear();
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    if (lead_.inherited && gang.MayHaveMembers(node))
      lead_.watched.push_back(static_cast<lease::NodeIndex>(node));
  }
  heard_.clear();
  refusing_.clear();
  quorum_ = false;
  return lead_;
}

void Terms::Heard(uint32_t node, const gang::Gang& gang) {
  heard_.insert(node);
  if (AllHeard(gang)) lead_.former.clear();
}

void Terms::SetStop(uint64_t generation) {
  lead_.stop_generation = std::max(lead_.stop_generation, generation);
}

bool Terms::AllHeard(const gang::Gang& gang) const {
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    const gang::Gang::Node& n = gang.nodes()[node];
    if (!IsGone(n) && n.joined && !heard_.contains(node)) return false;
  }
  return true;
}

// Only from a term that all follow and that has a quorum: in the next one nobody is silent before both sets have been heard.
std::optional<lease::Nanos> Terms::RaiseAt(const gang::Gang& gang) const {
  const gang::State state = gang.state();
  const bool begun =
      state == gang::State::kStarting || state == gang::State::kRunning || state == gang::State::kStopping;
  if (!begun || !quorum_) return std::nullopt;
  const bool lost = std::any_of(lead_.witnesses.begin(), lead_.witnesses.end(), [&](lease::NodeIndex node) {
    return IsGone(gang.nodes()[node]) && !MUSTER_PLANTED(lost_witness_kept);
  });
  const bool room = Pick(gang).size() > lead_.witnesses.size();
  if ((!lost && !room) || !AllHeard(gang)) return std::nullopt;
  lease::Nanos at = waits_since_ ? *waits_since_ + patience_.after_loss : lead_.taken_at;
  if (!lost && grown_at_) at = std::max(at, *grown_at_ + patience_.to_grow);
  return at;
}

std::vector<lease::NodeIndex> Terms::Unheard(const gang::Gang& gang) const {
  std::vector<lease::NodeIndex> nodes;
  for (const lease::NodeIndex node : lead_.watched) {
    const gang::Gang::Node& n = gang.nodes()[node];
    // A node that was away when the term began is waited for as it is, until it has beaten in this term.
    const bool heard = heard_.contains(node);
    const bool known =
        (heard && n.present) || (!heard && lead_.closed.Contains(node)) || refusing_.contains(node);
    if (!known && !n.lost) nodes.push_back(node);
  }
  return nodes;
}

std::vector<lease::NodeIndex> Terms::Away(const gang::Gang& gang) {
  std::vector<lease::NodeIndex> nodes;
  for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
    const gang::Gang::Node& n = gang.nodes()[node];
    if (n.joined && !n.present && !n.lost) nodes.push_back(static_cast<lease::NodeIndex>(node));
  }
  return nodes;
}

}  // namespace muster
