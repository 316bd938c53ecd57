// The gangs that this daemon coordinates, and the links of their agents.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "daemon/agent/agent_context.h"
#include "daemon/coordinator/coordinator.h"
#include "daemon/link/link.h"

namespace muster {

// On the loop's thread, but for Accept.
class Coordinators {
 public:
  explicit Coordinators(CoordinatorContext context);
  ~Coordinators();

  // For Server: a daemon has opened a link. Any thread.
  LinkEvents Accept(std::shared_ptr<Link> link);

  // What this node's own agent knows of a gang's coordinator.
  using AskAgent = std::function<KnownCoordinator(const GangJob& gang)>;
  // Tells this node's own agent that a gang's coordinator on this node has the record.
  using TellAgent = std::function<void(const GangJob& gang)>;
  void SetAgent(AskAgent ask, TellAgent tell) {
    ask_agent_ = std::move(ask);
    tell_agent_ = std::move(tell);
  }

  // For AgentContext: this node's agent has found that the gang's coordinator is dead, and that it is this node's turn.
  void TakeOver(const GangJob& job, TakeOverRequest request);
  // For AgentContext: who coordinates, by the gang's record.
  void ReadCoordinator(const GangJob& job, std::function<void(std::optional<RecordedCoordinator>)> done);

  // Reads the gang's record, which this daemon need not coordinate; nothing when the store does not answer, or there is
  // none. `done` is called on the loop's thread.
  void ReadRecord(const GangJob& job, std::function<void(std::optional<GangRecord>)> done);

  // The gang with this id, or null.
  [[nodiscard]] std::shared_ptr<Coordinator> Find(const std::string& gang) const;
  [[nodiscard]] const std::map<std::string, std::shared_ptr<Coordinator>>& gangs() const { return gangs_; }

 private:
  struct Attendance {
    std::string gang;
    uint32_t node = 0;
  };
  void OnMessage(const std::shared_ptr<Link>& link, const std::string& payload);
  void OnClosed(const std::shared_ptr<Link>& link);
  std::shared_ptr<Coordinator> For(GangJob job, const v1::Register& registration,
                                   v1::CoordinatorMessage* answer);
  std::shared_ptr<Coordinator> Make(GangJob job, Coordinator::Origin origin);

  CoordinatorContext context_;
  Loop& loop_;
  AskAgent ask_agent_;
  TellAgent tell_agent_;
  std::map<std::string, std::shared_ptr<Coordinator>> gangs_;
  std::map<const Link*, Attendance> attendances_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster
