// One node's side of the gang: carries out what the product's AgentCore decides, and knows its members by the product's NodeMember.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/agent/agent_core.h"
#include "daemon/agent/node_member.h"
#include "daemon/lease/types.h"
#include "tests/sim/host.h"
#include "tests/sim/messages.h"
#include "tests/sim/network.h"

namespace muster::sim {

class Daemon;

class LocalGang : private AgentCore::Shell {
 public:
  LocalGang(Daemon& daemon, const Host::Saved& saved);

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
  void CoordinatedHere() { core_.CoordinatedHere(); }

  [[nodiscard]] uint32_t coordinator() const { return core_.search().coordinator(); }
  [[nodiscard]] uint64_t term() const { return over_ ? 0 : core_.orders().term(); }
  [[nodiscard]] bool attended() const { return !over_ && core_.search().attended(); }

 private:
  struct Member : NodeMember {
    bool connected = false;
  };

  // ---- what the core orders
  [[nodiscard]] lease::Nanos Now() const override { return world_.now(); }
  [[nodiscard]] bool MayRegister() const override { return knows_members_ && !over_; }
  void Dial(uint32_t node, uint64_t number) override;
  void CloseLink(const std::string& why) override;
  void Register() override;
  void WakeForLink(std::optional<lease::Nanos> at) override;
  [[nodiscard]] bool MayStart() const override;
  void Follow(uint64_t term, uint32_t coordinator, const lease::WitnessSet& witnesses,
              lease::Source source) override;
  void Claimed(uint64_t term, bool taken) override;
  void TakeOver(uint64_t term, const lease::WitnessSet& closed, bool claim) override;
  void ReadRecord() override;
  void Save() override;
  void NewTerm(bool stopped) override;
  void StartLater() override;
  void StopMembers(bool last_words) override;
  uint64_t FenceMembers() override;

  void Up(AgentMessage message);
  void FromCoordinator(const CoordinatorMessage& message);
  void On(const Start& start) {
    core_.Start(start.generation, [this, start] { StartMembers(start); });
  }
  void On(const Stop& stop) { core_.Stop(stop.generation, stop.last_words); }
  void On(const Finish& finish);
  void On(const Committed& committed);
  void On(const Notify& /*notify*/) {}
  void On(const Attended& attended) { core_.Attended(attended.coordinator, attended.witnesses); }
  void On(const Elsewhere& elsewhere) { core_.Elsewhere(elsewhere.node); }
  void StartMembers(const Start& start);
  void StartMember(uint32_t task, Member& member);
  void StopMember(uint32_t task, Member& member, bool last_words);
  void MaybeNodeExecuted();
  void MaybeNodeStopped();
  void MaybeOver();
  void BeginAttendance();
  void SayEnd(uint32_t task, const Member& member);
  [[nodiscard]] uint32_t TaskOf(size_t local) const;
  [[nodiscard]] size_t LocalOf(uint32_t task) const;
  [[nodiscard]] Member& Of(size_t local) { return members_.at(TaskOf(local)); }

  Daemon& daemon_;
  Host& host_;
  World& world_;
  std::map<uint32_t, Member> members_;  // by task
  AgentCore core_;
  lease::Nanos grace_until_ = 0;
  std::optional<Start> start_;
  bool finish_ = false;
  bool over_ = false;                                                     // nothing of the gang is left here
  std::map<std::pair<uint32_t, uint64_t>, ShardWritten> unacknowledged_;  // by rank and step

  std::shared_ptr<Link> link_;
  bool knows_members_ = false;                    // the supervisors have said how their programs are
  std::vector<std::shared_ptr<Link>> old_links_;  // with stale_term: still listened to
};

}  // namespace muster::sim
