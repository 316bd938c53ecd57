#include "daemon/agent/local_gang.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "daemon/agent/gang_state.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/auth/session.h"
#include "daemon/rpc/link.h"

namespace muster {
namespace {

using wire::MemberState;

constexpr int kMaxBackoffMs = 1000;
// The coordinator's own join timeout comes first: it can name all that is missing.
constexpr int kJoinMarginSeconds = 5;

// The environment as Start carries it: NUL-terminated strings in a sealed memfd.
UniqueFd EnvironmentMemory(const std::vector<std::string>& environment, uint32_t* bytes) {
  std::string block;
  for (const std::string& entry : environment) block.append(entry.c_str(), entry.size() + 1);
  UniqueFd fd(::memfd_create("muster-environment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return {};
  size_t done = 0;
  while (done < block.size()) {
    const ssize_t n = ::write(fd.get(), block.data() + done, block.size() - done);
    if (n <= 0) return {};
    done += static_cast<size_t>(n);
  }
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  *bytes = static_cast<uint32_t>(block.size());
  return fd;
}

}  // namespace

LocalGang::LocalGang(AgentContext& context, GangJob job, uint32_t node, uint32_t local_tasks,
                     std::string token, std::function<void()> over)
    : context_(context),
      job_(std::move(job)),
      node_(node),
      local_tasks_(local_tasks),
      token_(std::move(token)),
      over_(std::move(over)) {}

LocalGang::~LocalGang() {
  context_.loop.Cancel(connect_timer_);
  context_.loop.Cancel(reconnect_timer_);
  context_.loop.Cancel(join_timer_);
  // What the members' ends were is still to be said.
  if (link_) link_->CloseWhenSent("the gang is over on this node");
}

std::string LocalGang::StatePath() const {
  return GangStatePath(context_.config.state_dir, job_.Id());
}

v1::AgentMessage LocalGang::Message() const {
  v1::AgentMessage message;
  message.set_gang(job_.Id());
  return message;
}

// ---- supervisors
// -------------------------------------------------------------------------------------------------

bool LocalGang::Fits(const wire::SupervisorHello& hello) const {
  return hello.node_id == node_ && hello.task_count == job_.task_count &&
         hello.local_task_count == local_tasks_ &&
         (members_.contains(hello.task_id) || members_.size() < local_tasks_);
}

void LocalGang::SupervisorHello(LocalConnection& connection, const wire::SupervisorHello& hello) {
  if (members_.empty()) {
    join_timer_ =
        context_.loop.After(std::chrono::seconds(job_.options.join_seconds + kJoinMarginSeconds), [this] {
          join_timer_ = 0;
          JoinTimedOut();
        });
  }
  Member& member = members_[hello.task_id];
  if (member.connection != nullptr) {
    Refuse(connection, wire::Refusal::kInvalid,
           fmt::format("task {} of gang {} is here already", hello.task_id, job_.Id()));
    return;
  }
  member.connection = &connection;
  member.known = true;
  member.local_id = hello.local_id;
  wire::Welcome welcome{};
  std::memcpy(welcome.token, token_.data(), sizeof welcome.token);
  welcome.lease_ms = static_cast<uint32_t>(context_.config.lease_ms);
  welcome.reconnect_ms = static_cast<uint32_t>(context_.config.reconnect_ms);
  SendBody(connection, wire::Type::kWelcome, welcome);
  if (hello.reconnecting != 0) {
    member.state =
        static_cast<MemberState>(std::min(hello.state, static_cast<uint32_t>(MemberState::kStopped)));
    member.generation = hello.generation;
    if ((member.state == MemberState::kExited || member.state == MemberState::kStopped) && !member.exit) {
      v1::MemberExited exit;
      exit.set_task(hello.task_id);
      exit.set_generation(hello.generation);
      exit.set_status(hello.wait_status);
      exit.set_pid(hello.child_pid);
      member.exit = exit;
    }
    // What was ordered while it was away.
    if (finish_) {
      FinishMember(hello.task_id, member);
    } else if (member.generation <= stop_generation_ && member.state != MemberState::kWaiting &&
               member.state != MemberState::kStopped) {
      StopMember(member);
    } else if (start_ && member.generation < start_->generation() &&
               start_->generation() > stop_generation_) {
      StartMember(hello.task_id, member);
    }
  } else if (finish_) {
    FinishMember(hello.task_id, member);
  }
  MaybeRegister();
  MaybeNodeStopped();
}

void LocalGang::ExpectReconnects(const std::vector<uint32_t>& tasks) {
  for (const uint32_t task : tasks) members_[task];
  reconnect_timer_ = context_.loop.After(std::chrono::milliseconds(context_.config.reconnect_ms), [this] {
    reconnect_timer_ = 0;
    for (auto& [task, member] : members_) {
      if (member.connection != nullptr || member.known) continue;
      spdlog::warn("gang {}: the supervisor of task {} did not come back after musterd's restart", job_.Id(),
                   task);
      member.known = true;
      member.state = MemberState::kStopped;
      v1::MemberExited exit;
      exit.set_task(task);
      exit.set_supervisor_lost(true);
      member.exit = exit;
    }
    MaybeRegister();
    MaybeOver();
  });
}

void LocalGang::SupervisorPacket(LocalConnection& connection, const wire::Header& header,
                                 const Packet& packet) {
  uint32_t task = 0;
  Member* member = Find(connection, &task);
  if (member == nullptr) return;
  const auto malformed = [&] {
    spdlog::warn("gang {}: task {} sent a malformed message of type {}", job_.Id(), task, header.type);
    Refuse(connection, wire::Refusal::kMalformed, fmt::format("malformed message of type {}", header.type));
  };
  const std::string_view bytes(packet.bytes.data(), packet.bytes.size());
  switch (static_cast<wire::Type>(header.type)) {
    case wire::Type::kExecuted: {
      const auto body = ReadPacket<wire::Executed>(bytes);
      if (!body) return malformed();
      if (body->generation != member->generation) return;
      member->executed_ns = body->realtime_ns;
      MaybeNodeExecuted();
      return;
    }
    case wire::Type::kExited: {
      auto read = ReadExited(bytes);
      if (!read) return malformed();
      const wire::Exited& body = read->body;
      if (body.generation != member->generation) return;
      if (member->state == MemberState::kRunning) member->state = MemberState::kExited;
      v1::MemberExited exit;
      exit.set_task(task);
      exit.set_generation(body.generation);
      exit.set_status(body.wait_status);
      exit.set_pid(body.pid);
      exit.set_oom_killed(body.oom_killed != 0);
      exit.set_time_ns(body.realtime_ns);
      exit.set_program(std::move(read->program));
      exit.set_stderr_tail(std::string(read->stderr_tail));
      member->exit = exit;
      auto message = Message();
      *message.mutable_exited() = exit;
      Up(std::move(message));
      MaybeNodeExecuted();
      return;
    }
    case wire::Type::kStopped: {
      const auto body = ReadPacket<wire::Stopped>(bytes);
      if (!body) return malformed();
      if (body->generation != member->generation) return;
      member->state = MemberState::kStopped;
      member->unkillable = body->unkillable;
      if (body->generation > stop_generation_ && !member->exit) {
        // The musterd before this one had ordered it: for the coordinator it is news.
        member->exit.emplace();
        member->exit->set_task(task);
        member->exit->set_generation(body->generation);
        member->exit->set_status(SIGKILL);
        auto message = Message();
        *message.mutable_exited() = *member->exit;
        Up(std::move(message));
      }
      MaybeNodeStopped();
      return;
    }
    case wire::Type::kSignalled: {
      const auto body = ReadPacket<wire::Signalled>(bytes);
      if (!body) return malformed();
      auto message = Message();
      message.mutable_terminating()->set_task(task);
      message.mutable_terminating()->set_signal(body->signal);
      Up(std::move(message));
      return;
    }
    default:
      malformed();
  }
}

void LocalGang::SupervisorClosed(LocalConnection& connection) {
  uint32_t task = 0;
  Member* member = Find(connection, &task);
  if (member == nullptr) return;
  member->connection = nullptr;
  if (!finish_) {
    // A supervisor leaves only when told to. This one was killed, and PDEATHSIG has taken its program along.
    member->state = MemberState::kStopped;
    if (!member->exit) {
      v1::MemberExited exit;
      exit.set_task(task);
      exit.set_generation(member->generation);
      exit.set_status(SIGKILL);
      member->exit = exit;
    }
    member->exit->set_supervisor_lost(true);
    auto message = Message();
    *message.mutable_exited() = *member->exit;
    Up(std::move(message));
    MaybeNodeStopped();
  }
  MaybeOver();
}

LocalGang::Member* LocalGang::Find(LocalConnection& connection, uint32_t* task) {
  for (auto& [id, member] : members_) {
    if (member.connection == &connection) {
      *task = id;
      return &member;
    }
  }
  return nullptr;
}

bool LocalGang::StartMember(uint32_t task, Member& member) {
  if (member.connection == nullptr || member.generation >= start_->generation()) return false;
  const auto& ranks = spec_.nodes[node_].ranks;
  const auto local = std::find(ranks.begin(), ranks.end(), task);
  if (local == ranks.end()) return false;
  LocalFacts facts{HexEncode(token_), context_.config.socket, StatePath() + ".cluster"};
  const auto environment =
      MemberEnvironment(spec_, tf_cluster_, node_, static_cast<uint32_t>(local - ranks.begin()), facts);
  wire::Start body{};
  const UniqueFd memory = EnvironmentMemory(environment, &body.environment_bytes);
  body.generation = start_->generation();
  body.rank = task;
  member.state = MemberState::kRunning;
  member.generation = body.generation;
  member.stopping = false;
  member.unkillable = 0;
  member.executed_ns = 0;
  member.exit.reset();
  return SendBody(*member.connection, wire::Type::kStart, body, {}, memory.get());
}

void LocalGang::StopMember(Member& member) {
  if (member.connection == nullptr || member.stopping) return;
  if (member.state == MemberState::kWaiting || member.state == MemberState::kStopped) return;
  member.stopping = true;
  wire::Stop body{};
  body.generation = member.generation;
  SendBody(*member.connection, wire::Type::kStop, body);
}

void LocalGang::FinishMember(uint32_t task, Member& member) {
  if (member.connection == nullptr) return;
  wire::Finish body{};
  body.as = static_cast<uint32_t>(wire::FinishAs::kOwnStatus);
  if (finish_->has_code()) {
    body.as = static_cast<uint32_t>(wire::FinishAs::kCode);
    body.code = static_cast<uint32_t>(finish_->code());
  } else if (finish_->has_cause() && finish_->cause() != task) {
    body.as = static_cast<uint32_t>(wire::FinishAs::kZero);
  }
  SendBody(*member.connection, wire::Type::kFinish, body);
}

// One message for the node: a gang has many more members than nodes. What is lost with a link is in the next
// Register, where a member that runs counts as exec'd.
void LocalGang::MaybeNodeExecuted() {
  if (!start_ || node_executed_ == start_->generation()) return;
  auto message = Message();
  v1::MembersExecuted* executed = message.mutable_executed();
  for (const auto& [task, member] : members_) {
    if (member.generation != start_->generation()) return;
    if (member.executed_ns == 0) {
      if (member.state == MemberState::kRunning) return;
      continue;
    }
    executed->add_tasks(task);
    executed->set_time_ns(std::max(executed->time_ns(), member.executed_ns));
  }
  executed->set_generation(start_->generation());
  node_executed_ = start_->generation();
  Up(std::move(message));
}

void LocalGang::MaybeNodeStopped() {
  if (stop_generation_ == 0 || node_stopped_ == stop_generation_) return;
  uint32_t unkillable = 0;
  for (const auto& [task, member] : members_) {
    if (member.generation > stop_generation_) return;
    if (member.state != MemberState::kStopped && member.state != MemberState::kWaiting) return;
    unkillable += member.unkillable;
  }
  if (members_.size() < local_tasks_) return;
  node_stopped_ = stop_generation_;
  TakePorts();
  auto message = Message();
  message.mutable_stopped()->set_generation(stop_generation_);
  message.mutable_stopped()->set_unkillable(unkillable);
  message.mutable_stopped()->set_lease_port(next_ports_ ? next_ports_->port() : 0);
  Up(std::move(message));
}

void LocalGang::TakePorts() {
  if (next_ports_) return;
  auto lease = PortLease::Take(static_cast<uint16_t>(context_.config.master_ports_first),
                               static_cast<uint16_t>(context_.config.master_ports_last),
                               static_cast<uint16_t>(1 + local_tasks_));
  if (lease) {
    next_ports_ = *std::move(lease);
  } else {
    spdlog::error("gang {}: {}", job_.Id(), lease.error().message);
  }
}

void LocalGang::MaybeOver() {
  const bool any = std::any_of(members_.begin(), members_.end(),
                               [](const auto& item) { return item.second.connection != nullptr; });
  if (any || reconnect_timer_ != 0 || over_called_) return;
  over_called_ = true;
  RemoveGangState(context_.config.state_dir, job_.Id());
  // Gives the link time to carry what was said last; the caller drops the gang from the loop, not from under
  // us.
  context_.loop.Post([over = over_] { over(); });
}

// ---- uplink
// ------------------------------------------------------------------------------------------------------

void LocalGang::MaybeRegister() {
  if (members_.size() < local_tasks_) return;
  for (const auto& [task, member] : members_) {
    if (!member.known) return;
  }
  if (reconnect_timer_ != 0) {
    context_.loop.Cancel(reconnect_timer_);
    reconnect_timer_ = 0;
  }
  SaveState();
  if (link_ || connect_timer_ != 0) return;
  TakePorts();
  Connect();
}

void LocalGang::SaveState() {
  GangState state{job_, node_, local_tasks_, token_, {}};
  for (const auto& [task, member] : members_) state.tasks.push_back(task);
  if (Status saved = SaveGangState(context_.config.state_dir, state); !saved) {
    spdlog::warn("gang {}: {}; a restart of musterd would lose it", job_.Id(), saved.error().message);
  }
}

void LocalGang::Connect() {
  const uint64_t number = ++link_number_;
  const std::string host = CoordinatorHost();
  const std::weak_ptr<LocalGang> weak = weak_from_this();
  // A link may end after the loop has.
  const std::shared_ptr<Mailbox> mailbox = context_.loop.mailbox();
  LinkEvents events;
  events.message = [weak, number, mailbox](std::string payload) {
    mailbox->Post([weak, number, payload = std::move(payload)] {
      const auto self = weak.lock();
      v1::CoordinatorMessage message;
      if (self && self->link_number_ == number && message.ParseFromString(payload))
        self->FromCoordinator(message);
    });
  };
  events.closed = [weak, number, mailbox](const std::string& why) {
    mailbox->Post([weak, number, why] {
      const auto self = weak.lock();
      if (self && self->link_number_ == number) self->Disconnected(why);
    });
  };
  link_ = OpenLink(host, fmt::format("{}:{}", host, context_.config.port), std::move(events),
                   [this](std::function<void()> work) { context_.dialer.Do(std::move(work)); });
  Register();
}

// Only here can it be noticed that this node's tasks are not complete, or that there is no coordinator at
// all.
void LocalGang::JoinTimedOut() {
  const uint32_t seconds = job_.options.join_seconds + kJoinMarginSeconds;
  if (members_.size() < local_tasks_) {
    Dismiss(fmt::format("gang {}: after {} s only {} of the {} tasks of {} are here", job_.Id(), seconds,
                        members_.size(), local_tasks_, context_.self));
  } else {
    Dismiss(fmt::format("gang {}: after {} s the coordinator, musterd on {}, has not started it{}{}",
                        job_.Id(), seconds, CoordinatorHost(), why_not_connected_.empty() ? "" : ": ",
                        why_not_connected_));
  }
}

void LocalGang::Disconnected(const std::string& why) {
  link_.reset();
  why_not_connected_ = why;
  registered_ = false;
  if (over_called_) return;
  spdlog::log(backoff_ms_ == 50 ? spdlog::level::info : spdlog::level::debug,
              "gang {}: no link to the coordinator: {}", job_.Id(), why);
  connect_timer_ = context_.loop.After(std::chrono::milliseconds(backoff_ms_), [this] {
    connect_timer_ = 0;
    Connect();
  });
  backoff_ms_ = std::min(backoff_ms_ * 2, kMaxBackoffMs);
}

void LocalGang::Register() {
  auto message = Message();
  v1::Register* r = message.mutable_register_();
  r->set_job_id(job_.job_id);
  r->set_step_id(job_.step_id);
  r->set_restart_count(job_.restart_count);
  r->set_uid(job_.uid);
  r->set_gid(job_.gid);
  r->set_node(node_);
  r->set_node_count(static_cast<uint32_t>(job_.hosts.size()));
  r->set_task_count(job_.task_count);
  r->set_node_name(context_.self);
  r->set_node_list(job_.node_list);
  r->set_options(job_.options_text);
  r->set_lease_port(next_ports_ ? next_ports_->port() : ports_ ? ports_->port() : 0);
  for (const auto& [task, member] : members_) {
    v1::Member* m = r->add_members();
    m->set_task(task);
    m->set_local_id(member.local_id);
    m->set_state(static_cast<uint32_t>(member.state));
    m->set_generation(member.generation);
    m->set_unkillable(member.unkillable);
    if (member.exit) *m->mutable_exited() = *member.exit;
  }
  registered_ = true;
  Up(std::move(message));
  for (const auto& [key, written] : unacknowledged_) {
    auto again = Message();
    *again.mutable_shard_written() = written;
    Up(std::move(again));
  }
}

// What is said while there is no link is in the next Register: members' states, shards not acknowledged.
void LocalGang::Up(v1::AgentMessage message) {
  if (link_ && registered_) link_->Send(message.SerializeAsString());
}

void LocalGang::FromCoordinator(const v1::CoordinatorMessage& message) {
  backoff_ms_ = 50;
  switch (message.kind_case()) {
    case v1::CoordinatorMessage::kStart:
      return OnStart(message.start());
    case v1::CoordinatorMessage::kStop:
      return OnStop(message.stop());
    case v1::CoordinatorMessage::kFinish:
      return OnFinish(message.finish());
    case v1::CoordinatorMessage::kReport:
      return OnReport(message.report());
    case v1::CoordinatorMessage::kCommitted:
      return OnCommitted(message.committed());
    case v1::CoordinatorMessage::kNotify:
      return OnNotify(message.notify());
    case v1::CoordinatorMessage::kRefused:
      return OnRefused(message.refused());
    default:
      return;
  }
}

void LocalGang::OnStart(const v1::Start& start) {
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  if (finish_ || start.generation() <= stop_generation_) return;
  const bool again = start_ && start_->generation() == start.generation();
  if (!again) {
    DropClients("a new generation has started");
    saved_.clear();
    unacknowledged_.clear();
    notify_flags_ = 0;
    progress_ = 0;
  }
  start_ = start;
  spec_ = {};
  spec_.gang = job_.Id();
  spec_.generation = start.generation();
  spec_.role = job_.options.role;
  spec_.restart_cause = start.cause();
  spec_.restarts_allowed = job_.options.restarts;
  for (const v1::NodeSpec& node : start.nodes()) {
    spec_.nodes.push_back(
        {node.name(), {node.ranks().begin(), node.ranks().end()}, static_cast<uint16_t>(node.lease_port())});
  }
  if (node_ >= spec_.nodes.size()) return;
  tf_cluster_ = TfCluster(spec_);
  if (tf_cluster_.size() > kMaxTfConfig - 1024) {
    spdlog::warn("gang {}: TF_CONFIG is too long for the environment; MUSTER_CLUSTER_SPEC names a file",
                 job_.Id());
    std::ofstream(StatePath() + ".cluster") << tf_cluster_;
  }
  if (!again && next_ports_) ports_ = std::exchange(next_ports_, std::nullopt);
  for (auto& [task, member] : members_) StartMember(task, member);
}

void LocalGang::OnStop(const v1::Stop& stop) {
  if (stop.generation() < stop_generation_) return;
  stop_generation_ = stop.generation();
  node_stopped_.reset();  // every order is answered: another coordinator may be asking
  for (auto& [task, member] : members_) {
    if (member.generation <= stop_generation_) StopMember(member);
  }
  MaybeNodeStopped();
}

void LocalGang::OnFinish(const v1::Finish& finish) {
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  finish_ = finish;
  for (auto& [task, member] : members_) FinishMember(task, member);
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
  Dismiss(refused.text());
}

// Ends the gang on this node, with code 1 and a reason.
void LocalGang::Dismiss(const std::string& why) {
  spdlog::error("gang {}: {}", job_.Id(), why);
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  finish_ = v1::Finish();
  finish_->set_has_code(true);
  finish_->set_code(1);
  for (auto& [task, member] : members_) {
    if (member.connection != nullptr) Refuse(*member.connection, wire::Refusal::kInvalid, "muster: " + why);
  }
}

}  // namespace muster
