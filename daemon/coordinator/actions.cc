// What the core orders.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/coordinator/coordinator.h"
#include "daemon/proto/node_table.h"

namespace muster {
namespace {

// For the record that says that the gang is given up; after that most of the gang will do.
constexpr auto kEndDurable = std::chrono::seconds(10);

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
  start.set_store(context_.store->Id());
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

}  // namespace muster
