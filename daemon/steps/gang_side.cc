#include "daemon/steps/gang_side.h"

#include <algorithm>
#include <utility>

namespace muster::steps {
namespace {

constexpr int64_t kGangTickMs = 100;
// Of a term's orders, numbers have the term on top: they go up over all coordinators.
constexpr int kTermShift = 32;

}  // namespace

void GangSide::Begin(uint64_t generation, uint64_t term, std::vector<Agreement::World> worlds,
                     bool inherited) {
  if (generation == generation_) return;
  generation_ = generation;
  worlds_.clear();
  const v1::StepWish early = std::exchange(early_, {});
  for (Agreement::World& world : worlds)
    worlds_.emplace_back(generation, term << kTermShift, std::move(world), inherited, hooks_.talk,
                         hooks_.now());
  if (inherited && (early.save() || early.exit())) Want(early.save(), early.exit(), early.reason());
  Watch();
}

void GangSide::Want(bool save, bool exit, const std::string& reason) {
  if (worlds_.empty()) {
    early_.set_save(save || early_.save());
    early_.set_exit(exit || early_.exit());
    early_.set_reason(reason);
    return;
  }
  for (Agreement& world : worlds_) world.Want(save, exit, reason, hooks_.now());
  Watch();
}

Agreement* GangSide::Of(uint32_t node) {
  const auto found = std::find_if(worlds_.begin(), worlds_.end(),
                                  [node](const Agreement& world) { return world.Has(node); });
  return found == worlds_.end() ? nullptr : &*found;
}

void GangSide::Joined(uint32_t node) {
  if (Agreement* const world = Of(node)) world->Joined(node);
}

void GangSide::Left(uint32_t node) {
  if (Agreement* const world = Of(node)) world->Left(node, hooks_.now());
}

void GangSide::Take(uint32_t node, const v1::StepAnswer& answer) {
  if (Agreement* const world = Of(node)) world->Take(node, answer, hooks_.now());
  Watch();
}

void GangSide::Take(uint32_t node, const v1::StepNews& news) {
  if (Agreement* const world = Of(node)) world->Take(news, hooks_.now());
  Watch();
}

void GangSide::Watch() {
  const bool busy =
      std::any_of(worlds_.begin(), worlds_.end(), [](const Agreement& world) { return world.Busy(); });
  if (!busy || ticking_) return;
  ticking_ = std::make_shared<int>(0);
  hooks_.after(kGangTickMs, [this, alive = std::weak_ptr<int>(ticking_)] {
    if (alive.expired()) return;
    ticking_.reset();
    for (Agreement& world : worlds_) world.Tick(hooks_.now());
    Watch();
  });
}

}  // namespace muster::steps
