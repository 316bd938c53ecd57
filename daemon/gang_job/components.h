// The components of a heterogeneous step (srun A : B, srun --het-group=0,1): one gang of several roles. Slurm numbers
// each component's nodes and tasks apart, and tells a task little of the others; the plugin puts what there is together
// as one text, the same in every task of the step:
//
//   job=12 tasks=3,1,2
//   12 n4 role=chief
//   13 n[1-2] role=worker,spares=1
//
// The first line has the gang's job, which is the heterogeneous job's first one, and SLURM_STEP_TASKS_PER_NODE of the
// step's nodes. A line follows for each component: its own job, that job's nodes, its --gang. A step of one component
// has no such text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "wire/gang_options.h"

namespace muster {

// As Slurm has it (MAX_HET_JOB_COMPS).
inline constexpr size_t kMaxComponents = 128;

struct Component {
  uint32_t job_id = 0;
  std::string options_text;
  wire::GangOptions options;
  std::vector<uint32_t> nodes;  // of the step, by their index there
  uint32_t job_nodes = 0;       // of its job: as many, or more
};

struct Components {
  uint32_t job_id = 0;
  std::vector<Component> list;       // empty: the step has one component
  std::vector<uint32_t> of_node;     // index into list
  std::vector<uint32_t> node_tasks;  // how many
  std::vector<uint32_t> first_task;  // of each node: tasks are counted node by node

  [[nodiscard]] uint32_t TaskCount() const;
  // Whether Slurm ends the whole job when this node is DOWN although the job has --no-kill: it looks at the components
  // from the first to the one that has the node, and ends those that have one node (kill_running_job_by_node_name).
  // `lost`: nodes that it has taken from the job already.
  [[nodiscard]] bool EndWith(uint32_t node, const std::vector<uint32_t>& lost) const;
};

// The gang's job alone; 0 when the text does not begin with it.
uint32_t GangJobOf(std::string_view text);

// Reads the text of a step on `hosts`, and checks that every node is in one component and that each of those can be had
// on its nodes. kInvalid with the reason.
Result<Components> ParseComponents(std::string_view text, const std::vector<std::string>& hosts);

// Whether the roles go together: one kind a role, one chief, `after` names another role, which will be there.
Status CheckRoles(const Components& components);

// The options that are the gang's and not a role's, each from the component that gives it; role, kind, after, spares and
// min are the first component's. kInvalid when two components give different values.
Result<wire::GangOptions> MergeOptions(const std::vector<Component>& components);

}  // namespace muster
