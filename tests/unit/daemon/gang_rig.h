// A gang under test: nodes with the same number of tasks each, and the actions that the last event led to.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/gang/gang.h"

namespace muster::gang {

// waitpid's encoding.
inline int ExitCode(int code) {
  return code << 8;
}

class Rig {
 public:
  explicit Rig(uint32_t nodes = 2, uint32_t tasks_per_node = 2, uint32_t restarts = 3)
      : Rig(SettingsOf(nodes, tasks_per_node, restarts)) {}
  explicit Rig(const Settings& settings, const Memory& memory = {})
      : tasks_per_node_(settings.task_count / settings.node_count), gang(settings, memory) {
    actions = gang.Begin();
  }
  static Settings SettingsOf(uint32_t nodes, uint32_t tasks_per_node, uint32_t restarts = 3) {
    return {.id = "12.0", .node_count = nodes, .task_count = nodes * tasks_per_node, .restarts = restarts};
  }
  // One role, of whose nodes so many wait to replace others, and which goes on with so few.
  static Settings WithSpares(uint32_t nodes, uint32_t tasks_per_node, uint32_t spares, uint32_t min = 0) {
    Settings settings = SettingsOf(nodes, tasks_per_node);
    settings.roles[0].spares = spares;
    settings.roles[0].min_nodes = min;
    return settings;
  }

  void Feed(const Event& event) { actions = gang.Handle(event); }

  // A node whose members are all in `state` of `generation`.
  [[nodiscard]] NodeJoined Node(uint32_t node, MemberState state = MemberState::kWaiting,
                                uint64_t generation = 0) const {
    NodeJoined joined{.node = node, .name = "n" + std::to_string(node), .lease_port = 20000};
    for (uint32_t i = 0; i < tasks_per_node_; ++i) {
      joined.members.push_back(
          {.task = node * tasks_per_node_ + i, .local_id = i, .state = state, .generation = generation});
    }
    return joined;
  }
  void Join(uint32_t node, MemberState state = MemberState::kWaiting, uint64_t generation = 0) {
    Feed(Node(node, state, generation));
  }
  void JoinAll() {
    for (uint32_t node = 0; node < gang.nodes().size(); ++node) Join(node);
  }
  // All members of the generation run; `actions` are those of the last one.
  void ExecuteAll(int64_t time_ns = 0) {
    for (uint32_t task = 0; task < gang.members().size(); ++task) {
      if (gang.members()[task].rank) Feed(MemberExecuted{task, gang.generation(), time_ns});
    }
  }
  void Run() {
    JoinAll();
    ExecuteAll();
  }
  void Exit(uint32_t task, int status, int64_t time_ns = 0) {
    Feed(MemberExited{
        task, gang.generation(), {.status = status, .pid = 4711, .time_ns = time_ns, .program = "train"}});
  }
  void LoseSupervisor(uint32_t task) {
    Feed(MemberExited{task, gang.generation(), {.status = 9, .supervisor_lost = true}});
  }
  void Stopped(uint32_t node, uint32_t unkillable = 0) {
    Feed(NodeStopped{node, gang.generation(), 20001, unkillable});
  }
  void Exiting(uint32_t node) { Feed(NodeExiting{node, gang.generation()}); }
  // One whole restart: `task` ends with `status`, all nodes stop, the next generation runs.
  void Restart(uint32_t task = 0, int status = ExitCode(1)) {
    Exit(task, status);
    StopAll();
    ExecuteAll();
  }
  // All that are connected say that they have stopped, until that is enough.
  void StopAll() {
    const uint64_t generation = gang.generation();
    for (uint32_t node = 0; node < gang.nodes().size(); ++node) {
      if (gang.state() == State::kStopping && gang.nodes()[node].present)
        Feed(NodeStopped{node, generation, 20001, 0});
    }
  }
  void Silence(uint32_t node) { Feed(NodeSilent{node, 0}); }

  // The last event's first action of type T, if any.
  template <typename T>
  [[nodiscard]] std::optional<T> Did() const {
    for (const Action& action : actions) {
      if (const auto* found = std::get_if<T>(&action)) return *found;
    }
    return std::nullopt;
  }
  template <typename T>
  [[nodiscard]] std::vector<T> All() const {
    std::vector<T> all;
    for (const Action& action : actions) {
      if (const auto* found = std::get_if<T>(&action)) all.push_back(*found);
    }
    return all;
  }
  [[nodiscard]] std::optional<int64_t> TimerSet(Timer timer) const {
    std::optional<int64_t> ms;
    for (const Action& action : actions) {
      if (const auto* set = std::get_if<SetTimer>(&action); set != nullptr && set->timer == timer)
        ms = set->ms;
    }
    return ms;
  }
  [[nodiscard]] std::string NoteOf(const std::string& kind) const {
    for (const Action& action : actions) {
      if (const auto* note = std::get_if<Note>(&action); note != nullptr && note->kind == kind)
        return note->text;
    }
    return "";
  }

 private:
  uint32_t tasks_per_node_;

 public:
  Gang gang;
  std::vector<Action> actions;
};

}  // namespace muster::gang
