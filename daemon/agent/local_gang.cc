#include "daemon/agent/local_gang.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/helper_program.h"
#include "daemon/agent/end_message.h"
#include "daemon/agent/environment_memory.h"
#include "daemon/agent/fabric_environment.h"
#include "daemon/agent/gang_state.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/auth/auth_session.h"
#include "daemon/link/link.h"
#include "daemon/partner/gang_partner.h"

namespace muster {
namespace {

using wire::MemberState;

}  // namespace

LocalGang::LocalGang(AgentContext& context, GangJob job, uint32_t node, uint32_t local_tasks,
                     std::string token, std::function<void()> over)
    : context_(context),
      job_(std::move(job)),
      node_(node),
      local_tasks_(local_tasks),
      token_(std::move(token)),
      over_(std::move(over)),
      core_(*this, job_.CandidateNodes(), {}, node_),
      steps_(MakeStepHooks()) {
  if (context_.partners != nullptr)
    partner_ = std::make_unique<GangPartner>(*context_.partners, job_.Unique());
}

LocalGang::~LocalGang() {
  if (end_timer_ != 0) EndJob();
  attendance_.reset();
  StopWriting(UINT64_MAX);
  for (const Loop::TimerId timer :
       {link_timer_, start_timer_, learn_timer_, reconnect_timer_, left_timer_, join_timer_}) {
    context_.loop.Cancel(timer);
  }
  Let(held_.End());
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
  if (members_.empty()) LimitJoining();
  Member& member = members_[hello.task_id];
  if (member.connection != nullptr) {
    Refuse(connection, wire::Refusal::kInvalid,
           fmt::format("task {} of gang {} is here already", hello.task_id, job_.Id()));
    return;
  }
  member.connection = &connection;
  member.supervisor = connection.peer().pid;
  member.known = true;
  if (left_) left_->tasks.erase(hello.task_id);  // it lives
  member.local_id = hello.local_id;
  if (hello.reconnecting == static_cast<uint32_t>(wire::Known::kResumed)) MembersWereSuspended();
  BeginAttendance();
  BeatSupervisor(member);
  wire::Welcome welcome{};
  std::memcpy(welcome.token, token_.data(), sizeof welcome.token);
  welcome.lease_ms = static_cast<uint32_t>(context_.config.lease_ms);
  welcome.reconnect_ms = static_cast<uint32_t>(context_.config.reconnect_ms);
  welcome.unkillable_ms = static_cast<uint32_t>(context_.config.unkillable_after_ms);
  SendBody(connection, wire::Type::kWelcome, welcome);
  if (attendance_ && attendance_->page() >= 0)
    SendBody(connection, wire::Type::kBeatPage, wire::BeatPageHandover{}, {}, attendance_->page());
  if (hello.reconnecting != 0) {
    const auto state =
        static_cast<MemberState>(std::min(hello.state, static_cast<uint32_t>(MemberState::kStopped)));
    member.Returned(state, hello.generation, {.status = hello.wait_status, .pid = hello.child_pid});
    // What was ordered while it was away.
    if (finish_) {
      FinishMember(hello.task_id, member);
    } else if (!core_.orders().MayRun(member.generation) && member.HasProgram()) {
      // The order may have been lost with the connection.
      const bool last_words = std::exchange(member.stop, {}).last_words;
      StopMember(member, last_words);
    } else if (start_ && member.generation < start_->generation() &&
               core_.orders().MayRun(start_->generation())) {
      StartMember(hello.task_id, member);
    }
  } else if (finish_) {
    FinishMember(hello.task_id, member);
  }
  if (member.awaited) presumed_ |= member.awaited->presumed;
  member.awaited.reset();
  MaybeAllBack();
  MaybeRegister();
  MaybeNodeStopped();
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
    case wire::Type::kBeatPageRead:
      if (attendance_ && member->beat != 0) attendance_->SupervisorReadsPage(member->beat);
      return;
    case wire::Type::kExecuted: {
      const auto body = ReadPacket<wire::Executed>(bytes);
      if (!body) return malformed();
      if (member->Executed(body->generation, body->realtime_ns)) MaybeNodeExecuted();
      return;
    }
    case wire::Type::kExited: {
      auto read = ReadExited(bytes);
      if (!read) return malformed();
      const wire::Exited& body = read->body;
      MemberEnd end{.status = body.wait_status,
                    .pid = body.pid,
                    .oom_killed = body.oom_killed != 0,
                    .time_ns = body.realtime_ns,
                    .program = std::move(read->program),
                    .stderr_tail = std::string(read->stderr_tail),
                    .facts = FactsAbout(body.realtime_ns, body.pid)};
      if (!member->Exited(body.generation, std::move(end))) return;
      steps_.Ended(body.generation, member->rank);
      SayProgress();
      Up(EndMessage(job_.Id(), task, *member));
      MaybeNodeExecuted();
      if (sampler_ && body.wait_status == 0) sampler_->MemberExited(member->rank);
      if (body.wait_status != 0) CheckHealth();
      return;
    }
    case wire::Type::kStopped: {
      const auto body = ReadPacket<wire::Stopped>(bytes);
      if (!body) return malformed();
      if (member->Stopped(body->generation, body->unkillable, body->last_words_ms, core_.orders()))
        Up(EndMessage(job_.Id(), task, *member));
      MaybeNodeStopped();
      return;
    }
    case wire::Type::kExiting: {
      const auto body = ReadPacket<wire::Exiting>(bytes);
      if (!body) return malformed();
      if (member->Exiting(body->generation)) MaybeNodeStopped();
      return;
    }
    case wire::Type::kWarm: {
      auto read = ReadWarm(bytes);
      if (!read) return malformed();
      return WarmSaid(*member, *read);
    }
    case wire::Type::kLinksTested: {
      const auto read = ReadLinksTested(bytes);
      if (!read) return malformed();
      return LinksTested(*read);
    }
    case wire::Type::kSignalled: {
      const auto body = ReadPacket<wire::Signalled>(bytes);
      if (!body) return malformed();
      if (end_timer_ != 0 && body->signal == SIGTERM) EndJob();
      terminated_.emplace();
      terminated_->set_task(task);
      terminated_->set_signal(body->signal);
      terminated_->set_warn_seconds(body->warn_seconds);
      auto message = Message();
      *message.mutable_terminating() = *terminated_;
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
  if (attendance_ && member->beat != 0) attendance_->RemoveSupervisor(std::exchange(member->beat, 0));
  // It leaves only when it is told to.
  if (!finish_) {
    SupervisorDied(task, *member);
    Up(EndMessage(job_.Id(), task, *member));
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
  if (member.connection == nullptr || !place_) return false;
  const auto& tasks = start_->nodes(static_cast<int>(*place_)).tasks();
  const auto local = std::find(tasks.begin(), tasks.end(), task);
  if (local == tasks.end() || !member.Start(start_->generation())) return false;
  const auto index = static_cast<uint32_t>(local - tasks.begin());
  LocalFacts facts{HexEncode(token_), context_.config.socket, StatePath() + ".cluster", "", {}};
  if (context_.fabric_environment != nullptr) facts.defaults = context_.fabric_environment->Variables();
  if (job_.OptionsOf(node_).files) facts.files = HelperProgram("muster-files");
  const auto environment = MemberEnvironment(spec_, world_, tf_cluster_, *place_, index, facts);
  wire::Start body{};
  const UniqueFd memory = EnvironmentMemory(environment, &body.environment_bytes);
  body.generation = start_->generation();
  body.rank = spec_.nodes[*place_].ranks[index];
  member.rank = body.rank;
  return SendBody(*member.connection, wire::Type::kStart, body, {}, memory.get());
}

void LocalGang::StopMember(Member& member, bool last_words) {
  if (member.connection == nullptr) return;
  last_words &= job_.options.last_words_seconds > 0;
  if (!member.Stop(last_words)) return;
  wire::Stop body{};
  body.generation = member.generation;
  body.last_words_ms = last_words ? job_.options.last_words_seconds * 1000 : 0;
  body.signal = job_.options.last_words_signal;
  // Most programs end by the signal, dump or no dump.
  if (member.stop.dump_asked) body.signal_after_ms = body.last_words_ms / 2;
  SendBody(*member.connection, wire::Type::kStop, body);
}

void LocalGang::FinishMember(uint32_t task, Member& member) {
  if (member.connection == nullptr) return;
  wire::Finish body{};
  body.as = static_cast<uint32_t>(wire::FinishAs::kOwnStatus);
  if (finish_->has_code()) {
    body.as = static_cast<uint32_t>(wire::FinishAs::kCode);
    body.code = static_cast<uint32_t>(finish_->code());
  } else if ((finish_->has_cause() && finish_->cause() != task) ||
             (finish_->succeeded() && (member.state == MemberState::kStopped || member.stop.exiting ||
                                       !core_.orders().MayRun(member.generation)))) {
    // What was killed here, of a generation that this node was lost to, is not how a gang that has succeeded ended.
    body.as = static_cast<uint32_t>(wire::FinishAs::kZero);
  }
  SendBody(*member.connection, wire::Type::kFinish, body);
}

void LocalGang::MaybeNodeExecuted() {
  if (!start_ || !place_) return;
  const auto said = SayExecuted(members_, start_->generation(), &core_.orders());
  if (!said) return;
  auto message = Message();
  v1::MembersExecuted* executed = message.mutable_executed();
  executed->mutable_tasks()->Assign(said->tasks.begin(), said->tasks.end());
  executed->set_time_ns(said->time_ns);
  executed->set_generation(start_->generation());
  Up(std::move(message));
}

void LocalGang::MaybeNodeStopped() {
  const auto said = SayStopped(members_, local_tasks_, &core_.orders());
  if (!said) return;
  auto message = Message();
  if (said->exiting) {
    message.mutable_exiting()->set_generation(core_.orders().stopped());
    return Up(std::move(message));
  }
  if (attendance_) attendance_->SetStopped(core_.orders().stopped());
  TakePorts();
  message.mutable_stopped()->set_generation(core_.orders().stopped());
  message.mutable_stopped()->set_unkillable(said->unkillable);
  message.mutable_stopped()->set_last_words_ms(said->last_words_ms);
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

bool LocalGang::HasSupervisors() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& item) { return item.second.connection != nullptr; });
}

void LocalGang::MaybeOver() {
  if (HasSupervisors() || checking_ || reconnect_timer_ != 0 || left_ || over_called_) return;
  // Tasks that have ended before any coordinator has heard of them: one is to be told, for the step's launch may have
  // failed of another node's death.
  if (!finish_ && join_timer_ != 0 && !told_ && KnowsMembers()) return;
  over_called_ = true;
  RemoveGangState(context_.config.state_dir, job_.Id());
  // Gives the link time to carry what was said last; the caller drops the gang from the loop, not from under
  // us.
  context_.loop.Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Over();
  });
}

void LocalGang::Over() {
  if (!HasSupervisors()) return over_();
  // One has come in the meantime, and has been welcomed.
  over_called_ = false;
  MaybeRegister();
}

}  // namespace muster
