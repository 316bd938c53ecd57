#include "daemon/coordinator/coordinator.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "daemon/coordinator/roles.h"
#include "daemon/health/kernel_fact.h"
#include "daemon/slurm/topology.h"

namespace muster {
namespace {

constexpr int64_t kFullRoundMs = 4'000;

hang::Settings HangSettings(const GangJob& job) {
  hang::Settings settings;
  if (job.options.hang_off) settings.limit_ns = 0;
  if (job.options.hang_seconds > 0) settings.limit_ns = job.options.hang_seconds * hang::kSecondNs;
  if (job.options.startup_seconds > 0) settings.first_step_ns = job.options.startup_seconds * hang::kSecondNs;
  return settings;
}

gang::CheckpointBad FromMessage(const v1::CheckpointBad& bad, const PendingSaves& saves) {
  return {.task = bad.task(),
          .generation = bad.generation(),
          .step = bad.step(),
          .reason = bad.reason(),
          .manifest = bad.manifest(),
          .saved_anew = saves.IsCommitted(bad.generation(), bad.step())};
}

}  // namespace

Coordinator::Coordinator(CoordinatorContext context, GangJob job)
    : context_(std::move(context)),
      clock_(context_.beat != nullptr ? context_.beat->clock() : BeatClock::OfThisHost()),
      loop_(context_.loop),
      config_(context_.config),
      job_(std::move(job)),
      catalog_(std::make_shared<Catalog>(context_.store, job_.Space(), job_.Key())),
      history_(job_.Id()),
      nodes_(job_, core_),
      lease_(loop_, context_.beat, clock_, job_, core_, nodes_,
             {.silence_ms = config_.silence_ms, .port = static_cast<uint16_t>(config_.port)},
             [this] { records_.AskTerm(); }),
      checkpoints_(
          loop_, config_, job_, context_.store, catalog_, core_,
          {.tell =
               [this](v1::CoordinatorMessage message) {
                 message.MergeFrom(nodes_.NewMessage());
                 nodes_.Broadcast(message);
               },
           .note = [this](const std::string& kind, const std::string& text) { AddHistory(kind, text); }}),
      records_(loop_, clock_, context_.reader, catalog_, checkpoints_.order(), job_, core_,
               {.record = [this] { return Record(); },
                .step_down = [this](const std::string& successor) { StepDown(successor); },
                .refuse = [this](const std::string& why, bool job_is_over) { Refuse(why, job_is_over); }}),
      slurm_(loop_, context_.slurm, job_, core_,
             {.leases = context_.beat != nullptr,
              .lease = std::chrono::milliseconds(config_.lease_ms),
              .time_limit_margin_ms = config_.time_limit_margin_ms},
             {.read_fence =
                  [this](SlurmSide::FenceRead then) {
                    records_.Read(
                        [this, then = std::move(then)](const Result<GangHead>& head, lease::Nanos asked_at) {
                          then(head ? Result<Fence>(head->fence) : head.error(),
                               std::chrono::nanoseconds(clock_->Now() - asked_at));
                        });
                  },
              .note = [this](const std::string& kind, const std::string& text) { AddHistory(kind, text); },
              .tell_end =
                  [this](const std::string& why) {
                    auto message = nodes_.NewMessage();
                    message.mutable_refused()->set_text(why);
                    message.mutable_refused()->set_job_is_over(true);
                    message.mutable_refused()->set_slurm_ends_it(true);
                    nodes_.Broadcast(message);
                  }}),
      core_(
          {*this, records_, slurm_, checkpoints_, lease_},
          Terms(static_cast<lease::NodeIndex>(job_.NodeOf(context_.self).value_or(0)), job_.CandidateNodes(),
                {.after_loss = config_.silence_ms * lease::kMillisecond,
                 .to_grow = config_.reconnect_ms * lease::kMillisecond}),
          context_.beat != nullptr),
      claim_(loop_, clock_, records_.writer(), catalog_, context_.slurm, job_, core_, nodes_, history_,
             {.self = context_.self,
              .store = context_.store->Describe(),
              .silence_ms = config_.silence_ms,
              .topology = job_.options.order_by_topology ? context_.topology : nullptr},
             {.record = [this] { return Record(); },
              .taken = [this](const RecordClaim::Taken& taken) { Begin(taken); },
              .not_taken =
                  [this] {
                    if (origin_.taken) origin_.taken(false);
                  },
              .step_down = [this](const std::string& successor, uint64_t term) { StepDown(successor, term); },
              .refuse = [this](const std::string& why, bool job_is_over) { Refuse(why, job_is_over); }}),
      hangs_(loop_,
             {.hang = HangSettings(job_), .stacks_within = std::chrono::milliseconds(config_.hang_report_ms)},
             {.capture = [this](uint64_t generation) { return CaptureStacks(generation); },
              .note = [this](const std::string& kind, const std::string& text) { AddHistory(kind, text); },
              .hung =
                  [this](gang::Hung hung, uint32_t rank) {
                    hung.task = TaskOf(rank);
                    core_.Feed(hung);
                  }}),
      steps_([this] {
        steps::GangSide::Hooks hooks;
        hooks.talk.send = [this](uint32_t node, const v1::StepOrder& order) {
          if (core_.lost()) return;
          auto message = nodes_.NewMessage();
          *message.mutable_step_order() = order;
          nodes_.Send(node, message);
        };
        hooks.talk.note = [this](const std::string& text) { AddHistory("step", text); };
        hooks.talk.name = [this](uint32_t node) { return core_.gang().nodes()[node].name; };
        hooks.now = [] { return BoottimeNs() / 1'000'000; };
        hooks.after = [this](int64_t ms, std::function<void()> what) {
          loop_.After(std::chrono::milliseconds(ms), std::move(what));
        };
        return hooks;
      }()) {
  if (auto codes = gang::ParseExitCodes(config_.exit_codes)) exit_codes_ = *std::move(codes);
}

Coordinator::~Coordinator() {
  core_.Lose();  // the threads try nothing again
  lease_.End();
  for (const auto& [timer, id] : timers_) loop_.Cancel(id);
  for (const Loop::TimerId timer : {linger_timer_, finish_timer_}) loop_.Cancel(timer);
  nodes_.CloseAll("the coordinator has stopped");
}

// What the options and the configuration make of the state machine.
gang::Settings Coordinator::Settings() const {
  gang::Settings settings;
  settings.id = job_.Id();
  settings.node_count = static_cast<uint32_t>(job_.hosts.size());
  settings.node_names = job_.hosts;
  settings.task_count = job_.task_count;
  SetRoles(job_, &settings);
  settings.restarts = job_.options.restarts;
  settings.requeue = job_.options.requeue;
  settings.grow = job_.options.grow;
  settings.order_by_topology = job_.options.order_by_topology;
  if (settings.order_by_topology && context_.topology) {
    const auto topology = context_.topology->Now();
    for (const std::string& host : job_.hosts) settings.node_switches.push_back(topology->SwitchesOf(host));
  }
  settings.preflight = job_.options.preflight != wire::Preflight::kOff;
  // Every pair, in rounds: each takes its time.
  if (job_.options.preflight == wire::Preflight::kFull)
    settings.test_timeout_ms += kFullRoundMs * static_cast<int64_t>(job_.hosts.size());
  settings.join_timeout_ms = job_.options.join_seconds * 1000LL;
  settings.grace_ms = job_.options.grace_seconds * 1000LL;
  for (int code = 1; code < 256; ++code) {
    if (wire::IsStopCode(job_.options, code)) settings.stop_codes.insert(code);
  }
  settings.last_words_ms = job_.options.last_words_seconds * 1000LL;
  settings.progress_after_ms = config_.progress_after_ms;
  settings.forgive_after_ms = config_.forgive_after_ms;
  // After that time all leases of the coordinator before have ended, and members on nodes without musterd have ended themselves.
  settings.stranded_after_ms =
      std::max(config_.stranded_after_ms, config_.reconnect_ms + 2 * config_.silence_ms);
  return settings;
}

uint32_t Coordinator::TaskOf(uint32_t rank) const {
  const auto& members = core_.gang().members();
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const gang::Gang::Member& m) { return m.rank == rank; });
  return static_cast<uint32_t>(found - members.begin());
}

