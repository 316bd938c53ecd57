// What agents and coordinators say to each other on their links; muster.proto in short.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "daemon/gang/events.h"
#include "daemon/lease/witnesses.h"

namespace muster::sim {

struct Register {
  uint32_t node = 0;
  uint64_t term = 0;
  uint32_t coordinator = 0;  // whom it takes for it
  std::vector<gang::MemberInfo> members;
  uint64_t started_generation = 0;  // the newest that this node has been a part of, and
  std::optional<uint64_t> started_restore;
  std::optional<gang::CheckpointBad> checkpoint_bad;  // what a member here has found
};
struct ShardWritten {
  uint32_t rank = 0;
  uint64_t generation = 0;
  uint64_t step = 0;
};
using AgentMessage = std::variant<Register, ShardWritten, gang::Event>;

struct Start {
  uint64_t generation = 0;
  std::vector<uint32_t> active;
  std::vector<std::optional<uint32_t>> ranks;  // by task
  std::optional<uint64_t> restore;
  uint64_t content = 0;  // a digest of the above: what "the same generation" means
};
struct Stop {
  uint64_t generation = 0;
  bool last_words = false;
};
struct Finish {
  bool succeeded = false;
};
struct Committed {
  uint64_t generation = 0;
  uint64_t step = 0;
  bool good = false;
};
struct Notify {};  // a StepOrder: tests/unit/daemon/steps_random_test.cc has what becomes of it
struct Attended {
  uint32_t coordinator = 0;
  lease::WitnessSet witnesses;
};
struct Elsewhere {
  std::optional<uint32_t> node;
};
struct CoordinatorMessage {
  uint64_t term = 0;  // 0: no order
  std::variant<Start, Stop, Finish, Committed, Notify, Attended, Elsewhere> kind;
};

using Message = std::variant<AgentMessage, CoordinatorMessage>;

}  // namespace muster::sim
