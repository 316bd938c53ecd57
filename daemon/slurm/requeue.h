// A requeue, from the request to the job's permission to run again: several questions to Slurm, with pauses.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "daemon/slurm/helper_process.h"
#include "daemon/slurm/slurm.h"

namespace muster::slurm {

struct RequeueRequest {
  JobRun run;  // of the job, which ends
  std::vector<std::string> dead_nodes;
  std::string reason;     // for those
  bool failed = false;    // the job may have failed already
  bool all_down = false;  // only if the dead nodes are set DOWN
  std::chrono::milliseconds call_timeout{0};
  std::chrono::milliseconds deadline{0};
};

// Starts it on the loop's thread; it keeps itself alive until the job has been seen to be launched, or the loop or `helper`
// (which `alive` follows) is gone. `set_down` is NodeDown. `done` is called once, when the job may run again or cannot;
// `over` once, when nothing more is to be done for it.
void StartRequeue(Loop& loop, HelperProcess& helper, std::weak_ptr<void> alive, RequeueRequest request,
                  std::function<void(const std::string& node, std::function<void(Status)>)> set_down,
                  std::function<void(Status)> done, std::function<void()> over);

}  // namespace muster::slurm