gang::Exit Coordinator::ExitOf(const v1::MemberExited& message, const std::string& waited_for) const {
  gang::Exit exit;
  exit.status = message.status();
  exit.pid = message.pid();
  exit.oom_killed = message.oom_killed();
  exit.supervisor_lost = message.supervisor_lost();
  exit.time_ns = message.time_ns();
  exit.program = message.program();
  exit.stderr_tail = message.stderr_tail();
  gang::Ending ending;
  ending.status = exit.status;
  ending.oom_killed = exit.oom_killed;
  ending.node_lost = exit.supervisor_lost;
  ending.announced = slurm_.announced();
  ending.stderr_tail = exit.stderr_tail;
  ending.waited_for = exit.waited_for = waited_for;
  for (const v1::KernelFact& fact : message.facts()) {
    gang::KernelEvidence evidence;
    evidence.points = fact.fact_class() == static_cast<uint32_t>(FactClass::kHardware)
                          ? gang::KernelEvidence::Points::kHardware
                      : fact.fact_class() == static_cast<uint32_t>(FactClass::kUser)
                          ? gang::KernelEvidence::Points::kUser
                          : gang::KernelEvidence::Points::kNowhere;
    evidence.text = fact.text();
    exit.facts += fact.text() + (fact.meaning().empty() ? "" : " (" + fact.meaning() + ")") + "\n";
    ending.kernel.push_back(std::move(evidence));
  }
  exit.cause = gang::Classify(ending, exit_codes_).cause;
  exit.signature = gang::FaultSignature(ending);
  return exit;
}

