// Members, their nodes and the coordinators of a gang that agrees on steps, joined by links with simulated time: the real
// wire/step_page.h and daemon/steps, and a model of what is around them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/steps/gang_side.h"
#include "daemon/steps/node_side.h"

namespace muster::steps {

class StepsNet {
 public:
  static constexpr uint64_t kGeneration = 3;

  struct Settings {
    uint32_t nodes = 2;
    uint32_t each = 2;  // members of a node
    uint64_t seed = 1;
    int64_t longest_delay_ms = 5;  // of a message, and between what a member does
    int64_t step_ms = 20;          // of a member, at most
    int64_t astray = 0;            // of a hundred connections, to a coordinator that has been replaced
    bool together = true;          // a member enters a step when all have entered the one before
  };

  explicit StepsNet(Settings settings);

  // ---- members. Each enters the steps of its list, one after the other, once it has opened.
  void SetSteps(uint32_t rank, std::vector<uint64_t> steps) { members_[rank].steps = std::move(steps); }
  void Open(uint32_t rank);
  void OpenAll();
  // Its program opens another handle.
  void Reopen(uint32_t rank);
  // It ends, unless it waits at a step.
  void End(uint32_t rank);

  // ---- what goes wrong
  // Another coordinator, of the next term. The one before is dead, or (`lives`) goes on and does not know.
  void TakeOver(bool lives);
  void KillCoordinator() { current_.reset(); }
  // A node's musterd dies; another is there after `ms`, and its members find it after some time more.
  void RestartMusterd(uint32_t node, int64_t ms);
  void BreakLink(uint32_t node);
  void RefuseToKeep(uint32_t node, bool refuse) { nodes_[node].refuses = refuse; }

  void Want(bool save, bool exit, const std::string& reason) {
    if (current_) current_->side->Want(save, exit, reason);
  }

  // Runs for so long, or until nothing happens any more.
  void Run(int64_t ms);
  bool RunUntil(const std::function<bool()>& condition, int64_t ms);

  // ---- what is to be looked at
  // What each member was answered at each step: flags, 0 for nothing.
  [[nodiscard]] const std::map<uint64_t, std::map<uint32_t, uint32_t>>& answers() const { return answers_; }
  // "": all members that were asked of a step were given the same answer.
  [[nodiscard]] std::string Differs() const;
  // Ranks that wait at a step.
  [[nodiscard]] std::vector<uint32_t> Waiting() const;
  [[nodiscard]] int64_t LongestWait() const;
  [[nodiscard]] bool AllDone() const;
  // Steps at which all of those who entered them were asked for something.
  [[nodiscard]] std::map<uint64_t, uint32_t> Wished() const;
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  [[nodiscard]] const std::string& reason(uint64_t step) { return reasons_[step]; }
  [[nodiscard]] int64_t now() const { return now_; }
  [[nodiscard]] uint32_t ranks() const { return static_cast<uint32_t>(members_.size()); }
  std::mt19937_64& random() { return random_; }
  int64_t Random(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  // Called before a message to a coordinator, or to a node, is taken; false: it is lost, and the link breaks.
  std::function<bool(uint32_t node, const v1::StepAnswer&)> before_answer;
  std::function<bool(uint32_t node, const v1::StepOrder&)> before_order;

 private:
  struct Member {
    std::shared_ptr<wire::StepPage> page;
    std::vector<uint64_t> steps;
    size_t next = 0;  // of them
    bool open = false;
    bool connected = false;  // to this musterd
    bool waits = false;
    uint64_t above = 0;  // as EnterStep gave it
    int64_t since = 0;   // of the wait
    int64_t longest = 0;
    bool scheduled = false;
  };
  struct Coordinator {
    uint64_t term = 0;
    std::unique_ptr<GangSide> side;
  };
  struct Node {
    std::unique_ptr<NodeSide> side;
    NodeSide::Kept kept;
    uint64_t term = 0;  // that it obeys
    uint64_t link = 0;  // its number; what was sent on another is lost
    std::weak_ptr<Coordinator> peer;
    int64_t down_at = 0;  // messages of one link stay in order
    int64_t up_at = 0;
    bool refuses = false;
  };

  void At(int64_t ms, std::function<void()> what);
  void Connect(uint32_t node);
  void MakeNode(uint32_t node);
  void MakeCoordinator(bool inherited);
  void Attend(uint32_t rank);
  void Schedule(uint32_t rank, int64_t ms);
  void Go(uint32_t rank);
  void Look(uint32_t rank);
  [[nodiscard]] bool MayEnter(const Member& member) const;
  template <typename Message>
  static Message Through(const Message& message) {
    Message read;
    if (!read.ParseFromString(message.SerializeAsString())) std::abort();
    return read;
  }

  struct Event {
    int64_t at;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };

  Settings settings_;
  std::mt19937_64 random_;
  int64_t now_ = 0;
  uint64_t number_ = 0;
  std::priority_queue<Event> events_;
  uint64_t term_ = 0;
  std::shared_ptr<Coordinator> current_;
  std::vector<std::shared_ptr<Coordinator>> former_;  // that live
  std::vector<Node> nodes_;
  std::vector<Member> members_;
  std::map<uint64_t, std::map<uint32_t, uint32_t>> answers_;
  std::map<uint64_t, std::string> reasons_;
  std::string contradiction_;
  std::vector<std::string> notes_;
};

}  // namespace muster::steps
