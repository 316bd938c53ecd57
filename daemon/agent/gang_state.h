// What a restarted musterd must know of the gangs on its node: one small file each under state_dir (on a
// tmpfs).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/gang_job/failed_saves.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/steps/node_side.h"

namespace muster {

struct GangState {
  GangJob job;
  uint32_t node = 0;
  uint32_t local_tasks = 0;
  std::string token;  // raw bytes
  std::vector<uint32_t> tasks;
  std::map<uint32_t, pid_t> supervisors;  // by task; those that are known
  uint32_t coordinator = 0;               // node
  uint64_t term = 0;
  std::string beat_key;  // raw bytes; "": none yet
  // The newest generation that this node has been a part of, and the checkpoint that it started from. 0: none.
  uint64_t started_generation = 0;
  std::optional<uint64_t> started_restore;
  FailedSaves failed;
  std::optional<v1::CheckpointBad> checkpoint_bad;  // as Register has it
  steps::NodeSide::Kept steps;
};

std::string GangStatePath(const std::string& state_dir, const std::string& gang);
// Readable by musterd's user alone: it holds the token.
Status SaveGangState(const std::string& state_dir, const GangState& state);
void RemoveGangState(const std::string& state_dir, const std::string& gang);
// All that can be read; a file that cannot is logged, and left alone.
std::vector<GangState> LoadGangStates(const std::string& state_dir);

}  // namespace muster
