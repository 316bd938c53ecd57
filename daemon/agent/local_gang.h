// A gang's members on this node: their supervisors, their programs' connections, and the link to the
// coordinator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/agent/context.h"
#include "daemon/agent/environment.h"
#include "daemon/agent/local_socket.h"
#include "daemon/agent/port_lease.h"
#include "daemon/base/gang_job.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/wire/wire.h"

namespace muster {

class Link;

// On the loop's thread only. Lives while it has supervisors, or may get them back.
class LocalGang : public std::enable_shared_from_this<LocalGang> {
 public:
  // `token` as given to supervisors: kTokenBytes raw bytes. `over` is called when nothing of the gang is left
  // here.
  LocalGang(AgentContext& context, GangJob job, uint32_t node, uint32_t local_tasks, std::string token,
            std::function<void()> over);
  ~LocalGang();

  void SupervisorHello(LocalConnection& connection, const wire::SupervisorHello& hello);
  void SupervisorPacket(LocalConnection& connection, const wire::Header& header, const Packet& packet);
  void SupervisorClosed(LocalConnection& connection);

  // True when the client was let in; else it has been refused.
  bool ClientHello(LocalConnection& connection, const wire::ClientHello& hello);
  void ClientPacket(LocalConnection& connection, const wire::Header& header, Packet packet);
  void ClientClosed(LocalConnection& connection);

  [[nodiscard]] const GangJob& job() const { return job_; }
  [[nodiscard]] const std::string& token() const { return token_; }
  // Whether a hello is of this gang's step, and of a task that may be here.
  [[nodiscard]] bool Fits(const wire::SupervisorHello& hello) const;
  [[nodiscard]] std::string CoordinatorHost() const { return job_.Candidates().front(); }
  [[nodiscard]] std::string StatePath() const;
  // For a gang that was here before musterd restarted: waits a while for these tasks' supervisors to come
  // back, then says who is lost.
  void ExpectReconnects(const std::vector<uint32_t>& tasks);

 private:
  struct Member {
    LocalConnection* connection = nullptr;
    uint32_t local_id = 0;
    wire::MemberState state = wire::MemberState::kWaiting;
    uint64_t generation = 0;
    bool known = false;
    bool stopping = false;    // has been told to stop this generation
    int64_t executed_ns = 0;  // when its program was exec'd, 0: not yet
    uint32_t unkillable = 0;
    std::optional<v1::MemberExited> exit;
  };
  struct Client {
    LocalConnection* connection = nullptr;
    uint32_t rank = 0;
    uint64_t generation = 0;
    uint32_t saving = 0;
    bool restoring = false;
  };

  // uplink
  void Connect();
  void Connected();
  void Disconnected(const std::string& why);
  void Register();
  void Up(v1::AgentMessage message);
  void FromCoordinator(const v1::CoordinatorMessage& message);
  void OnStart(const v1::Start& start);
  void OnStop(const v1::Stop& stop);
  void OnFinish(const v1::Finish& finish);
  void OnReport(const v1::Report& report);
  void OnCommitted(const v1::Committed& committed);
  void OnNotify(const v1::Notify& notify);
  void OnRefused(const v1::Refused& refused);

  // members
  Member* Find(LocalConnection& connection, uint32_t* task);
  bool StartMember(uint32_t task, Member& member);
  void StopMember(Member& member);
  void FinishMember(uint32_t task, Member& member);
  void MaybeNodeExecuted();
  void MaybeNodeStopped();
  void MaybeRegister();
  void JoinTimedOut();
  void Dismiss(const std::string& why);
  void MaybeOver();
  void TakePorts();
  void SaveState();
  [[nodiscard]] v1::AgentMessage Message() const;

  // clients (local_gang_clients.cc)
  void OnSave(Client& client, const wire::Save& save, UniqueFd memory);
  void ShardDone(uint32_t rank, uint64_t generation, uint64_t step, const Result<Shard>& shard);
  void OnRestore(Client& client, const wire::Restore& restore);
  void RestoreDone(uint32_t rank, uint64_t generation, uint64_t step, Result<UniqueFd> memory,
                   uint64_t bytes);
  void TellCommitted(uint32_t rank, uint64_t step, int status, const std::string& text);
  [[nodiscard]] Client* ClientOf(uint32_t rank, uint64_t generation);
  void DropClients(const char* why);

  AgentContext& context_;
  GangJob job_;
  uint32_t node_;
  uint32_t local_tasks_;
  std::string token_;
  std::function<void()> over_;

  std::map<uint32_t, Member> members_;  // by task
  std::map<LocalConnection*, Client> clients_;
  std::optional<PortLease> ports_;       // of the generation that runs
  std::optional<PortLease> next_ports_;  // offered for the next one
  std::optional<v1::Start> start_;
  std::optional<v1::Finish> finish_;
  std::string tf_cluster_;
  ClusterSpec spec_;
  std::optional<uint64_t> node_stopped_;  // generation for which NodeStopped has been said
  uint64_t node_executed_ = 0;            // generation for which MembersExecuted has been said
  uint64_t stop_generation_ = 0;          // generations up to this one must not run

  std::shared_ptr<Link> link_;
  uint64_t link_number_ = 0;  // callbacks of an older link are dropped
  bool registered_ = false;
  int backoff_ms_ = 50;
  Loop::TimerId connect_timer_ = 0;
  Loop::TimerId reconnect_timer_ = 0;
  Loop::TimerId join_timer_ = 0;   // until the coordinator has decided something
  std::string why_not_connected_;  // the last link's end
  bool over_called_ = false;

  // Saves of this generation: what must be said again when the coordinator comes back, and what was saved
  // already.
  std::map<std::pair<uint32_t, uint64_t>, v1::ShardWritten> unacknowledged_;  // by rank, step
  std::set<std::pair<uint32_t, uint64_t>> saved_;
  uint32_t notify_flags_ = 0;
  uint64_t progress_ = 0;  // the newest step that was passed on
};

}  // namespace muster