// ---- agents
// ------------------------------------------------------------------------------------------------------

void Coordinator::Attached(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration) {
  nodes_.Attach(node, link);
  // A coordinator that is not obeyed any more goes, however often it is asked.
  if (!core_.lost() || last_word_.has_finish()) loop_.Cancel(std::exchange(linger_timer_, 0));
  if (core_.lost()) return nodes_.Send(node, last_word_);
  if (!core_.began()) return claim_.Registered(node, std::move(link), registration);
  Registered(node, registration);
}

void Coordinator::Registered(uint32_t node, const v1::Register& registration) {
  gang::NodeJoined joined;
  joined.node = node;
  joined.name = registration.node_name();
  joined.lease_port = static_cast<uint16_t>(registration.lease_port());
  const auto age = static_cast<int64_t>(std::min<uint64_t>(registration.links_age_ms(), INT64_MAX));
  const bool enough = registration.links_full() || job_.options.preflight != wire::Preflight::kFull;
  if (enough && age < config_.preflight_age_ms) joined.links_test = registration.links_test();
  for (const v1::Member& member : registration.members()) {
    gang::MemberInfo info;
    info.task = member.task();
    info.local_id = member.local_id();
    info.state = static_cast<gang::MemberState>(std::min(member.state(), 3U));
    info.generation = member.generation();
    info.unkillable = member.unkillable();
    if (member.has_exited()) info.exit = ExitOf(member.exited());
    joined.members.push_back(std::move(info));
  }
  if (registration.has_checkpoint_bad())
    joined.checkpoint_bad = FromMessage(registration.checkpoint_bad(), core_.saves());
  nodes_.SetName(node, registration.node_name());
  checkpoints_.TakeFailures(registration);
  core_.Registered(
      node, registration.started_generation(),
      registration.started_restore() ? Starts::Step(registration.started_restore_step()) : std::nullopt);
  if (!registration.sick().empty()) core_.Feed(gang::NodeSick{node, registration.sick()});
  core_.Feed(joined);
  // What was under way over the link before this one is lost, also where its end has not been seen.
  if (exchanges_) exchanges_->Left(node);
  steps_.Joined(node);
}

void Coordinator::Detached(uint32_t node, const Link* link) {
  if (!nodes_.Detach(node, link)) return;
  Left(node);
  MaybeOver();
}

void Coordinator::Left(uint32_t node) {
  if (exchanges_) exchanges_->Left(node);
  steps_.Left(node);
  core_.Left(node);
}

