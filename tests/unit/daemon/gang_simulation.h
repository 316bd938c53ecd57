// The gang machine among simulated nodes: agents with the rules of daemon/agent, supervisors with those of
// the plugin, links that lose what is on its way, a record that is written behind. One seed is one schedule.
#pragma once

#include <deque>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "daemon/gang/gang.h"

namespace muster::gang {

class Simulation {
 public:
  Simulation(uint64_t seed, bool trace);

  // Runs the schedule; gives what went wrong, "" for nothing.
  std::string Run();
  [[nodiscard]] const std::string& trace() const { return trace_; }
  [[nodiscard]] uint64_t generations() const { return generations_; }

 private:
  // What a coordinator sends; a Join is what an agent sends first.
  using Down = std::variant<StartGeneration, StopGeneration, FinishGang>;

  // A supervisor, and what it knows of its program.
  struct Supervisor {
    bool alive = true;
    bool processes = false;  // of `generation`: the program or what it left behind
    MemberState state = MemberState::kWaiting;
    uint64_t generation = 0;
    bool executed = false;
    bool stop_asked = false;
    bool unkillable = false;
    std::optional<Exit> exit;
  };
  // musterd in its local duty.
  struct Agent {
    struct Member {
      MemberState state = MemberState::kWaiting;
      uint64_t generation = 0;
      uint32_t unkillable = 0;
      std::optional<Exit> exit;
    };
    std::vector<Supervisor> supervisors;
    std::vector<Member> members;
    uint64_t stop_generation = 0;
    std::optional<uint64_t> said_stopped;
    bool finished = false;
    bool gone = false;  // all supervisors have left
    bool linked = false;
    bool attached = false;  // the coordinator knows of the link
    std::deque<Event> up;
    std::deque<Down> down;
  };
  struct Record {
    uint64_t generation = 0;
    uint32_t user_faults = 0;
    bool running = false;
    std::optional<FinishGang> end;
  };

  // the coordinator
  void Boot();
  void Feed(const Event& event);
  void Carry(const std::vector<Action>& actions);
  void Order(const std::vector<uint32_t>& nodes, const Down& message);

  // the nodes
  void Link(uint32_t node);
  void CutLink(uint32_t node);
  void Say(uint32_t node, Event event);
  void Hear(uint32_t node);
  void Deliver(uint32_t node);
  void StartMember(uint32_t node, uint32_t local, uint64_t generation);
  void Swept(uint32_t node, uint32_t local);
  void MaybeStopped(uint32_t node);
  void Execute(uint32_t node, uint32_t local);
  void End(uint32_t node, uint32_t local, int status);
  void LoseSupervisor(uint32_t node, uint32_t local);
  void MaybeGone(uint32_t node);
  void RestartAgent(uint32_t node);
  void UpdateMember(uint32_t node, uint32_t local);

  bool Calm();   // one step without a fault; false when nothing is left to do
  void Chaos();  // one step of any kind
  void FireOneTimer();

  [[nodiscard]] uint32_t Below(uint32_t bound);
  [[nodiscard]] bool Chance(uint32_t percent) { return Below(100) < percent; }
  [[nodiscard]] uint32_t TaskOf(uint32_t node, uint32_t local) const { return node * per_node_ + local; }
  void Fail(const std::string& what);
  template <typename... Args>
  void Trace(const char* format, const Args&... args);

  std::mt19937_64 random_;
  bool tracing_;
  std::string trace_;
  std::string failure_;
  uint32_t per_node_;
  Settings settings_;
  std::vector<Agent> agents_;
  std::optional<Gang> gang_;
  std::optional<FinishGang> end_;  // of a coordinator that found the record finished
  bool ended_ = false;             // this coordinator has ordered the end
  std::vector<Record> records_;    // as ordered to be written
  size_t durable_ = 0;             // so many of them surely are
  bool timers_[3] = {};
  int64_t now_ns_ = 1;
  uint64_t generations_ = 0;
};

}  // namespace muster::gang
