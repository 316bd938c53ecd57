#include "daemon/agent/agent.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/agent/command_connections.h"
#include "daemon/agent/gang_state.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/auth/auth_session.h"

namespace muster {

Agent::Agent(AgentContext context) : context_(std::move(context)) {}

Agent::~Agent() {
  Close();
}

void Agent::Close() {
  socket_.reset();
  gangs_.clear();
}

Status Agent::Start() {
  for (GangState& state : LoadGangStates(context_.config.state_dir)) {
    spdlog::info("gang {}: known from before this start; waiting for {} supervisors", state.job.Id(),
                 state.tasks.size());
    const auto gang = Make(state.job, state.node, state.local_tasks, state.token);
    gang->ExpectReconnects(state);
  }
  auto socket = LocalSocket::Listen(
      context_.loop, context_.config.socket, context_.door, context_.chores,
      {[this](LocalConnection& connection, Packet& packet) { OnPacket(connection, packet); },
       [this](LocalConnection& connection) { OnClosed(connection); }});
  if (!socket) return socket.error();
  socket_ = *std::move(socket);
  return {};
}

std::vector<std::string> Agent::Wish(bool drain, const std::string& reason) {
  std::vector<std::string> gangs;
  for (const auto& [id, gang] : gangs_) {
    gang->Wish(drain, reason);
    gangs.push_back(id);
  }
  return gangs;
}

void Agent::View(std::optional<uint32_t> uid, std::function<void(const NodeView&)> done) {
  const auto tell = [this, uid, done = std::move(done)](std::optional<HealthReport> health) {
    NodeView view;
    view.health = std::move(health);
    if (context_.fabric != nullptr) view.ports = context_.fabric->ports();
    const auto shown = [&](uint32_t owner) { return !uid || *uid == owner; };
    for (const auto& [id, gang] : gangs_) {
      if (shown(gang->job().uid)) view.gangs.push_back({id, gang->job().uid});
    }
    for (const auto& [owner, links] : context_.good_links) {
      if (!shown(owner)) continue;
      const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(context_.loop.Now() - links.at);
      view.links.push_back({owner, links.test, links.full, age});
    }
    done(view);
  };
  if (context_.config.health_timeout_ms == 0) return tell(std::nullopt);
  context_.health.Check([tell](const HealthReport& report) { tell(report); });
}

void Agent::FabricSaid(const std::vector<std::string>& news, const std::string& sick) {
  const std::string taken = context_.config.health_timeout_ms > 0 ? sick : "";
  context_.health.FabricSaid(taken);
  // The node's ports are no longer as the test saw them that found the links good.
  if (!news.empty()) context_.good_links.clear();
  for (const auto& [id, gang] : gangs_) gang->FabricSaid(news, taken);
}

KnownCoordinator Agent::CoordinatorOf(const GangJob& gang) const {
  const LocalGang* found = Launch(gang);
  return found == nullptr ? KnownCoordinator() : found->Coordinator();
}

void Agent::CoordinatedHere(const GangJob& gang) {
  if (LocalGang* found = Launch(gang)) found->CoordinatedHere();
}

LocalGang* Agent::Launch(const GangJob& gang) const {
  const auto found = gangs_.find(gang.Id());
  return found != gangs_.end() && found->second->job().SameLaunch(gang) ? found->second.get() : nullptr;
}

const LocalGang* Agent::Find(const std::string& gang) const {
  const auto found = gangs_.find(gang);
  return found == gangs_.end() ? nullptr : found->second.get();
}

std::shared_ptr<LocalGang> Agent::Make(GangJob job, uint32_t node, uint32_t local_tasks, std::string token) {
  const std::string id = job.Id();
  auto gang =
      std::make_shared<LocalGang>(context_, std::move(job), node, local_tasks, std::move(token), [this, id] {
        spdlog::info("gang {}: over on this node", id);
        gangs_.erase(id);
      });
  gangs_[id] = gang;
  return gang;
}

void Agent::OnPacket(LocalConnection& connection, Packet& packet) {
  wire::Header header{};
  const wire::Check check = wire::CheckHeader(packet.bytes.data(), packet.bytes.size(), &header);
  if (check != wire::Check::kOk) {
    spdlog::warn("uid {} (pid {}): {}", connection.peer().uid, connection.peer().pid, wire::CheckText(check));
    Refuse(connection, check == wire::Check::kVersion ? wire::Refusal::kVersion : wire::Refusal::kMalformed,
           wire::CheckText(check));
    return;
  }
  const auto peer = peers_.find(&connection);
  if (peer != peers_.end()) {
    if (peer->second.role == Role::kCommand) return context_.commands->Handle(connection, header, packet);
    const auto gang = peer->second.gang.lock();
    if (!gang) return Refuse(connection, wire::Refusal::kNoGang, "the gang is over");
    if (peer->second.role == Role::kSupervisor) return gang->SupervisorPacket(connection, header, packet);
    return gang->ClientPacket(connection, header, packet);
  }
  switch (static_cast<wire::Type>(header.type)) {
    case wire::Type::kSupervisorHello:
      return OnSupervisorHello(connection, packet);
    case wire::Type::kClientHello:
      return OnClientHello(connection, packet);
    case wire::Type::kCommandHello:
      if (context_.commands != nullptr &&
          context_.commands->Hello(connection, {packet.bytes.data(), packet.bytes.size()})) {
        peers_[&connection] = Peer{Role::kCommand, {}};
      }
      return;
    default:
      Refuse(connection, wire::Refusal::kMalformed,
             fmt::format("a connection begins with a hello, not with a message of type {}", header.type));
  }
}

void Agent::OnClosed(LocalConnection& connection) {
  const auto peer = peers_.find(&connection);
  if (peer == peers_.end()) return;
  const auto gang = peer->second.gang.lock();
  const Role role = peer->second.role;
  peers_.erase(peer);
  if (role == Role::kCommand) return context_.commands->Closed(connection);
  if (!gang) return;
  if (role == Role::kSupervisor) {
    gang->SupervisorClosed(connection);
  } else {
    gang->ClientClosed(connection);
  }
}

void Agent::OnSupervisorHello(LocalConnection& connection, const Packet& packet) {
  const auto read = ReadSupervisorHello({packet.bytes.data(), packet.bytes.size()});
  if (!read) return Refuse(connection, wire::Refusal::kMalformed, "malformed hello");
  wire::SupervisorHello hello = read->body;
  GangJob job = StepOf(*read);
  const std::string id = job.Id();
  const auto known = gangs_.find(id);

  if (context_.config.enabled == "no" && known == gangs_.end()) {
    return Refuse(connection, wire::Refusal::kDisabled,
                  "Muster is switched off (enabled: no in muster.yaml)");
  }
  // A new supervisor speaks as root: slurmstepd opened the socket before it became the user. One that comes
  // back after musterd restarted is the user by now, and shows the token that it got as root.
  const uid_t peer = connection.peer().uid;
  if (peer != 0) {
    const std::string_view token(reinterpret_cast<const char*>(hello.token), sizeof hello.token);
    if (hello.reconnecting == static_cast<uint32_t>(wire::Known::kNew)) {
      spdlog::warn("uid {} (pid {}) posed as a supervisor", peer, connection.peer().pid);
      return Refuse(connection, wire::Refusal::kDenied, "only slurmstepd may start a supervisor");
    }
    if (known == gangs_.end()) {
      return Refuse(connection, wire::Refusal::kNoGang, fmt::format("gang {} is not known here", id));
    }
    if (peer != known->second->job().uid || !SameMac(token, known->second->token())) {
      spdlog::warn("uid {} (pid {}) posed as a supervisor of gang {}", peer, connection.peer().pid, id);
      return Refuse(connection, wire::Refusal::kDenied, fmt::format("not a supervisor of gang {}", id));
    }
  }
  // Slurm has given the number again, and the gang that had it is not over on this node. The supervisor gets no answer, and tries
  // again.
  if (known != gangs_.end() && !known->second->job().SameLaunch(job)) {
    if (std::exchange(waited_for_, id) != id) {
      spdlog::warn("gang {}: another gang, which has the same number, is not over on this node yet", id);
    }
    return connection.CloseWhenSent();
  }
  if (Status complete = CompleteStep(hello, &job); !complete) {
    return Refuse(connection, wire::Refusal::kInvalid, complete.error().message);
  }
  if (Status placed = PlaceInGang(job, context_.self, &hello); !placed) {
    return Refuse(connection, wire::Refusal::kInvalid, placed.error().message);
  }
  if (job.hosts[hello.node_id] != context_.self) {
    return Refuse(connection, wire::Refusal::kInvalid,
                  fmt::format("Slurm calls this node {}, musterd calls it {} (node_name in muster.yaml)",
                              job.hosts[hello.node_id], context_.self));
  }
  std::shared_ptr<LocalGang> gang;
  if (known != gangs_.end()) {
    gang = known->second;
    if (gang->job().uid != job.uid || gang->job().node_list != job.node_list ||
        gang->job().options_text != job.options_text || gang->job().components_text != job.components_text ||
        !gang->Fits(hello)) {
      return Refuse(connection, wire::Refusal::kInvalid,
                    fmt::format("this is not the gang {} that is here", id));
    }
  } else {
    gang = Make(std::move(job), hello.node_id, hello.local_task_count, RandomBytes(wire::kTokenBytes));
    spdlog::info("gang {}: uid {}, node {} of {}, {} tasks here", id, hello.uid, hello.node_id,
                 hello.node_count, hello.local_task_count);
  }
  peers_[&connection] = Peer{Role::kSupervisor, gang};
  gang->SupervisorHello(connection, hello);
}

void Agent::OnClientHello(LocalConnection& connection, const Packet& packet) {
  const auto hello = ReadClientHello({packet.bytes.data(), packet.bytes.size()});
  if (!hello) return Refuse(connection, wire::Refusal::kMalformed, "malformed hello");
  const std::string id(hello->gang);
  const auto found = gangs_.find(id);
  if (found == gangs_.end()) {
    // The name comes from an untrusted peer: shown only as far as it is a name.
    const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    return Refuse(connection, wire::Refusal::kNoGang,
                  fmt::format("no gang '{}' on this node", printable ? id : "?"));
  }
  if (found->second->ClientHello(connection, hello->body))
    peers_[&connection] = Peer{Role::kClient, found->second};
}

}  // namespace muster
