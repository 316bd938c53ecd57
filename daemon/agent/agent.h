// musterd's local duty: lets supervisors and programs in, and hands them to their gang.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/agent/agent_context.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/local_socket.h"
#include "daemon/agent/node_view.h"

namespace muster {

// On the loop's thread only.
class Agent {
 public:
  explicit Agent(AgentContext context);
  ~Agent();

  // Takes up the gangs that a musterd before this one knew, then listens.
  Status Start();
  // The end of it, once the loop has ended: supervisors count the time until musterd is back from here on.
  void Close();

  // The gang with this id, or null.
  [[nodiscard]] const LocalGang* Find(const std::string& gang) const;
  // Who coordinates a gang, as far as is known here.
  [[nodiscard]] KnownCoordinator CoordinatorOf(const GangJob& gang) const;
  // This node coordinates a gang, because another node has asked: see LocalGang.
  void CoordinatedHere(const GangJob& gang);
  // Tells the coordinators of all gangs here that this node is to be left, or may be used again. Gives their ids.
  std::vector<std::string> Wish(bool drain, const std::string& reason);
  // Of this node, what `uid` may see: its own gangs and tests, or with nothing everybody's. `done` is called on the loop when the
  // node's health is known; a check that hangs takes its `timeout`.
  void View(std::optional<uint32_t> uid, std::function<void(const NodeView&)> done);
  // What the ports of the fabric did, and why no gang may run here ("": nothing says so), to the coordinators of all gangs here.
  void FabricSaid(const std::vector<std::string>& news, const std::string& sick);
  [[nodiscard]] const std::map<std::string, std::shared_ptr<LocalGang>>& gangs() const { return gangs_; }

 private:
  // This launch of the gang, or null: its number may be another launch's here.
  [[nodiscard]] LocalGang* Launch(const GangJob& gang) const;
  void OnPacket(LocalConnection& connection, Packet& packet);
  void OnClosed(LocalConnection& connection);
  void OnSupervisorHello(LocalConnection& connection, const Packet& packet);
  void OnClientHello(LocalConnection& connection, const Packet& packet);
  std::shared_ptr<LocalGang> Make(GangJob job, uint32_t node, uint32_t local_tasks, std::string token);

  enum class Role { kSupervisor, kClient, kCommand };
  struct Peer {
    Role role;
    std::weak_ptr<LocalGang> gang;  // none of a command's
  };

  AgentContext context_;
  std::string waited_for_;  // the gang for which a later job of its number waits: the log says so once
  std::unique_ptr<LocalSocket> socket_;
  std::map<std::string, std::shared_ptr<LocalGang>> gangs_;
  std::unordered_map<LocalConnection*, Peer> peers_;
};

}  // namespace muster
