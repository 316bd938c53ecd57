// One node's side of the gang, with the rules of daemon/agent/local_gang*.cc: what it believes of its members, whom it
// takes for the coordinator, which orders it obeys.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/agent/coordinator_search.h"
#include "daemon/agent/node_member.h"
#include "daemon/agent/orders.h"
#include "daemon/lease/types.h"
#include "tests/sim/host.h"
#include "tests/sim/messages.h"
#include "tests/sim/network.h"

namespace muster::sim {

class Daemon;

class LocalGang {
 public:
  LocalGang(Daemon& daemon, const Host::Saved& saved);
  ~LocalGang();

  // ---- supervisors
  void SupervisorsConnect();
  void SupervisorExecuted(size_t local, const Supervisor& says);
  void SupervisorExited(size_t local, const Supervisor& says);
  void SupervisorExiting(size_t local, const Supervisor& says);
  void SupervisorStopped(size_t local, const Supervisor& says);
  void SupervisorClosed(size_t local);
  void SupervisorSignalled(size_t local);
  void Saved(size_t local, uint64_t generation, uint64_t step);
  // A member could not read what its generation started from; `task` is filled in. False: a musterd that was started again does not
  // know that generation yet, and lets the member wait.
  bool FoundBad(size_t local, gang::CheckpointBad bad);

  // `closed`: the nodes whose musterd had gone, as far as this node's lease has heard.
  void OnLease(const lease::Event& event, const lease::WitnessSet& closed);

  // This node coordinates, because another node has asked.
  void CoordinatedHere();

  [[nodiscard]] uint32_t coordinator() const { return search_.coordinator(); }
  [[nodiscard]] uint64_t term() const { return orders_.term(); }
  [[nodiscard]] bool attended() const { return search_.attended(); }

 private:
  struct Member : NodeMember {
    bool connected = false;
  };

  void Connect();
  void Disconnected();
  void AwaitLink();
  void HangUp();
  void Redial();
  void Register();
  void Up(AgentMessage message);
  void FromCoordinator(const CoordinatorMessage& message);
  void On(const Start& start);
  void On(const Stop& stop);
  void On(const Finish& finish);
  void On(const Committed& committed);
  void On(const Notify& notify);
  void On(const Attended& attended);
  void On(const Elsewhere& elsewhere);
  void StartMember(uint32_t task, Member& member);
  void StopMember(uint32_t task, Member& member, bool last_words);
  void MaybeNodeExecuted();
  void MaybeNodeStopped();
  void MaybeOver();
  void BeginAttendance();
  void Fence();
  void KillFenced();
  void TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim);
  void LearnFromStore();
  void AdoptTerm(uint64_t term);
  void Remember();
  void SayEnd(uint32_t task, const Member& member);
  [[nodiscard]] uint32_t TaskOf(size_t local) const;
  [[nodiscard]] size_t LocalOf(uint32_t task) const;
  [[nodiscard]] Member& Of(size_t local) { return members_.at(TaskOf(local)); }

  Daemon& daemon_;
  Host& host_;
  World& world_;
  std::map<uint32_t, Member> members_;  // by task
  CoordinatorSearch search_;
  Orders orders_;
  lease::Nanos grace_until_ = 0;
  std::optional<Start> start_;
  std::optional<Start> waiting_start_;
  bool finish_ = false;
  std::map<std::pair<uint32_t, uint64_t>, ShardWritten> unacknowledged_;  // by rank and step

  std::shared_ptr<Link> link_;
  bool knows_members_ = false;  // the supervisors have said how their programs are
  bool taking_over_ = false;
  std::vector<std::shared_ptr<Link>> old_links_;  // Bug::kStaleTerm: still listened to
};

}  // namespace muster::sim
