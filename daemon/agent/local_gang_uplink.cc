// The part of LocalGang that talks to the coordinator: finds it, registers there, and carries out what it orders.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include "daemon/agent/end_message.h"
#include "daemon/agent/gang_state.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/send.h"
#include "daemon/link/link.h"
#include "daemon/proto/node_table.h"
#include "daemon/slurm/local_job.h"

namespace muster {
namespace {

constexpr auto kStartRetry = std::chrono::milliseconds(50);
constexpr auto kEndJob = std::chrono::seconds(10);               // for what SIGKILL does not remove at once
constexpr auto kSlurmEndsIt = std::chrono::milliseconds(3'000);  // for slurmctld's word to arrive at slurmd
constexpr auto kNextTellsSlurm = std::chrono::seconds(10);       // where no coordinator is heard
constexpr auto kSlurmdCounts = std::chrono::milliseconds(100);

CoordinatorSearch::Nanos Nanoseconds(Loop::Time time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// Bytes that shards of dead programs may keep.
uint64_t RecoveryMemory(const Config& config) {
  const auto pages = static_cast<uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
  const auto page_bytes = static_cast<uint64_t>(std::max(::sysconf(_SC_PAGESIZE), 0L));
  return pages * page_bytes / 100 * static_cast<uint64_t>(config.recovery_memory);
}

}  // namespace

// Whether the states of all members here are known: after a restart of musterd only with their supervisors' words.
bool LocalGang::KnowsMembers() const {
  return members_.size() >= local_tasks_ &&
         std::all_of(members_.begin(), members_.end(), [](const auto& item) { return item.second.known; });
}

void LocalGang::MaybeRegister() {
  if (!KnowsMembers()) return;
  SaveState();
  if (!core_.search().Idle()) return;
  TakePorts();
  if (std::exchange(checked_, true)) return core_.Connect();
  // A sick node is not to become part of the gang at all.
  checking_ = true;
  context_.health.Check([weak = weak_from_this()](const HealthReport& report) {
    const auto self = weak.lock();
    if (!self) return;
    self->sick_ = report.Reason();
    self->ConfirmJob();
  });
}

bool LocalGang::SaveState(bool again) {
  if (over_called_) return true;  // its file has been removed
  GangState state{job_,
                  node_,
                  local_tasks_,
                  token_,
                  {},
                  {},
                  core_.search().coordinator(),
                  core_.orders().term(),
                  beat_key_,
                  core_.orders().started(),
                  core_.orders().from(),
                  told_again_.failed_saves,
                  told_again_.bad_checkpoint,
                  steps_.kept()};
  for (const auto& [task, member] : members_) {
    state.tasks.push_back(task);
    if (member.supervisor > 0) state.supervisors[task] = member.supervisor;
  }
  if (Status saved = SaveGangState(context_.config.state_dir, state); !saved) {
    spdlog::log(again ? spdlog::level::debug : spdlog::level::warn,
                "gang {}: {}; a restart of musterd would lose it", job_.Id(), saved.error().message);
    return false;
  }
  return true;
}

AgentCore::Nanos LocalGang::Now() const {
  return Nanoseconds(context_.loop.Now());
}

void LocalGang::Dial(uint32_t node, uint64_t number) {
  const std::string& host = job_.hosts[node];
  const std::weak_ptr<LocalGang> weak = weak_from_this();
  // A link may end after the loop has.
  const std::shared_ptr<Mailbox> mailbox = context_.loop.mailbox();
  LinkEvents events;
  events.message = [weak, number, mailbox](std::string payload) {
    mailbox->Post([weak, number, payload = std::move(payload)] {
      const auto self = weak.lock();
      v1::CoordinatorMessage message;
      if (self && self->core_.IsNewest(number) && message.ParseFromString(payload))
        self->FromCoordinator(message);
    });
  };
  events.closed = [weak, number, mailbox](const std::string& why) {
    mailbox->Post([weak, number, why] {
      const auto self = weak.lock();
      if (!self || !self->core_.IsNewest(number)) return;
      self->NotLinked(why);
      self->core_.Lost();
    });
  };
  link_ = context_.dial(host, fmt::format("{}:{}", host, context_.config.port), std::move(events),
                        [this](std::function<void()> work) { context_.dialer.Do(std::move(work)); });
}

// Only here can it be noticed that this node's tasks are not complete, or that there is no coordinator at
// all. One that is heard counts the time itself: it may have taken over later, or tests the links between other nodes.
void LocalGang::LimitJoining() {
  const std::chrono::nanoseconds join = std::chrono::seconds(job_.options.join_seconds) + kJoinMargin;
  const auto time = std::chrono::ceil<std::chrono::seconds>(
      std::chrono::nanoseconds(core_.search().Patience(join.count())));
  join_timer_ = context_.loop.After(time, [this, seconds = time.count()] {
    join_timer_ = 0;
    if (members_.size() < local_tasks_) {
      Dismiss(fmt::format("gang {}: after {} s only {} of the {} tasks of {} are here", job_.Id(), seconds,
                          members_.size(), local_tasks_, context_.self));
    } else if (core_.search().attended() ||
               (core_.WaitedLately() && (HasSupervisors() || reconnect_timer_ != 0))) {
      LimitJoining();
    } else {
      Dismiss(fmt::format("gang {}: after {} s no coordinator has started it{}{}", job_.Id(), seconds,
                          why_not_connected_.empty() ? "" : ": ", why_not_connected_));
    }
  });
}

void LocalGang::NotLinked(const std::string& why) {
  link_.reset();
  why_not_connected_ = why;
  if (over_called_) return;
  const auto level = core_.search().FirstWait() ? spdlog::level::info : spdlog::level::debug;
  spdlog::log(level, "gang {}: no link to the coordinator: {}", job_.Id(), why);
}

void LocalGang::CloseLink(const std::string& why) {
  const std::string text =
      why.empty() ? "another node coordinates" : fmt::format("musterd on {} {}", CoordinatorHost(), why);
  if (link_) link_->Close(text);
  if (!why.empty()) return NotLinked(text);
  link_.reset();
}

// Dials, or hangs up, when it is time.
void LocalGang::WakeForLink(std::optional<AgentCore::Nanos> at) {
  context_.loop.Cancel(std::exchange(link_timer_, 0));
  if (!at) return;
  const std::chrono::nanoseconds wait(*at - Now());
  link_timer_ = context_.loop.After(std::chrono::ceil<std::chrono::milliseconds>(wait), [this] {
    link_timer_ = 0;
    core_.LinkDue();
  });
}

void LocalGang::Register() {
  auto message = Message();
  v1::Register* r = message.mutable_register_();
  r->set_job_id(job_.job_id);
  r->set_step_id(job_.step_id);
  r->set_restart_count(job_.restart_count);
  r->set_submission(job_.submission);
  r->set_launched_ns(job_.launched_ns);
  r->set_uid(job_.uid);
  r->set_gid(job_.gid);
  r->set_node(node_);
  r->set_node_count(static_cast<uint32_t>(job_.hosts.size()));
  r->set_task_count(job_.task_count);
  r->set_node_name(context_.self);
  r->set_node_list(job_.node_list);
  r->set_options(job_.options_text);
  r->set_components(job_.components_text);
  r->set_term(core_.orders().term());
  r->set_coordinator(core_.search().coordinator());
  r->set_waited(core_.search().has_waited());
  r->set_sick(sick_);
  if (const auto links = context_.good_links.find(job_.uid); links != context_.good_links.end()) {
    r->set_links_test(links->second.test);
    r->set_links_full(links->second.full);
    const auto age = context_.loop.Now() - links->second.at;
    r->set_links_age_ms(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(age).count()));
  }
  r->set_started_generation(core_.orders().started());
  r->set_started_restore(core_.orders().from().has_value());
  r->set_started_restore_step(core_.orders().from().value_or(0));
  r->set_failed_generation(told_again_.failed_saves.generation());
  for (const auto& [step, why] : told_again_.failed_saves.saves()) {
    v1::FailedSave* save = r->add_failed_saves();
    save->set_step(step);
    save->set_error(why);
  }
  if (told_again_.bad_checkpoint) *r->mutable_checkpoint_bad() = *told_again_.bad_checkpoint;
  r->set_lease_port(next_ports_ ? next_ports_->port() : ports_ ? ports_->port() : 0);
  for (const auto& [task, member] : members_) {
    v1::Member* m = r->add_members();
    m->set_task(task);
    m->set_local_id(member.local_id);
    m->set_state(static_cast<uint32_t>(member.state));
    m->set_generation(member.generation);
    m->set_unkillable(member.unkillable);
    if (member.end) *m->mutable_exited() = EndOf(task, member);
  }
  Up(std::move(message));
  if (!drained_.empty()) Wish(true, drained_);
  if (terminated_) {
    auto terminating = Message();
    *terminating.mutable_terminating() = *terminated_;
    Up(std::move(terminating));
  }
  for (const auto& [key, written] : reports_.all()) {
    auto again = Message();
    *again.mutable_shard_written() = written;
    Up(std::move(again));
  }
  if (exchanges_) exchanges_->Again();
}

// What is said while there is no link is in the next Register: members' states, shards not acknowledged.
void LocalGang::Up(v1::AgentMessage message) {
  if (link_) link_->Send(message.SerializeAsString());
}

void LocalGang::FromCoordinator(const v1::CoordinatorMessage& message) {
  const bool takes = !message.has_elsewhere() && !message.has_waiting();
  if (takes && !std::exchange(told_, true)) MaybeOver();
  if (!core_.Heard(message.term())) return;
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kStart: {
      v1::Start start = message.start();
      Status good = UnpackNodes(&start);
      if (good) good = CheckStart(start);
      if (!good) {
        link_->Close(good.error().message);
        NotLinked(good.error().message);
        return core_.Lost();
      }
      context_.loop.Cancel(std::exchange(join_timer_, 0));
      const uint64_t generation = start.generation();
      return core_.Start(generation, [this, start = std::move(start)] { OnStart(start); });
    }
    case v1::CoordinatorMessage::kTestLinks:
      return OnTestLinks(message.test_links());
    case v1::CoordinatorMessage::kStop:
      return core_.Stop(message.stop().generation(), message.stop().last_words());
    case v1::CoordinatorMessage::kFinish:
      return OnFinish(message.finish());
    case v1::CoordinatorMessage::kReport:
      return OnReport(message.report());
    case v1::CoordinatorMessage::kCommitted:
      return OnCommitted(message.committed());
    case v1::CoordinatorMessage::kStepOrder:
      return steps_.Take(message.step_order());
    case v1::CoordinatorMessage::kRefused:
      return OnRefused(message.refused());
    case v1::CoordinatorMessage::kWaiting:
      core_.Waits();
      if (message.waiting().has_report()) OnReport(message.waiting().report());
      return;
    case v1::CoordinatorMessage::kAttended:
      return OnAttended(message.attended());
    case v1::CoordinatorMessage::kCaptureStacks:
      return OnCaptureStacks(message.capture_stacks());
    case v1::CoordinatorMessage::kStorage:
      storage_ = message.storage();
      return;
    case v1::CoordinatorMessage::kGathered:
      if (exchanges_) exchanges_->Take(message.gathered());
      return;
    case v1::CoordinatorMessage::kElsewhere: {
      const v1::Elsewhere& elsewhere = message.elsewhere();
      const bool known = elsewhere.known() && elsewhere.node() < job_.hosts.size();
      return core_.Elsewhere(known ? std::optional(elsewhere.node()) : std::nullopt);
    }
    default:
      return;
  }
}

void LocalGang::NewTerm(bool stopped) {
  test_.reset();
  if (!stopped) return;
  DropClients("the generation is over");
  start_.reset();
  place_.reset();
}

// Who has a place keeps it as long as the generation runs: its programs are told by it what they are.
Status LocalGang::CheckStart(const v1::Start& start) const {
  const auto place_in = [this](const v1::Start& in) {
    const auto found = std::find_if(in.nodes().begin(), in.nodes().end(),
                                    [this](const v1::NodeSpec& node) { return node.node() == node_; });
    return found == in.nodes().end() ? nullptr : &*found;
  };
  const v1::NodeSpec* mine = place_in(start);
  if (mine != nullptr && mine->tasks_size() != mine->ranks_size()) {
    return Error{Errc::kInvalid, fmt::format("a start of generation {} has {} tasks with {} ranks here",
                                             start.generation(), mine->tasks_size(), mine->ranks_size())};
  }
  if (!start_ || start_->generation() != start.generation() || !place_) return {};
  const v1::NodeSpec& had = start_->nodes(static_cast<int>(*place_));
  if (mine != nullptr &&
      std::equal(mine->tasks().begin(), mine->tasks().end(), had.tasks().begin(), had.tasks().end()) &&
      std::equal(mine->ranks().begin(), mine->ranks().end(), had.ranks().begin(), had.ranks().end())) {
    return {};
  }
  return Error{Errc::kInvalid,
               fmt::format("a start of generation {} has another place for this node than the one before",
                           start.generation())};
}

void LocalGang::OnStart(const v1::Start& start) {
  test_.reset();
  const bool again = start_ && start_->generation() == start.generation();
  if (!again) {
    DropClients("a new generation has started");
    StopWriting(start.generation());
    saved_.clear();
    bases_.clear();
    Let(held_.Begin(start.restore() ? start.restore_generation() : 0, start.restore_step(),
                    RecoveryMemory(context_.config)));
    reports_.Clear();
    newest_committed_.reset();
    progress_ = 0;
  }
  start_ = start;
  place_.reset();
  if (!again) exchanges_.reset();
  spec_ = {};
  spec_.gang = job_.Id();
  spec_.generation = start.generation();
  spec_.role = job_.options.role;
  spec_.restart_cause = start.cause();
  spec_.restarts_allowed = job_.options.restarts;
  for (const v1::NodeSpec& node : start.nodes()) {
    if (node.node() == node_) place_ = spec_.nodes.size();
    ClusterSpec::Node& spec = spec_.nodes.emplace_back();
    spec.name = node.name();
    spec.ranks.assign(node.ranks().begin(), node.ranks().end());
    spec.lease_port = static_cast<uint16_t>(node.lease_port());
    spec.role = node.role();
    // A kind that only a newer coordinator knows is none that this node must treat apart.
    if (node.kind() <= static_cast<uint32_t>(wire::RoleKind::kSidecar))
      spec.kind = static_cast<wire::RoleKind>(node.kind());
  }
  BeginPartner();
  if (!place_) return;  // a spare: it waits
  world_ = WorldOf(spec_, static_cast<uint32_t>(*place_));
  // A later gang of this user's between the same nodes need not test them again.
  if (start.has_good_links() && !again)
    context_.good_links[job_.uid] = {
        fmt::format("{} {}.{}", job_.Id(), start.term(), start.good_links().test()),
        start.good_links().full(), context_.loop.Now()};
  if (!exchanges_) BeginExchanges();
  core_.Started(start.generation(),
                start.restore() ? std::optional<uint64_t>(start.restore_step()) : std::nullopt);
  const v1::NodeSpec& mine = start.nodes(static_cast<int>(*place_));
  steps_.Begin(start.generation(), {mine.ranks().begin(), mine.ranks().end()});
  for (int i = 0; i < mine.tasks_size(); ++i) {
    const auto found = members_.find(mine.tasks(i));
    if (found == members_.end()) continue;
    found->second.rank = mine.ranks(i);
    // While this node's musterd was away.
    if (found->second.state == wire::MemberState::kExited)
      steps_.Ended(found->second.generation, mine.ranks(i));
  }
  tf_cluster_ = TfCluster(spec_);
  if (tf_cluster_.size() > kMaxTfConfig - 1024) {
    spdlog::warn("gang {}: TF_CONFIG is too long for the environment; MUSTER_CLUSTER_SPEC names a file",
                 job_.Id());
    std::ofstream(StatePath() + ".cluster") << tf_cluster_;
  }
  if (!again && next_ports_) ports_ = std::exchange(next_ports_, std::nullopt);
  for (auto& [task, member] : members_) StartMember(task, member);
  if (!again) WatchMembers();
}

void LocalGang::StartLater() {
  if (start_timer_ != 0) return;
  start_timer_ = context_.loop.After(kStartRetry, [this] {
    start_timer_ = 0;
    core_.StartDue();
  });
}

void LocalGang::StopMembers(bool last_words) {
  // An old order that comes again, in a new term, is not about what runs now.
  if (!start_ || !core_.orders().MayRun(start_->generation())) {
    SayProgress();
    if (sampler_) sampler_->Stop();
  }
  for (auto& [task, member] : members_) {
    if (!core_.orders().MayRun(member.generation)) StopMember(member, last_words);
  }
  MaybeNodeStopped();
}

void LocalGang::OnFinish(const v1::Finish& finish) {
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  finish_ = finish;
  core_.Finish();
  for (auto& [task, member] : members_) FinishMember(task, member);
  MaybeOver();
}

void LocalGang::OnReport(const v1::Report& report) {
  auto found = members_.find(report.task());
  if (found == members_.end() || found->second.connection == nullptr) return;
  const std::string_view text = Fit(report.text());
  wire::Report body{};
  body.text_bytes = static_cast<uint32_t>(text.size());
  SendBody(*found->second.connection, wire::Type::kReport, body, text);
}

void LocalGang::OnRefused(const v1::Refused& refused) {
  // With no task left there is nothing to end: what the job has here by now may be its next run.
  requeued_ = refused.job_is_over();
  if (!requeued_ || !HasSupervisors()) return Dismiss(refused.text());
  why_ended_ = refused.text();
  if (!refused.slurm_ends_it()) return EndJob();
  // slurmd's SIGTERM to the tasks says that it has heard (SupervisorPacket).
  if (end_timer_ == 0) EndJobAfter(kSlurmEndsIt, kNextTellsSlurm);
}

// While the coordinator is heard: one that has died may not have told Slurm yet, and the next one does so first.
void LocalGang::EndJobAfter(std::chrono::milliseconds time, std::chrono::milliseconds more) {
  end_timer_ = context_.loop.After(time, [this, more] {
    if (MayStart() || more <= kStartRetry) return EndJob();
    EndJobAfter(kStartRetry, more - kStartRetry);
  });
}

// Its script must not go on when its srun returns, and its slurmstepds have nobody to report to.
void LocalGang::EndJob() {
  context_.loop.Cancel(end_timer_);
  // slurmd counts the steps that have answered its signal.
  const auto first = std::exchange(end_timer_, 0) != 0 ? kSlurmdCounts : std::chrono::milliseconds(0);
  context_.chores->Do([weak = weak_from_this(), job = job_.JobOf(node_), text = why_ended_, first,
                       mailbox = context_.loop.mailbox()] {
    std::this_thread::sleep_for(first);
    const Status ended = EndJobHere(job, kEndJob);
    mailbox->Post([weak, ended, text] {
      if (!ended) spdlog::error("{}", ended.error().message);
      if (const auto self = weak.lock()) self->Dismiss(text);
    });
  });
}

// Ends the gang on this node, with code 1 and a reason.
void LocalGang::Dismiss(const std::string& why) {
  // What a requeued job has left behind is dismissed in the course of things.
  spdlog::log(requeued_ ? spdlog::level::warn : spdlog::level::err, "gang {}: {}", job_.Id(), why);
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  core_.Finish();
  finish_ = v1::Finish();
  finish_->set_has_code(true);
  finish_->set_code(1);
  for (auto& [task, member] : members_) {
    if (member.connection != nullptr) Refuse(*member.connection, wire::Refusal::kInvalid, why);
  }
  MaybeOver();
}

}  // namespace muster
