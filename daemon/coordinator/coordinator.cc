#include "daemon/coordinator/coordinator.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/base/crash_point.h"
#include "daemon/rpc/link.h"

namespace muster {
namespace {

int64_t NowNs() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// How long the result of a finished gang stays in memory; the record stays in the store.
constexpr auto kLinger = std::chrono::seconds(2);
constexpr auto kRetry = std::chrono::milliseconds(1000);

gang::Exit ToExit(const v1::MemberExited& message) {
  gang::Exit exit;
  exit.status = message.status();
  exit.pid = message.pid();
  exit.oom_killed = message.oom_killed();
  exit.supervisor_lost = message.supervisor_lost();
  exit.time_ns = message.time_ns();
  exit.program = message.program();
  exit.stderr_tail = message.stderr_tail();
  return exit;
}

}  // namespace

Coordinator::Coordinator(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store,
                         GangJob job)
    : loop_(loop),
      config_(config),
      self_(std::move(self)),
      job_(std::move(job)),
      store_(std::move(store)),
      catalog_(std::make_shared<Catalog>(store_, job_.Space(), job_.Key())),
      created_ns_(NowNs()),
      worker_(std::make_unique<Worker>()) {}

Coordinator::~Coordinator() {
  for (const auto& [timer, id] : timers_) loop_.Cancel(id);
  loop_.Cancel(takeover_timer_);
  loop_.Cancel(linger_timer_);
  for (auto& [node, agent] : agents_) {
    if (agent.link) agent.link->Close("the coordinator has stopped");
  }
}

// ---- taking over
// -------------------------------------------------------------------------------------------------

void Coordinator::Begin(std::function<void()> over) {
  over_ = std::move(over);
  takeover_deadline_ns_ = NowNs() + job_.options.join_seconds * 1'000'000'000LL;
  TryTakeOver();
}

void Coordinator::TryTakeOver() {
  takeover_timer_ = 0;
  const nlohmann::json index = {
      {"gang", job_.Id()}, {"job", job_.job_id}, {"step", job_.step_id}, {"created_ns", created_ns_}};
  worker_->Do([weak = weak_from_this(), catalog = catalog_, record = Record().Encode(), index = index.dump(),
               &loop = loop_] {
    // A foreign or damaged record is reported and left alone: nothing is written over it.
    Result<GangHead> head = catalog->Load();
    const bool fresh = !head && head.error().code == Errc::kNotFound;
    if (head && !head->record.empty()) {
      if (auto decoded = GangRecord::Decode(head->record); !decoded) head = decoded.error();
    }
    // The record that is there stays until this coordinator knows how to go on from it.
    if (head || fresh) head = catalog->TakeOver(fresh ? record : "", index);
    loop.Post([weak, head = std::move(head)]() mutable {
      if (const auto self = weak.lock()) self->TakenOver(std::move(head));
    });
  });
}

void Coordinator::TakenOver(Result<GangHead> head) {
  if (!head) {
    const bool again = head.error().code == Errc::kUnavailable || head.error().code == Errc::kConflict;
    if (!again || NowNs() > takeover_deadline_ns_) {
      return Refuse(fmt::format("gang {}: cannot take its record over in {}: {}", job_.Id(),
                                store_->Describe(), head.error().message));
    }
    spdlog::warn("gang {}: {}; trying again", job_.Id(), head.error().message);
    takeover_timer_ = loop_.After(kRetry, [this] { TryTakeOver(); });
    return;
  }
  fence_ = head->fence;
  latest_ = head->latest;
  for (const CheckpointInfo& checkpoint : head->checkpoints) {
    if (checkpoint.good && checkpoint.fence.generation == fence_.generation)
      committed_.insert(checkpoint.step);
  }
  uint32_t user_faults = 0;
  bool recovering = false;
  if (auto previous = GangRecord::Decode(head->record)) {
    if (previous->gang == job_.Id() && previous->state == gang::ToString(gang::State::kFinished)) {
      return OverAlready(*previous);
    }
    recovering = previous->gang == job_.Id() && previous->state != gang::ToString(gang::State::kFinished) &&
                 previous->state != gang::ToString(gang::State::kJoining);
    if (previous->gang == job_.Id()) {
      user_faults = previous->user_faults;
      history_ = std::move(previous->events);
      created_ns_ = previous->created_ns;
      if (recovering && previous->restore) restore_ = previous->restore_step;
    }
  }
  spdlog::info("gang {}: this node coordinates, term {}, generation {}{}", job_.Id(), fence_.term,
               fence_.generation, recovering ? ", recovering" : "");
  gang::Settings settings;
  settings.id = job_.Id();
  settings.node_count = static_cast<uint32_t>(job_.hosts.size());
  settings.node_names = job_.hosts;
  settings.task_count = job_.task_count;
  settings.restarts = job_.options.restarts;
  settings.join_timeout_ms = job_.options.join_seconds * 1000LL;
  settings.reconnect_ms = config_.reconnect_ms;
  settings.progress_after_ms = config_.progress_after_ms;
  gang_.emplace(settings, fence_.generation, user_faults, recovering);
  AddHistory("coordinator", fmt::format("{} coordinates, term {}", self_, fence_.term));
  Carry(gang_->Begin());
  worker_->Do([catalog = catalog_, fence = fence_, id = job_.Id()] {
    const auto removed = catalog->CollectOrphans(fence);
    if (removed && *removed > 0)
      spdlog::info("gang {}: removed {} objects of unfinished checkpoints", id, *removed);
    if (!removed) spdlog::warn("gang {}: {}", id, removed.error().message);
  });
  for (const Early& early : std::exchange(early_, {})) {
    if (agents_[early.node].link != early.link) continue;  // it has gone, or said more on a newer link
    if (early.message.has_register_()) {
      Registered(early.node, early.message.register_());
    } else {
      Message(early.node, early.message);
    }
  }
}

// The agents have missed the end, with the coordinator that was before this one: their supervisors may leave.
void Coordinator::OverAlready(const GangRecord& record) {
  end_ = v1::Finish();
  end_->set_succeeded(record.succeeded);
  end_->set_has_cause(record.finish_cause.has_value());
  end_->set_cause(record.finish_cause.value_or(0));
  end_->set_has_code(record.finish_code.has_value());
  end_->set_code(record.finish_code.value_or(0));
  auto message = NewMessage();
  *message.mutable_finish() = *end_;
  Broadcast(message);
  deposed_ = true;
  MaybeOver();
}

void Coordinator::Refuse(const std::string& text) {
  spdlog::error("{}", text);
  auto message = NewMessage();
  message.mutable_refused()->set_text(text);
  Broadcast(message);
  deposed_ = true;
  MaybeOver();
}

// A newer term has the record: this coordinator is not obeyed any more, and its members must not run on.
void Coordinator::Deposed(const std::string& why) {
  if (deposed_) return;
  Refuse(fmt::format(
      "gang {}: another coordinator has taken over {} ({}); does another job use the same name=KEY?",
      job_.Id(), job_.Key(), why));
}

// ---- agents
// ------------------------------------------------------------------------------------------------------

void Coordinator::Attached(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration) {
  Agent& agent = agents_[node];
  if (agent.link && agent.link != link) agent.link->Close("the same node has connected again");
  agent.link = std::move(link);
  loop_.Cancel(std::exchange(linger_timer_, 0));
  if (deposed_) {
    auto message = NewMessage();
    if (end_) {
      *message.mutable_finish() = *end_;
    } else {
      message.mutable_refused()->set_text(fmt::format("gang {} is not coordinated here any more", job_.Id()));
    }
    return Send(node, message);
  }
  if (!gang_) {
    early_.push_back({node, agent.link, {}});
    *early_.back().message.mutable_register_() = registration;
    return;
  }
  Registered(node, registration);
}

void Coordinator::Registered(uint32_t node, const v1::Register& registration) {
  gang::NodeJoined joined;
  joined.node = node;
  joined.name = registration.node_name();
  joined.lease_port = static_cast<uint16_t>(registration.lease_port());
  for (const v1::Member& member : registration.members()) {
    gang::MemberInfo info;
    info.task = member.task();
    info.local_id = member.local_id();
    info.state = static_cast<gang::MemberState>(std::min(member.state(), 3U));
    info.generation = member.generation();
    info.unkillable = member.unkillable();
    if (member.has_exited()) info.exit = ToExit(member.exited());
    joined.members.push_back(std::move(info));
  }
  agents_[node].name = registration.node_name();
  agents_[node].lease_port = joined.lease_port;
  Feed(joined);
}

void Coordinator::Detached(uint32_t node, const Link* link) {
  const auto found = agents_.find(node);
  if (found == agents_.end() || found->second.link.get() != link) return;
  found->second.link.reset();
  if (gang_) Feed(gang::NodeLeft{node});
  MaybeOver();
}

void Coordinator::Message(uint32_t node, const v1::AgentMessage& message) {
  if (deposed_) return;
  if (!gang_) {
    early_.push_back({node, agents_[node].link, message});
    return;
  }
  switch (message.kind_case()) {
    case v1::AgentMessage::kExecuted:
      for (const uint32_t task : message.executed().tasks()) {
        Feed(gang::MemberExecuted{task, message.executed().generation(), message.executed().time_ns()});
      }
      return;
    case v1::AgentMessage::kExited:
      return Feed(gang::MemberExited{message.exited().task(), message.exited().generation(),
                                     ToExit(message.exited())});
    case v1::AgentMessage::kStopped:
      agents_[node].lease_port = static_cast<uint16_t>(message.stopped().lease_port());
      return Feed(gang::NodeStopped{node, message.stopped().generation(),
                                    static_cast<uint16_t>(message.stopped().lease_port()),
                                    message.stopped().unkillable()});
    case v1::AgentMessage::kTerminating:
      return Feed(gang::Terminating{message.terminating().task(), message.terminating().signal()});
    case v1::AgentMessage::kProgress:
      return Feed(gang::Progressed{message.progress().step()});
    case v1::AgentMessage::kShardWritten:
      return ShardWritten(message.shard_written());
    case v1::AgentMessage::kCheckpointBad:
      return Feed(gang::CheckpointBad{message.checkpoint_bad().task(), message.checkpoint_bad().generation(),
                                      message.checkpoint_bad().step(), message.checkpoint_bad().reason()});
    default:
      return;
  }
}

void Coordinator::MaybeOver() {
  if (over_called_ || linger_timer_ != 0) return;
  const bool done = deposed_ || (gang_ && gang_->state() == gang::State::kFinished);
  const bool linked = std::any_of(agents_.begin(), agents_.end(),
                                  [](const auto& item) { return item.second.link != nullptr; });
  if (!done || linked) return;
  linger_timer_ = loop_.After(kLinger, [this] {
    linger_timer_ = 0;
    over_called_ = true;
    // Behind what is still to be written: the last record is not lost when the store is slow.
    worker_->Do([&loop = loop_, over = over_] { loop.Post(over); });
  });
}

v1::CoordinatorMessage Coordinator::NewMessage() const {
  v1::CoordinatorMessage message;
  message.set_gang(job_.Id());
  return message;
}

void Coordinator::Send(uint32_t node, const v1::CoordinatorMessage& message) {
  const auto found = agents_.find(node);
  if (found != agents_.end() && found->second.link) found->second.link->Send(message.SerializeAsString());
}

void Coordinator::Broadcast(const v1::CoordinatorMessage& message) {
  for (const auto& [node, agent] : agents_) Send(node, message);
}

// ---- actions
// -----------------------------------------------------------------------------------------------------

void Coordinator::Feed(const gang::Event& event) {
  Carry(gang_->Handle(event));
  MaybeOver();  // the end may come when no agent is there any more
}

void Coordinator::Carry(std::vector<gang::Action> actions) {
  for (const gang::Action& action : actions) {
    std::visit([this](const auto& a) { Do(a); }, action);
  }
}

void Coordinator::Do(const gang::StartGeneration& action) {
  if (rejecting_ > 0) {
    start_after_reject_.insert(start_after_reject_.end(), action.nodes.begin(), action.nodes.end());
    return;
  }
  SendStart(action.nodes);
}

void Coordinator::SendStart(const std::vector<uint32_t>& nodes) {
  if (!start_ || start_->generation() != gang_->generation() || start_->term() != fence_.term) BuildStart();
  auto message = NewMessage();
  *message.mutable_start() = *start_;
  for (const uint32_t node : nodes) Send(node, message);
}

// Made once a generation, so that a node that asks again gets the same.
void Coordinator::BuildStart() {
  // A generation that was running when this coordinator took over keeps what it started from.
  const bool inherited = !start_ && gang_->state() == gang::State::kRunning;
  if (!inherited) {
    restore_ = latest_;
    pending_.clear();
    committed_.clear();
  }
  v1::Start start;
  start.set_term(fence_.term);
  start.set_generation(gang_->generation());
  for (const gang::Gang::Node& node : gang_->nodes()) {
    v1::NodeSpec* spec = start.add_nodes();
    spec->set_name(node.name);
    spec->set_lease_port(node.lease_port);
    std::vector<uint32_t> tasks = node.tasks;
    std::sort(tasks.begin(), tasks.end(), [&](uint32_t a, uint32_t b) {
      return gang_->members()[a].local_id < gang_->members()[b].local_id;
    });
    for (const uint32_t task : tasks) spec->add_ranks(task);
  }
  start.set_restore(restore_.has_value());
  start.set_restore_step(restore_.value_or(0));
  start.set_cause(cause_);
  start_ = std::move(start);
  if (gang_->generation() > 1 && !inherited) {
    AddHistory("restore", restore_
                              ? fmt::format("generation {} starts from the checkpoint of step {}",
                                            gang_->generation(), *restore_)
                              : fmt::format("generation {} starts from the beginning: there is no checkpoint",
                                            gang_->generation()));
  }
}

void Coordinator::Do(const gang::StopGeneration& action) {
  auto message = NewMessage();
  message.mutable_stop()->set_generation(action.generation);
  for (const uint32_t node : action.nodes) Send(node, message);
  AddHistory("stopping", fmt::format("generation {} is stopped", action.generation));
}

void Coordinator::Do(const gang::FinishGang& action) {
  auto message = NewMessage();
  v1::Finish* finish = message.mutable_finish();
  finish->set_succeeded(action.succeeded);
  finish->set_has_cause(action.cause.has_value());
  finish->set_cause(action.cause.value_or(0));
  finish->set_has_code(action.code.has_value());
  finish->set_code(action.code.value_or(0));
  for (const uint32_t node : action.nodes) Send(node, message);
}

void Coordinator::Do(const gang::Persist& /*action*/) {
  const Fence from = fence_;
  fence_.generation = std::max(fence_.generation, gang_->generation());
  worker_->Do([weak = weak_from_this(), catalog = catalog_, from, to = fence_, record = Record().Encode(),
               &loop = loop_, id = job_.Id()] {
    while (true) {
      const Status written = catalog->Advance(from, to, record);
      if (written) return;
      if (written.error().code == Errc::kUnavailable && !weak.expired()) {
        // Nothing may overtake: what is queued behind waits, as a checkpoint must for its generation's
        // record.
        spdlog::warn("gang {}: record not written: {}; trying again", id, written.error().message);
        std::this_thread::sleep_for(kRetry);
        continue;
      }
      loop.Post([weak, error = written.error()] {
        const auto self = weak.lock();
        if (!self) return;
        if (error.code == Errc::kConflict) return self->Deposed(error.message);
        spdlog::error("gang {}: record not written: {}", self->job_.Id(), error.message);
      });
      return;
    }
  });
}

void Coordinator::Do(const gang::ReportToJob& action) {
  auto message = NewMessage();
  message.mutable_report()->set_task(action.task);
  message.mutable_report()->set_text(action.text);
  if (action.task < gang_->members().size()) Send(gang_->members()[action.task].node, message);
}

void Coordinator::Do(const gang::Note& action) {
  if (action.kind == "fault") cause_ = gang_->last_fault() ? gang_->last_fault()->what : action.text;
  AddHistory(action.kind, action.text, action.generation);
}

void Coordinator::Do(const gang::TellMembers& action) {
  auto message = NewMessage();
  message.mutable_notify()->set_should_checkpoint(action.should_checkpoint);
  message.mutable_notify()->set_should_exit(action.should_exit);
  Broadcast(message);
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
  ++rejecting_;
  AddHistory("checkpoint_bad",
             fmt::format("the checkpoint of step {} does not verify: {}", action.step, action.reason));
  worker_->Do(
      [weak = weak_from_this(), catalog = catalog_, fence = fence_, action, &loop = loop_, id = job_.Id()] {
        const Status marked = catalog->MarkBad(fence, action.step, action.reason);
        if (!marked) spdlog::error("gang {}: {}", id, marked.error().message);
        const auto head = catalog->Load();
        loop.Post([weak, head, step = action.step] {
          const auto self = weak.lock();
          if (!self) return;
          if (head) self->latest_ = head->latest;
          // Also when the store could not say so: this gang does not start from it again.
          if (self->latest_ == step) self->latest_.reset();
          if (--self->rejecting_ == 0 && !self->start_after_reject_.empty()) {
            self->SendStart(std::exchange(self->start_after_reject_, {}));
          }
        });
      });
}

// ---- checkpoints
// -------------------------------------------------------------------------------------------------

void Coordinator::ShardWritten(const v1::ShardWritten& written) {
  const auto answer = [&](const std::string& error) {
    auto message = NewMessage();
    message.mutable_committed()->set_generation(written.generation());
    message.mutable_committed()->set_step(written.step());
    message.mutable_committed()->set_error(error);
    Broadcast(message);
  };
  if (written.generation() != gang_->generation()) return;  // of an older one: it will never be complete
  // A member whose musterd has restarted saves again what it was not told to be committed.
  if (committed_.contains(written.step())) return answer("");
  if (!written.error().empty()) {
    AddHistory("checkpoint_failed",
               fmt::format("step {}, rank {}: {}", written.step(), written.shard().rank(), written.error()));
    pending_.erase(written.step());
    return answer(written.error());
  }
  Shard shard;
  shard.rank = written.shard().rank();
  shard.bytes = written.shard().bytes();
  shard.chunk_bytes = written.shard().chunk_bytes();
  shard.prefix = written.shard().prefix();
  const std::string& digests = written.shard().digests();
  for (size_t at = 0; at + sizeof(Digest) <= digests.size(); at += sizeof(Digest)) {
    Digest digest;
    std::copy_n(digests.begin() + static_cast<std::ptrdiff_t>(at), digest.size(), digest.begin());
    shard.chunks.push_back(digest);
  }
  Pending& pending = pending_[written.step()];
  if (pending.committing || shard.rank >= job_.task_count) return;
  pending.shards[shard.rank] = std::move(shard);
  if (pending.shards.size() < job_.task_count) return;
  CrashPoint("coordinator.shards_complete");
  Commit(written.step());
}

void Coordinator::Commit(uint64_t step) {
  Pending& pending = pending_[step];
  pending.committing = true;
  Manifest manifest;
  manifest.key = job_.Key();
  manifest.step = step;
  manifest.fence = fence_;
  manifest.world_size = job_.task_count;
  manifest.created_ns = NowNs();
  for (auto& [rank, shard] : pending.shards) manifest.shards.push_back(std::move(shard));
  worker_->Do([weak = weak_from_this(), catalog = catalog_, manifest = std::move(manifest),
               keep = static_cast<size_t>(config_.keep_checkpoints), &loop = loop_] {
    const auto removed = catalog->Commit(manifest, keep);
    const Status status = removed ? Status() : Status(removed.error());
    loop.Post([weak, status, generation = manifest.fence.generation, step = manifest.step,
               bytes = manifest.TotalBytes()] {
      CrashPoint("coordinator.commit_done");
      if (const auto self = weak.lock()) self->CommitDone(generation, step, bytes, status);
    });
  });
}

void Coordinator::CommitDone(uint64_t generation, uint64_t step, uint64_t bytes, const Status& status) {
  if (generation == gang_->generation()) pending_.erase(step);
  if (status) {
    if (generation == gang_->generation()) committed_.insert(step);
    if (!latest_ || *latest_ < step) latest_ = step;
    AddHistory("checkpoint", fmt::format("step {} is committed, {} bytes", step, bytes));
    Feed(gang::CheckpointCommitted{step});
  } else {
    spdlog::warn("gang {}: checkpoint of step {}: {}", job_.Id(), step, status.error().message);
    AddHistory("checkpoint_failed", fmt::format("step {}: {}", step, status.error().message));
  }
  auto message = NewMessage();
  message.mutable_committed()->set_generation(generation);
  message.mutable_committed()->set_step(step);
  if (!status) message.mutable_committed()->set_error(status.error().message);
  Broadcast(message);
}

// ---- history
// -----------------------------------------------------------------------------------------------------

void Coordinator::AddHistory(const std::string& kind, const std::string& text) {
  AddHistory(kind, text, gang_ ? gang_->generation() : 0);
}

void Coordinator::AddHistory(const std::string& kind, const std::string& text, uint64_t generation) {
  spdlog::info("gang {}: {}: {}", job_.Id(), kind, text);
  history_.push_back({NowNs(), generation, kind, text});
  // How it began matters as much as how it goes: the middle is what is dropped.
  if (history_.size() > kMaxHistory) history_.erase(history_.begin() + kMaxHistory / 5);
}

GangRecord Coordinator::Record() const {
  GangRecord record;
  record.gang = job_.Id();
  record.key = job_.Key();
  record.job_id = job_.job_id;
  record.step_id = job_.step_id;
  record.restart_count = job_.restart_count;
  record.uid = job_.uid;
  record.state = gang_ ? gang::ToString(gang_->state()) : gang::ToString(gang::State::kJoining);
  record.succeeded = gang_ && gang_->succeeded();
  record.term = fence_.term;
  record.generation = gang_ ? gang_->generation() : 0;
  record.coordinator = self_;
  record.task_count = job_.task_count;
  record.nodes = job_.hosts;
  record.restarts = gang_ ? gang_->restarts() : 0;
  record.user_faults = gang_ ? gang_->user_faults() : 0;
  record.restart_limit = job_.options.restarts;
  record.step_reached = gang_ ? gang_->max_step() : 0;
  record.restore = restore_.has_value();
  record.restore_step = restore_.value_or(0);
  record.created_ns = created_ns_;
  record.updated_ns = NowNs();
  record.first_cause = cause_;
  if (gang_) record.finish_cause = gang_->finish_cause();
  if (gang_) record.finish_code = gang_->finish_code();
  record.events = history_;
  return record;
}

}  // namespace muster
