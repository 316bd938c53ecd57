// What the state machine orders.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "daemon/coordinator/coordinator.h"
#include "daemon/link/link.h"
#include "daemon/proto/node_table.h"

namespace muster {
namespace {

constexpr auto kActionRetry = std::chrono::milliseconds(1000);
// For the record that says that the gang is given up; after that most of the gang will do.
constexpr auto kEndDurable = std::chrono::seconds(10);
// A commit that is under way comes before the next generation's record, under which it would be refused.
constexpr auto kForCommits = std::chrono::milliseconds(500);

// As members exchange values: those that train together, and each other role's.
std::vector<steps::Agreement::World> WorldsOf(const gang::Gang& gang) {
  const auto trains = [&](uint32_t node) {
    const gang::RoleKind kind = gang.RoleOf(node).kind;
    return kind == gang::RoleKind::kTracked || kind == gang::RoleKind::kChief;
  };
  const bool none = std::none_of(gang.active().begin(), gang.active().end(), trains);
  std::map<std::string, std::set<uint32_t>> nodes;
  for (const uint32_t node : gang.active())
    nodes[none || trains(node) ? "" : gang.RoleOf(node).name].insert(node);
  std::vector<steps::Agreement::World> worlds;
  for (auto& [role, of] : nodes) worlds.push_back({role, std::move(of)});
  return worlds;
}

}  // namespace

void Coordinator::Feed(const gang::Event& event) {
  if (fence_.lost()) return;
  const gang::State before = gang_->state();
  const uint64_t generation = gang_->generation();
  Carry(gang_->Handle(event));
  if (before == gang::State::kRecovering && gang_->state() != before) CommitWaiting();
  WatchProgress(before, generation);
  MaybeRaise();
  MaybeOver();  // the end may come when no agent is there any more
}

void Coordinator::Carry(std::vector<gang::Action> actions) {
  for (const gang::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const gang::StartGeneration& action) {
  starts_.Order(action.nodes, action.durable);
  // Before the record is made: it says what the generation starts from.
  if (starts_.MayPrepare()) PrepareStart();
  MaybeSendStarts();
}

// Not before a checkpoint that is bad is marked so, nor, if it must be, before the record is in the store.
void Coordinator::MaybeSendStarts() {
  const std::set<uint32_t> due = starts_.Due(fence_, gang_->generation());
  if (!due.empty()) SendStart(due);
}

void Coordinator::SendStart(const std::set<uint32_t>& nodes) {
  if (PrepareStart()) Do(gang::Persist{});
  auto message = NewMessage();
  *message.mutable_start() = *start_;
  // The same for all, and long where there are thousands.
  const std::string payload = message.SerializeAsString();
  for (const uint32_t node : nodes) SendPayload(node, payload);
  storage_.Look();
}

// True when it was not there yet.
bool Coordinator::PrepareStart() {
  const Starts::Prepared prepared = starts_.Prepare(gang_->generation(), fence_.term());
  if (prepared.anew) BuildStart(prepared);
  return prepared.anew;
}

// Made once a generation, so that a node that asks again gets the same.
void Coordinator::BuildStart(const Starts::Prepared& prepared) {
  const std::optional<uint64_t> restore = starts_.from();
  if (!prepared.inherited && !prepared.again) {
    saves_.BeginGeneration();
    written_.clear();
  }
  v1::Start start;
  start.set_term(fence_.term());
  start.set_generation(gang_->generation());
  for (const uint32_t index : gang_->active()) {
    const gang::Gang::Node& node = gang_->nodes()[index];
    v1::NodeSpec* spec = start.add_nodes();
    spec->set_name(node.name);
    spec->set_node(index);
    spec->set_role(gang_->RoleOf(index).name);
    spec->set_kind(static_cast<uint32_t>(gang_->RoleOf(index).kind));
    spec->set_lease_port(node.lease_port);
    for (const uint32_t task : node.tasks) {
      spec->add_tasks(task);
      spec->add_ranks(gang_->members()[task].rank.value_or(0));
    }
  }
  start.set_restore(restore.has_value());
  start.set_restore_step(restore.value_or(0));
  if (const auto saved = restore ? saved_in_.find(*restore) : saved_in_.end(); saved != saved_in_.end())
    start.set_restore_generation(saved->second);
  start.set_cause(restart_cause_);
  start.set_store(store_->Id());
  if (std::exchange(links_.good, false)) {
    start.mutable_good_links()->set_test(links_.test);
    start.mutable_good_links()->set_full(job_.options.preflight == wire::Preflight::kFull);
  }
  PackNodes(&start);
  start_ = std::move(start);
  steps_.Begin(gang_->generation(), fence_.term(), WorldsOf(*gang_), prepared.inherited);
  gang_->SetOrigin(restore ? fmt::format("from the checkpoint of step {}", *restore)
                           : "from the beginning: there is no checkpoint");
  if (gang_->generation() > 1 && !prepared.inherited && !prepared.again) {
    AddHistory("restore", restore
                              ? fmt::format("generation {} starts from the checkpoint of step {}",
                                            gang_->generation(), *restore)
                              : fmt::format("generation {} starts from the beginning: there is no checkpoint",
                                            gang_->generation()));
  }
}

void Coordinator::Do(const gang::StopGeneration& action) {
  auto message = NewMessage();
  message.mutable_stop()->set_generation(action.generation);
  message.mutable_stop()->set_last_words(action.last_words);
  for (const uint32_t node : action.nodes) Send(node, message);
  if (action.older) {
    return AddHistory("stopping",
                      fmt::format("{} nodes have something left of a generation before {}: they stop it",
                                  action.nodes.size(), action.generation));
  }
  starts_.Stop();
  LeaseStop(action.generation);
  AddHistory("stopping", fmt::format("generation {} is stopped", action.generation));
}

void Coordinator::Do(const gang::FinishGang& action) {
  finish_ = FinishOf(action.succeeded, action.cause, action.code);
  // While the term is being raised no record is on its way.
  if (ending_.Finish(action.succeeded && !fence_.raising(), action.nodes)) WaitForEndRecord();
  MaybeSendFinish();
}

void Coordinator::WaitForEndRecord() {
  loop_.Cancel(finish_timer_);
  finish_timer_ = loop_.After(kEndDurable, [this] {
    // A host that has stood still hears within a beat that the nodes do not follow it any more.
    const auto beat = std::chrono::milliseconds(config_.beat_ms);
    finish_timer_ = loop_.After(beat, [this, late = loop_.Now() + 2 * beat] {
      finish_timer_ = 0;
      if (!ending_.WaitedLongEnough(loop_.Now() > late)) return WaitForEndRecord();
      MaybeSendFinish();
      MaybeRequeue();
    });
  });
}

void Coordinator::MaybeSendFinish() {
  if (fence_.lost()) return;
  const std::set<uint32_t> due = ending_.DueFinish(Followed());
  if (due.empty()) return;
  auto message = NewMessage();
  *message.mutable_finish() = *finish_;
  for (const uint32_t node : due) Send(node, message);
  SetDownLater();
}

bool Coordinator::Followed() const {
  // Nothing has run: nobody else can have taken it over.
  return context_.beat == nullptr || terms_.quorum() || gang_->generation() == 0;
}

v1::Finish Coordinator::FinishOf(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code) {
  v1::Finish finish;
  finish.set_succeeded(succeeded);
  finish.set_has_cause(cause.has_value());
  finish.set_cause(cause.value_or(0));
  finish.set_has_code(code.has_value());
  finish.set_code(code.value_or(0));
  return finish;
}

void Coordinator::Do(const gang::Persist& /*action*/) {
  const auto advance = fence_.Write(gang_->generation());
  if (!advance) return;
  worker_->Do([weak = weak_from_this(), mine = fence_.Mine(), catalog = catalog_, clock = clock_,
               order = order_, from = advance->from, to = advance->to, record = Record().Encode(),
               ended = gang_->state() == gang::State::kFinished,
               requeueing = gang_->state() == gang::State::kRequeueing, &loop = loop_, id = job_.Id()] {
    if (to.generation > from.generation) order->AwaitCommits(kForCommits);
    lease::Nanos asked = clock->Now();
    // Nothing may overtake: what is queued behind is of the next fence.
    const Status written = catalog->AdvanceForSure(from, to, record, [&](const Error& error) {
      if (!mine()) return false;
      spdlog::warn("gang {}: record not written: {}; trying again", id, error.message);
      std::this_thread::sleep_for(kActionRetry);
      asked = clock->Now();
      return mine();
    });
    order->Recorded(to.generation);
    loop.Post([weak, written, generation = to.generation, asked, ended, requeueing] {
      const auto self = weak.lock();
      if (!self || self->fence_.lost()) return;
      if (!written && written.error().code == Errc::kConflict) return self->Deposed(written.error().message);
      if (!written)
        return spdlog::error("gang {}: record not written: {}", self->job_.Id(), written.error().message);
      if (self->fence_.Durable(generation)) self->orphans_.Collect();
      self->ending_.Recorded(ended, requeueing);
      if (self->leadership_) self->leadership_->StoreConfirmed(asked);
      self->MaybeSendStarts();
      self->MaybeSendFinish();
      self->MaybeRequeue();
    });
  });
}

void Coordinator::Do(const gang::ReportToJob& action) {
  auto message = NewMessage();
  message.mutable_report()->set_task(action.task);
  message.mutable_report()->set_text(action.text);
  if (action.task < gang_->members().size()) Send(gang_->members()[action.task].node, message);
}

void Coordinator::Do(const gang::Note& action) {
  if (action.kind == "fault" || action.kind == "planned")
    restart_cause_ = gang_->last_fault() ? gang_->last_fault()->what : action.text;
  if (action.kind == "fault") {
    cause_ = restart_cause_;
    Comment(action.text);
  }
  AddHistory(action.kind, action.text, action.generation);
}

void Coordinator::Do(const gang::TellMembers& action) {
  steps_.Want(action.save, action.exit, action.reason);
}

void Coordinator::Do(const gang::SetTimer& action) {
  const auto found = timers_.find(action.timer);
  if (found != timers_.end()) {
    loop_.Cancel(found->second);
    timers_.erase(found);
  }
  if (action.ms < 0) return;
  timers_[action.timer] = loop_.After(std::chrono::milliseconds(action.ms), [this, timer = action.timer] {
    timers_.erase(timer);
    Feed(gang::TimerFired{timer});
  });
}

void Coordinator::Do(const gang::RejectCheckpoint& action) {
  starts_.Reject(action.manifest);
  AddHistory("checkpoint_bad",
             fmt::format("the checkpoint of step {} does not verify: {}", action.step, action.reason));
  Reject(action);
}

// Marks it bad, and finds what is left to start from. A store that does not answer is waited for: the members will need it for
// an older one.
void Coordinator::Reject(const gang::RejectCheckpoint& bad) {
  worker_->Do([weak = weak_from_this(), mine = fence_.Mine(), catalog = catalog_, fence = fence_.fence(), bad,
               &loop = loop_, id = job_.Id()] {
    const auto settled = [](const auto& result) { return result || !MayPass(result.error()); };
    for (;;) {
      const Status marked = catalog->MarkBad(fence, bad.step, bad.manifest, bad.reason);
      const Result<GangHead> head = catalog->Load();
      if (settled(marked) && settled(head)) {
        return loop.Post([weak, fence, bad, marked, head] {
          if (const auto self = weak.lock(); self && !self->fence_.lost())
            self->Rejected(fence, bad, marked, head);
        });
      }
      if (!mine()) return;
      spdlog::warn("gang {}: the checkpoint of step {} is not marked bad: {}; trying again", id, bad.step,
                   marked ? head.error().message : marked.error().message);
      std::this_thread::sleep_for(kActionRetry);
    }
  });
}

void Coordinator::Rejected(const Fence& fence, const gang::RejectCheckpoint& bad, const Status& marked,
                           const Result<GangHead>& head) {
  if (!marked && marked.error().code == Errc::kConflict) {
    if (!fence_.Moved(fence)) return Deposed(marked.error().message);
    loop_.After(kActionRetry, [weak = weak_from_this(), bad] {
      if (const auto self = weak.lock(); self && !self->fence_.lost()) self->Reject(bad);
    });
    return;
  }
  // Also when the store could not say so: this gang does not start from it again. One that has left the list needs no mark.
  if (!marked && marked.error().code != Errc::kNotFound)
    spdlog::error("gang {}: {}", job_.Id(), marked.error().message);
  if (head) {
    Starts::Step newest;
    for (const CheckpointInfo& checkpoint : head->checkpoints) {
      if (checkpoint.good && !starts_.IsRejected(checkpoint.manifest)) newest = checkpoint.step;
    }
    starts_.RejectOver(newest);
  } else {
    starts_.RejectOver(starts_.newest() == bad.step ? std::nullopt : starts_.newest());
  }
  MaybeSendStarts();
}

}  // namespace muster
