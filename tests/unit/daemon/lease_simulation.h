// Lease machines of one gang on simulated nodes: clocks that disagree, a network that loses, delays, doubles, reorders
// and cuts, processes that pause, hosts that die, a store that is slow or out of reach.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "daemon/lease/agent_lease.h"
#include "daemon/lease/coordinator_lease.h"

namespace muster::lease {

struct Network {
  double loss = 0;
  double twice = 0;
  double late = 0;  // part of the datagrams that take up to `late_ms`
  int64_t late_ms = 0;
};

class LeaseSimulation {
 public:
  LeaseSimulation(uint64_t seed, size_t nodes, bool trace);
  ~LeaseSimulation();

  // ---- faults
  void SetNetwork(const Network& network) { network_ = network; }
  void Cut(size_t from, size_t to) { cut_[from][to] = true; }
  void CutBoth(size_t a, size_t b);
  void CutStore(size_t node) { nodes_[node].store_cut = true; }
  void Pause(size_t node, Nanos length);
  void Kill(size_t node);
  // Whether enough witnesses stay when this node dies: without a majority a gang ends (two nodes: the store decides).
  [[nodiscard]] bool MayDie(size_t node) const;
  void StallLoop(size_t node, Nanos length);  // its main loop: fences late
  void Heal();                                // all but what is dead
  // The coordinator begins a new term, if it reaches the store.
  void Raise();

  void RunFor(Nanos length);
  void At(Nanos delay, std::function<void()> what);

  // "" or the first invariant that was broken.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] const std::string& trace() const { return trace_; }
  // "" when every live node attends the newest coordinator.
  [[nodiscard]] std::string WhoDoesNotAttend() const;
  [[nodiscard]] uint64_t fences() const { return fences_; }
  [[nodiscard]] uint64_t silences() const { return silences_; }
  [[nodiscard]] uint64_t store_term() const { return store_term_; }
  [[nodiscard]] size_t leader() const { return leader_; }
  [[nodiscard]] Nanos now() const { return now_; }
  [[nodiscard]] size_t nodes() const { return nodes_.size(); }
  [[nodiscard]] bool Running(size_t node);
  [[nodiscard]] bool dead(size_t node) const { return nodes_[node].dead; }
  std::mt19937_64& random() { return random_; }
  int64_t Pick(int64_t low, int64_t high);
  bool Chance(double part);

 private:
  struct Node {
    Nanos offset = 0;
    std::unique_ptr<AgentLease> agent;
    std::unique_ptr<CoordinatorLease> lead;
    bool dead = false;
    bool store_cut = false;
    bool trying = false;  // to take the record over
    Nanos paused_until = 0;
    Nanos loop_stalled_until = 0;
    std::vector<std::pair<Datagram, size_t>> inbox;  // while paused
    bool running = false;
    uint64_t started_in = 0;  // term
    Nanos beaten = 0;         // its supervisors
    Nanos run_until = 0;
    Nanos next_wake = kNever;
  };
  struct Try {
    uint64_t term;
    bool promised;
    bool claim;
    Nanos asked;
  };
  struct Later {
    Nanos at;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Later& other) const { return at != other.at ? at > other.at : order > other.order; }
  };

  [[nodiscard]] Nanos Local(const Node& node) const { return now_ + node.offset; }
  [[nodiscard]] bool Awake(const Node& node) const { return !node.dead && now_ >= node.paused_until; }
  void Wake(size_t index);
  void Schedule(size_t index);
  void Deliver(size_t to, const Datagram& datagram, size_t from);
  void Handle(size_t to, const Datagram& datagram, size_t from);
  void Post(size_t from, size_t to, const Datagram& datagram);
  void Carry(size_t index, Output* out, size_t came_from);
  void CarryAgentEvent(size_t index, const Event& event);
  void CarryLeadEvent(size_t index, const Event& event);
  void TakeOver(size_t index, uint64_t term, bool promised, bool claim);
  void HearFromStore(size_t index, const Try& tried, bool ok);
  void LearnFromStore(size_t index);
  void Confirm(size_t index);
  void Register(size_t leader, NodeIndex node, uint64_t term);
  void StartMembers(size_t leader);
  void Log(const std::string& line);

  std::mt19937_64 random_;
  bool tracing_;
  std::string trace_;
  std::string failure_;
  Nanos now_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Later> later_;
  Network network_;
  std::vector<std::vector<bool>> cut_;
  std::vector<Node> nodes_;
  Times times_;
  WitnessSet witnesses_;
  uint64_t store_term_ = 1;
  size_t leader_ = 0;  // of store_term_
  uint64_t fences_ = 0;
  uint64_t silences_ = 0;
};

}  // namespace muster::lease
