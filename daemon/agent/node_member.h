// What a node knows of one of its members, and what the coordinator is told of all of them together. Pure: no I/O, clock or
// thread.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/planted.h"
#include "daemon/agent/member_stop.h"
#include "daemon/agent/orders.h"
#include "wire/wire.h"

namespace muster {

// How a member's program ended. A member that SIGKILL has ended, or whose supervisor is dead, has the default values.
struct MemberEnd {
  struct Fact {
    uint32_t fact_class = 0;  // FactClass
    std::string text;
    std::string meaning;
  };
  int status = SIGKILL;  // as waitpid gives it
  pid_t pid = 0;
  bool oom_killed = false;
  bool supervisor_lost = false;
  int64_t time_ns = 0;  // CLOCK_REALTIME
  std::string program;
  std::string stderr_tail;
  std::vector<Fact> facts;  // what the node's kernel and its fabric said at the time
};

struct NodeMember {
  using State = wire::MemberState;

  State state = State::kWaiting;
  uint64_t generation = 0;
  MemberStop stop;          // of this generation
  int64_t executed_ns = 0;  // when its program was exec'd, 0: not yet
  uint32_t unkillable = 0;  // processes that SIGKILL has not removed
  std::optional<MemberEnd> end;

  // The supervisor has something that must be stopped before it can start another generation.
  [[nodiscard]] bool HasProgram() const { return state == State::kRunning || state == State::kExited; }

  // ---- orders: whether its supervisor is sent them

  bool Start(uint64_t next) {
    if (generation >= next) return false;
    *this = NodeMember{.state = State::kRunning, .generation = next};
    return true;
  }
  bool Stop(bool last_words) { return HasProgram() && stop.Order(last_words); }

  // ---- what its supervisor says; what it says of another generation is dropped

  // The supervisor is connected again, after its own restart of the connection or musterd's.
  void Returned(State where, uint64_t of, MemberEnd how) {
    state = where;
    generation = of;
    if ((state == State::kExited || state == State::kStopped) && !end) end = std::move(how);
  }
  bool Executed(uint64_t of, int64_t time_ns) {
    if (of != generation) return false;
    executed_ns = time_ns;
    return true;
  }
  bool Exited(uint64_t of, MemberEnd how) {
    if (of != generation) return false;
    if (state == State::kRunning) state = State::kExited;
    end = std::move(how);
    return true;
  }
  bool Exiting(uint64_t of) {
    if (of != generation) return false;
    stop.exiting = true;
    return true;
  }
  // True: the coordinator has not ordered this stop, and is to be told that the member has ended. The musterd before this one had
  // ordered the stop, or the supervisor has stopped the member by itself.
  bool Stopped(uint64_t of, uint32_t left, uint32_t last_words_ms, const Orders& orders) {
    if (of != generation) return false;
    state = State::kStopped;
    unkillable = left;
    stop.last_words_ms = last_words_ms;
    if (!orders.MayRun(of) || end || MUSTER_PLANTED(own_stop_untold)) return false;
    end.emplace();
    return true;
  }

  // ---- what musterd does itself

  // Its supervisor is dead. True: processes of its program may be left, and must be killed before it is stopped.
  bool SupervisorDied(const Orders& orders) {
    // After a restart of musterd nobody has said what the member did.
    const bool ran = HasProgram() || (generation == 0 && orders.started() > 0);
    state = ran ? State::kExited : State::kStopped;
    if (!end) end.emplace();
    end->supervisor_lost = true;
    return ran;
  }
  // All that its dead supervisor has left has been killed.
  void LeftKilled(uint32_t left) {
    state = State::kStopped;
    unkillable = left;
  }
  // The node's lease is over, and the member is killed. True: the coordinator is to be told. Every registration from now on says that the
  // member has ended.
  bool Fence(int64_t time_ns) {
    if (state != State::kRunning || end) return false;
    state = State::kExited;
    end = MemberEnd{.time_ns = time_ns, .program = "fenced: cut off from the gang"};
    return true;
  }
};

// ---- all members of a node: maps by task, whose values are NodeMembers or have more besides

// The newest generation of which something may run here. 0: none.
uint64_t NewestWithProgram(const auto& members) {
  uint64_t newest = 0;
  for (const auto& [task, member] : members) {
    if (member.HasProgram()) newest = std::max(newest, member.generation);
  }
  return newest;
}

// One message for the node: a gang has many more members than nodes. What is lost with a link is in the next registration, where a
// member that runs counts as exec'd.
struct NodeExecuted {
  std::vector<uint32_t> tasks;
  int64_t time_ns = 0;
};
// What the coordinator is told, once a generation, when each of its members here has been exec'd or has ended before that. Nothing
// before, and after.
std::optional<NodeExecuted> SayExecuted(const auto& members, uint64_t generation, Orders* orders) {
  if (!orders->OwesExecuted(generation)) return std::nullopt;
  NodeExecuted executed;
  for (const auto& [task, member] : members) {
    if (member.generation != generation) return std::nullopt;
    if (member.executed_ns == 0 && member.state == wire::MemberState::kRunning) return std::nullopt;
    if (member.executed_ns == 0) continue;
    executed.tasks.push_back(task);
    executed.time_ns = std::max(executed.time_ns, member.executed_ns);
  }
  orders->SaidExecuted(generation);
  return executed;
}

struct NodeStopped {
  bool exiting = false;  // SIGKILL has ended all, and some of it has not gone yet; else nothing runs any more
  uint32_t unkillable = 0;
  uint32_t last_words_ms = 0;  // the longest of a member
};
// What the coordinator is told, once an order to stop, when nothing of the stopped generations runs in any of the node's `tasks`. It is
// told once before where SIGKILL has ended all, and some processes have not gone yet.
std::optional<NodeStopped> SayStopped(const auto& members, size_t tasks, Orders* orders) {
  if (!orders->OwesStopped() || members.size() < tasks) return std::nullopt;
  NodeStopped stopped;
  for (const auto& [task, member] : members) {
    if (orders->MayRun(member.generation)) return std::nullopt;
    if (member.stop.ordered && MUSTER_PLANTED(stopping_is_stopped)) continue;
    if (member.HasProgram() && !member.stop.exiting) return std::nullopt;
    stopped.exiting |= member.HasProgram();
    stopped.unkillable += member.unkillable;
    stopped.last_words_ms = std::max(stopped.last_words_ms, member.stop.last_words_ms);
  }
  if (!stopped.exiting) {
    orders->SaidStopped();
  } else if (!orders->SayExiting()) {
    return std::nullopt;
  }
  return stopped;
}

}  // namespace muster