void Coordinator::Message(uint32_t node, const v1::AgentMessage& message) {
  if (core_.lost()) return;
  if (!core_.began()) return claim_.Hear(node, message);
  switch (message.kind_case()) {
    case v1::AgentMessage::kExecuted:
      for (const uint32_t task : message.executed().tasks()) {
        core_.Feed(gang::MemberExecuted{task, message.executed().generation(), message.executed().time_ns()});
      }
      return;
    case v1::AgentMessage::kExited:
      return OnExited(message.exited());
    case v1::AgentMessage::kStopped:
      return core_.Feed(gang::NodeStopped{
          node, message.stopped().generation(), static_cast<uint16_t>(message.stopped().lease_port()),
          message.stopped().unkillable(), message.stopped().last_words_ms(), core_.starts().Waits()});
    case v1::AgentMessage::kExiting:
      return core_.Feed(gang::NodeExiting{node, message.exiting().generation()});
    case v1::AgentMessage::kTerminating:
      return slurm_.OnTerminating(message.terminating());
    case v1::AgentMessage::kShardWritten:
      return checkpoints_.Take(message.shard_written());
    case v1::AgentMessage::kShardDelayed:
      return core_.ShardDelayed(message.shard_delayed().generation(), message.shard_delayed().step(),
                                message.shard_delayed().error());
    case v1::AgentMessage::kShardRestored:
      return checkpoints_.Take(message.shard_restored());
    case v1::AgentMessage::kCheckpointBad:
      return core_.Feed(FromMessage(message.checkpoint_bad(), core_.saves()));
    case v1::AgentMessage::kReports:
      return TakeReports(message.reports());
    case v1::AgentMessage::kStacks:
      return hangs_.Take(message.stacks(), node);
    case v1::AgentMessage::kHealth:
      return core_.Feed(gang::NodeSick{node, message.health().sick()});
    case v1::AgentMessage::kLinksTested:
      return LinksTested(node, message.links_tested());
    case v1::AgentMessage::kGather:
      return Gather(node, message.gather());
    case v1::AgentMessage::kStepAnswer:
      return steps_.Take(node, message.step_answer());
    case v1::AgentMessage::kStepNews:
      return steps_.Take(node, message.step_news());
    case v1::AgentMessage::kWarm:
      return TakeWarm(message.warm());
    case v1::AgentMessage::kFabric:
      for (const std::string& text : message.fabric().texts())
        AddHistory("fabric", fmt::format("node {}: {}", nodes_.NameOf(node), text));
      return;
    case v1::AgentMessage::kWish:
      if (message.wish().drain()) return core_.Feed(gang::DrainNode{node, message.wish().reason()});
      return core_.Feed(gang::NodeReturned{node});
    default:
      return;
  }
}

// A generation that is over waits for no values.
void Coordinator::Gather(uint32_t node, const v1::Gather& gather) {
  if (gather.generation() != core_.gang().generation()) return;
  if (!exchanges_ || exchanges_->generation() != core_.gang().generation()) {
    exchanges_.emplace(core_.gang().generation(), job_.task_count,
                       [this](uint32_t to, const v1::Gathered& gathered) {
                         auto message = nodes_.NewMessage();
                         *message.mutable_gathered() = gathered;
                         nodes_.Send(to, message);
                       });
  }
  if (const Status taken = exchanges_->Take(node, gather); !taken)
    spdlog::warn("gang {}: node {}: {}", job_.Id(), nodes_.NameOf(node), taken.error().message);
}

size_t Coordinator::WarmMembers() const {
  const auto& members = core_.gang().members();
  return static_cast<size_t>(std::count_if(members.begin(), members.end(), [&](const gang::Gang::Member& m) {
    return m.rank && job_.OptionsOf(m.node).warm;
  }));
}

void Coordinator::TakeWarm(const v1::WarmNews& news) {
  if (news.generation() != core_.gang().generation()) return;
  const std::string text =
      warm_.Take({news.rank(), news.generation(), static_cast<WarmStarts::State>(news.state()), news.text()},
                 WarmMembers());
  if (!text.empty()) AddHistory("warm", text);
}

void Coordinator::OnExited(const v1::MemberExited& message) {
  const bool known =
      message.task() < core_.gang().members().size() && message.generation() == core_.gang().generation();
  std::string waited_for;
  if (const auto rank = known ? core_.gang().members()[message.task()].rank : std::nullopt) {
    if (message.status() == 0) {
      hangs_.Exited(*rank);
    } else if (gang::WaitedInVain(message.stderr_tail())) {
      waited_for = hangs_.WaitedFor(*rank);
    }
  }
  core_.Feed(gang::MemberExited{message.task(), message.generation(), ExitOf(message, waited_for)});
}

