// Which Slurm step a gang is, and the names that follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/wire/gang_options.h"

namespace muster {

struct GangJob {
  uint32_t job_id = 0;
  uint32_t step_id = 0;
  uint32_t restart_count = 0;  // SLURM_RESTART_COUNT
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t task_count = 0;
  std::string node_list;           // Slurm's expression
  std::vector<std::string> hosts;  // expanded: by node index
  std::string options_text;        // --gang's value
  wire::GangOptions options;

  // "12.0", after a requeue "12.0-r1".
  [[nodiscard]] std::string Id() const;
  // Of its record and checkpoints: name=KEY if given, else the step's, the same after a requeue.
  [[nodiscard]] std::string Key() const;
  // The store's space of the user.
  [[nodiscard]] std::string Space() const;
  // Who may coordinate, in order: the job's nodes, the batch host (where the script and srun live) last.
  [[nodiscard]] std::vector<std::string> Candidates() const;

  // Fills what follows from node_list and options_text, and checks that all of it is consistent.
  [[nodiscard]] Status Complete();
};

std::string SpaceOf(uint32_t uid);

}  // namespace muster
