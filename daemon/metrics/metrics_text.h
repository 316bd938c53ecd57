// What musterd tells Prometheus, in its text format. Pure. docs/operations.md, "Metrics", has a table of the names.
//
// A gang has the same number of series whatever its size: they come from its coordinator alone, and none is for a member or a node
// of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

struct GangMetrics {
  std::string gang;  // JOB.STEP
  uint32_t uid = 0;
  std::string state;  // gang::ToString
  uint64_t generation = 0;
  std::map<std::string, uint32_t> restarts;  // by cause; those that have not been too
  uint32_t user_faults = 0;
  uint32_t tasks = 0;
  uint32_t nodes_active = 0;
  uint32_t nodes_spare = 0;
  uint32_t nodes_lost = 0;
  std::optional<double> recovery_seconds;  // from the newest fault to the last member's exec
  std::optional<uint64_t> step;            // the highest that a member has reported
  std::optional<double> step_seconds;      // the members' median
  struct Checkpoint {
    uint64_t step = 0;
    uint64_t bytes = 0;
    double at = 0;                        // seconds since 1970
    std::optional<double> stall_seconds;  // of the member that it held up longest
    std::optional<double> drain_seconds;  // of the shard that took longest to become durable
  };
  // The newest that the gang has committed; how long it took is known to the coordinator alone that has committed it.
  std::optional<Checkpoint> checkpoint;
};

// Operations on objects of checkpoints that the store has carried out.
struct StoreWork {
  uint64_t operations = 0;
  double seconds = 0;  // added up
  uint64_t bytes = 0;
};

// The ports of the fabric, added up: events and musterd's log name the one.
struct FabricMetrics {
  size_t ports_up = 0;
  size_t ports_down = 0;
  uint64_t links_lost = 0;
  std::vector<std::pair<std::string, uint64_t>> counts;  // by kind
};

struct NodeMetrics {
  std::string version;
  size_t gangs = 0;             // with tasks on this node
  size_t coordinated = 0;       // by this node
  std::optional<bool> healthy;  // NodeHealth::healthy()
  StoreWork writes;
  StoreWork reads;
  std::optional<FabricMetrics> fabric = std::nullopt;  // nothing where no port is watched
  double longest_turn_seconds = 0;                     // of the main loop
};

// One sample a line, samples of one name together, each name with its HELP and TYPE.
std::string MetricsText(const NodeMetrics& node, const std::vector<GangMetrics>& gangs);
// A label's value between its quotes.
std::string EscapeLabel(std::string_view value);

}  // namespace muster
