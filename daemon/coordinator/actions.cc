// What the state machine orders.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "daemon/coordinator/coordinator.h"
#include "daemon/coordinator/record_of_gang.h"
#include "daemon/proto/node_table.h"

namespace muster {
namespace {

constexpr auto kActionRetry = std::chrono::milliseconds(1000);
constexpr auto kRaiseRetry = std::chrono::milliseconds(300);
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
  worlds.reserve(nodes.size());
  for (auto& [role, of] : nodes) worlds.push_back({role, std::move(of)});
  return worlds;
}

}  // namespace

std::vector<CoordinatorCore::Listed> GoodOf(const GangHead& head) {
  std::vector<CoordinatorCore::Listed> good;
  for (const CheckpointInfo& checkpoint : head.checkpoints) {
    if (checkpoint.good) good.push_back({checkpoint.step, checkpoint.fence.generation, checkpoint.manifest});
  }
  return good;
}

void Coordinator::SendStart(const std::set<uint32_t>& nodes) {
  auto message = nodes_.NewMessage();
  *message.mutable_start() = *start_;
  // The same for all, and long where there are thousands.
  const std::string payload = message.SerializeAsString();
  for (const uint32_t node : nodes) nodes_.Send(node, payload);
  checkpoints_.LookAtRoom();
}

// Made once a generation, so that a node that asks again gets the same.
void Coordinator::BuildStart(const Starts::Prepared& prepared) {
  const std::optional<uint64_t> restore = core_.starts().from();
  if (!prepared.inherited && !prepared.again) checkpoints_.BeginGeneration();
  v1::Start start;
  start.set_term(core_.fence().term());
  start.set_generation(core_.gang().generation());
  for (const uint32_t index : core_.gang().active()) {
    const gang::Gang::Node& node = core_.gang().nodes()[index];
    v1::NodeSpec* spec = start.add_nodes();
    spec->set_name(node.name);
    spec->set_node(index);
    spec->set_role(core_.gang().RoleOf(index).name);
    spec->set_kind(static_cast<uint32_t>(core_.gang().RoleOf(index).kind));
    spec->set_lease_port(node.lease_port);
    for (const uint32_t task : node.tasks) {
      spec->add_tasks(task);
      spec->add_ranks(core_.gang().members()[task].rank.value_or(0));
    }
  }
  start.set_restore(restore.has_value());
  start.set_restore_step(restore.value_or(0));
  if (const auto generation = restore ? checkpoints_.SavedIn(*restore) : std::nullopt)
    start.set_restore_generation(*generation);
  start.set_cause(history_.restart_cause());
  start.set_store(store_->Id());
  if (std::exchange(links_.good, false)) {
    start.mutable_good_links()->set_test(links_.test);
    start.mutable_good_links()->set_full(job_.options.preflight == wire::Preflight::kFull);
  }
  PackNodes(&start);
  start_ = std::move(start);
  steps_.Begin(core_.gang().generation(), core_.fence().term(), WorldsOf(core_.gang()), prepared.inherited);
}

void Coordinator::SendStop(const gang::StopGeneration& action) {
  auto message = nodes_.NewMessage();
  message.mutable_stop()->set_generation(action.generation);
  message.mutable_stop()->set_last_words(action.last_words);
  for (const uint32_t node : action.nodes) nodes_.Send(node, message);
  if (action.older) {
    return AddHistory("stopping",
                      fmt::format("{} nodes have something left of a generation before {}: they stop it",
                                  action.nodes.size(), action.generation));
  }
  AddHistory("stopping", fmt::format("generation {} is stopped", action.generation));
}

void Coordinator::BuildFinish(const gang::FinishGang& action) {
  finish_ = FinishOf(action.succeeded, action.cause, action.code);
}

void Coordinator::AwaitEndRecord() {
  loop_.Cancel(finish_timer_);
  finish_timer_ = loop_.After(kEndDurable, [this] {
    const auto beat = std::chrono::milliseconds(config_.beat_ms);
    finish_timer_ = loop_.After(beat, [this, late = loop_.Now() + 2 * beat] {
      finish_timer_ = 0;
      core_.EndRecordLate(loop_.Now() > late);
    });
  });
}

