// Decides for one gang: feeds the state machine, carries out its actions, keeps the record and commits
// checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/base/gang_job.h"
#include "daemon/base/loop.h"
#include "daemon/base/worker.h"
#include "daemon/config/config.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang/gang.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

class Link;

// On the loop's thread only; what blocks goes to a worker thread of its own, in order: a generation's record
// before its checkpoints.
class Coordinator : public std::enable_shared_from_this<Coordinator> {
 public:
  Coordinator(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store, GangJob job);
  ~Coordinator();

  // Takes the gang's record over. `over` is called when nobody needs this coordinator any more.
  void Begin(std::function<void()> over);
  // A node's agent, and what it says.
  void Attached(uint32_t node, std::shared_ptr<Link> link, const v1::Register& registration);
  void Detached(uint32_t node, const Link* link);
  void Message(uint32_t node, const v1::AgentMessage& message);

  [[nodiscard]] GangRecord Record() const;
  [[nodiscard]] const GangJob& job() const { return job_; }

 private:
  struct Agent {
    std::shared_ptr<Link> link;
    std::string name;
    uint16_t lease_port = 0;
  };
  // What an agent said before the record was ours.
  struct Early {
    uint32_t node = 0;
    std::shared_ptr<Link> link;
    v1::AgentMessage message;
  };
  // Shards of one step that have been written in the current generation.
  struct Pending {
    std::map<uint32_t, Shard> shards;
    bool committing = false;
  };

  void TryTakeOver();
  void TakenOver(Result<GangHead> head);
  void Refuse(const std::string& text);
  void Feed(const gang::Event& event);
  void Carry(std::vector<gang::Action> actions);
  void Do(const gang::StartGeneration& action);
  void Do(const gang::StopGeneration& action);
  void Do(const gang::FinishGang& action);
  void Do(const gang::Persist& action);
  void Do(const gang::ReportToJob& action);
  void Do(const gang::Note& action);
  void Do(const gang::TellMembers& action);
  void Do(const gang::SetTimer& action);
  void Do(const gang::RejectCheckpoint& action);

  void SendStart(const std::vector<uint32_t>& nodes);
  void BuildStart();
  void Send(uint32_t node, const v1::CoordinatorMessage& message);
  void Broadcast(const v1::CoordinatorMessage& message);
  [[nodiscard]] v1::CoordinatorMessage NewMessage() const;
  void AddHistory(const std::string& kind, const std::string& text);
  void AddHistory(const std::string& kind, const std::string& text, uint64_t generation);
  void Registered(uint32_t node, const v1::Register& registration);
  void OverAlready(const GangRecord& record);
  void ShardWritten(const v1::ShardWritten& written);
  void Commit(uint64_t step);
  void CommitDone(uint64_t generation, uint64_t step, uint64_t bytes, const Status& status);
  void Deposed(const std::string& why);
  void MaybeOver();

  Loop& loop_;
  const Config& config_;
  std::string self_;
  GangJob job_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<Catalog> catalog_;
  std::function<void()> over_;

  std::optional<gang::Gang> gang_;  // from when the record is ours
  std::vector<Early> early_;
  std::optional<v1::Finish> end_;  // the record says that the gang is over: how
  std::map<uint32_t, Agent> agents_;
  std::map<gang::Timer, Loop::TimerId> timers_;
  Loop::TimerId takeover_timer_ = 0;
  Loop::TimerId linger_timer_ = 0;
  int64_t takeover_deadline_ns_ = 0;

  Fence fence_;  // of the newest record that was ordered to be written
  std::optional<uint64_t> latest_;
  std::optional<uint64_t> restore_;  // what the current generation started from
  std::optional<v1::Start> start_;   // of the current generation
  uint32_t rejecting_ = 0;           // checkpoints being marked bad: no start before that is done
  std::vector<uint32_t> start_after_reject_;
  std::map<uint64_t, Pending> pending_;
  std::set<uint64_t> committed_;  // steps of the current generation
  std::string cause_;
  std::vector<HistoryEvent> history_;
  int64_t created_ns_ = 0;
  bool deposed_ = false;
  bool over_called_ = false;

  std::unique_ptr<Worker> worker_;
};

}  // namespace muster