// A generation that has begun to run is watched, one that ends is not any more.
void Coordinator::Fed(gang::State before, uint64_t generation) {
  slurm_.Fed();
  const bool another = generation != core_.gang().generation();
  if (before == gang::State::kRecovering) found_ = core_.gang().generation();
  if (another) hangs_.Forget();
  const bool was = before == gang::State::kRunning;
  const bool is = core_.gang().state() == gang::State::kRunning;
  if (was && !is) return hangs_.End();
  if (!is || (was && !another)) return;
  std::vector<hang::Member> members;
  for (const gang::Gang::Member& member : core_.gang().members()) {
    if (!member.rank) continue;
    const gang::Role& role = core_.gang().RoleOf(member.node);
    members.push_back({*member.rank, role.name, core_.gang().nodes()[member.node].name,
                       role.kind == gang::RoleKind::kTracked || role.kind == gang::RoleKind::kChief});
  }
  hangs_.Begin(core_.gang().generation(), members, core_.gang().generation() != found_);
}

std::set<uint32_t> Coordinator::CaptureStacks(uint64_t generation) {
  std::set<uint32_t> asked;
  auto message = nodes_.NewMessage();
  message.mutable_capture_stacks()->set_generation(generation);
  for (const uint32_t node : core_.gang().active()) {
    if (!core_.gang().nodes()[node].present) continue;
    asked.insert(node);
    nodes_.Send(node, message);
  }
  return asked;
}

void Coordinator::TakeReports(const v1::MemberReports& reports) {
  if (reports.generation() != core_.gang().generation()) return;
  const uint64_t step = hangs_.Take(reports, core_.saves().Committing(core_.gang().generation()));
  if (step > core_.gang().max_step()) core_.Feed(gang::Progressed{step});
  if (hangs_.TakeLearned()) core_.Persist();
}

// ---- history
// -----------------------------------------------------------------------------------------------------

void Coordinator::AddHistory(const std::string& kind, const std::string& text) {
  history_.Add(kind, text, core_.began() ? core_.gang().generation() : 0);
}

GangMetrics Coordinator::Metrics() const {
  GangMetrics metrics;
  metrics.gang = job_.Id();
  metrics.uid = job_.uid;
  metrics.tasks = job_.task_count;
  metrics.state = gang::ToString(core_.began() ? core_.gang().state() : gang::State::kJoining);
  metrics.checkpoint = checkpoints_.newest();
  if (!core_.began()) return metrics;
  metrics.generation = core_.gang().generation();
  metrics.restarts = core_.gang().restarts();
  metrics.user_faults = core_.gang().user_faults();
  metrics.nodes_active = static_cast<uint32_t>(core_.gang().active().size());
  for (uint32_t node = 0; node < core_.gang().nodes().size(); ++node) {
    metrics.nodes_spare += core_.gang().IsSpare(node) ? 1 : 0;
    metrics.nodes_lost += core_.gang().nodes()[node].lost ? 1 : 0;
  }
  if (core_.gang().recovery_ns() > 0)
    metrics.recovery_seconds = static_cast<double>(core_.gang().recovery_ns()) / 1e9;
  if (core_.gang().max_step() > 0) metrics.step = core_.gang().max_step();
  std::vector<int64_t> steps;
  for (const hang::Pace& pace : Paces()) {
    if (pace.step_ns > 0) steps.push_back(pace.step_ns);
  }
  if (!steps.empty()) {
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    metrics.step_seconds = static_cast<double>(*middle) / 1e9;
  }
  return metrics;
}

GangRecord Coordinator::Record() const {
  GangRecord record = core_.Record(job_, context_.self);
  if (claim_.waits()) record.state = kWaiting;
  history_.WriteInto(&record);
  record.updated_ns = RealtimeNs();
  record.starts = hangs_.Starts();
  record.warm = core_.began() ? warm_.Text(WarmMembers()) : "";
  return record;
}

}  // namespace muster