void Coordinator::SendFinish(const std::set<uint32_t>& nodes) {
  auto message = nodes_.NewMessage();
  *message.mutable_finish() = *finish_;
  for (const uint32_t node : nodes) nodes_.Send(node, message);
  slurm_.Finished();
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

void Coordinator::WriteRecord(const RecordFence::Advance& advance) {
  worker_.Do([weak = weak_from_this(), mine = core_.fence().Mine(), catalog = catalog_, clock = clock_,
              order = checkpoints_.order(), advance, record = Record().Encode(), state = core_.gang().state(),
              &loop = loop_, id = job_.Id()] {
    if (advance.to.generation > advance.from.generation) order->AwaitCommits(kForCommits);
    lease::Nanos asked = clock->Now();
    // Nothing may overtake: what is queued behind is of the next fence.
    const Status written = catalog->AdvanceForSure(advance.from, advance.to, record, [&](const Error& error) {
      if (!mine()) return false;
      spdlog::warn("gang {}: record not written: {}; trying again", id, error.message);
      std::this_thread::sleep_for(kActionRetry);
      asked = clock->Now();
      return mine();
    });
    order->Recorded(advance.to.generation);
    loop.Post([weak, written, generation = advance.to.generation, state, asked] {
      const auto self = weak.lock();
      if (!self || self->core_.lost()) return;
      if (!written && written.error().code == Errc::kConflict)
        return self->core_.Deposed(written.error().message);
      if (!written)
        return spdlog::error("gang {}: record not written: {}", self->job_.Id(), written.error().message);
      if (self->core_.RecordWritten(generation, state, asked)) self->checkpoints_.Collect();
    });
  });
}

void Coordinator::WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) {
  GangRecord record = Record();
  record.term = advance.to.term;
  SetWitnesses(sets, &record);
  worker_.Do([weak = weak_from_this(), mine = core_.fence().Mine(), catalog = catalog_, advance,
              text = record.Encode(), &loop = loop_] {
    const Status raised = catalog->AdvanceForSure(advance.from, advance.to, text, [&](const Error&) {
      if (!mine()) return false;
      std::this_thread::sleep_for(kRaiseRetry);
      return mine();
    });
    loop.Post([weak, raised] {
      if (const auto self = weak.lock()) self->core_.TermRaised(raised);
    });
  });
}

void Coordinator::ReadHead(std::function<void(const Result<GangHead>&, lease::Nanos)> then) {
  context_.reader->Do(
      [weak = weak_from_this(), catalog = catalog_, clock = clock_, then = std::move(then), &loop = loop_] {
        const lease::Nanos asked_at = clock->Now();
        const Result<GangHead> head = catalog->Load();
        loop.Post([weak, head, asked_at, then] {
          if (const auto self = weak.lock()) then(head, asked_at);
        });
      });
}

void Coordinator::AskTerm() {
  if (confirming_) return;
  confirming_ = true;
  ReadHead([this](const Result<GangHead>& head, lease::Nanos asked_at) {
    confirming_ = false;
    if (head) core_.StoreHasTerm(head->fence.term, asked_at);
  });
}

void Coordinator::CloseLink(uint32_t node) {
  nodes_.Close(node, "this node was silent for too long");
}

void Coordinator::Do(const gang::ReportToJob& action) {
  auto message = nodes_.NewMessage();
  message.mutable_report()->set_task(action.task);
  message.mutable_report()->set_text(action.text);
  if (action.task < core_.gang().members().size())
    nodes_.Send(core_.gang().members()[action.task].node, message);
}

void Coordinator::Do(const gang::Note& action) {
  const std::string& what = core_.gang().last_fault() ? core_.gang().last_fault()->what : action.text;
  if (action.kind == "planned") history_.Planned(what);
  if (action.kind == "fault") {
    history_.Fault(what);
    slurm_.CommentOnFault(action.text);
  }
  history_.Add(action.kind, action.text, action.generation);
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
    core_.Feed(gang::TimerFired{timer});
  });
}

// A store that does not answer is waited for: the members will need it for an older one.
void Coordinator::MarkBad(const gang::RejectCheckpoint& bad, bool later) {
  if (later) {
    loop_.After(kActionRetry, [weak = weak_from_this(), bad] {
      if (const auto self = weak.lock(); self && !self->core_.lost()) self->MarkBad(bad, false);
    });
    return;
  }
  worker_.Do([weak = weak_from_this(), mine = core_.fence().Mine(), catalog = catalog_,
              fence = core_.fence().fence(), bad, &loop = loop_, id = job_.Id()] {
    const auto settled = [](const auto& result) { return result || !MayPass(result.error()); };
    for (;;) {
      const Status marked = catalog->MarkBad(fence, bad.step, bad.manifest, bad.reason);
      const Result<GangHead> head = catalog->Load();
      if (settled(marked) && settled(head)) {
        if (!marked && marked.error().code != Errc::kNotFound && marked.error().code != Errc::kConflict)
          spdlog::error("gang {}: {}", id, marked.error().message);
        return loop.Post(
            [weak, fence, bad, marked, good = head ? std::optional(GoodOf(*head)) : std::nullopt] {
              if (const auto self = weak.lock()) self->core_.Marked(fence, bad, marked, good);
            });
      }
      if (!mine()) return;
      spdlog::warn("gang {}: the checkpoint of step {} is not marked bad: {}; trying again", id, bad.step,
                   marked ? head.error().message : marked.error().message);
      std::this_thread::sleep_for(kActionRetry);
    }
  });
}

}  // namespace muster
