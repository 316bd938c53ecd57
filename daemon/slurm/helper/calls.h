// What muster-slurm needs of libslurm, in values of our own: libslurm.cc does it with the library, a test without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/slurm/slurm.h"

namespace muster::slurm {

struct NodeState {
  std::string state;  // for messages: DOWN, IDLE+DRAIN, ...
  bool down = false;
  bool drain = false;
  std::string reason;
};

enum class NodeChange { kDown, kDrain, kResume };

// Every call blocks, up to Slurm's MessageTimeout for each controller. Errors: kNotFound (no such job or node),
// kDenied, kUnavailable (slurmctld does not answer, or is busy with the thing), else kInternal; with Slurm's words.
class Calls {
 public:
  Calls() = default;
  virtual ~Calls() = default;
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // As slurm.conf says: "cluster".
  virtual Result<std::string> ClusterName() = 0;
  // The job, and the other components of a heterogeneous one; never empty. Without shared_nodes and grace_seconds.
  virtual Result<std::vector<SlurmJob>> LoadJob(uint32_t job_id) = 0;
  // All jobs that hold nodes now: running, suspended, completing.
  virtual Result<std::vector<SlurmJob>> LoadJobsOn(const std::vector<std::string>& nodes) = 0;
  virtual Result<uint32_t> GraceTime(const std::string& partition) = 0;
  virtual Result<NodeState> LoadNode(const std::string& node) = 0;
  // An empty reason leaves the one that the node has.
  virtual Status UpdateNode(const std::string& node, NodeChange change, const std::string& reason) = 0;
  // Good when the job is pending already.
  virtual Status Requeue(uint32_t job_id) = 0;
  // Sets the begin time of a pending job to now.
  virtual Status Begin(uint32_t job_id) = 0;
  // The same for one that Slurm holds.
  virtual Status Free(uint32_t job_id) = 0;
  virtual Status SetAdminComment(uint32_t job_id, const std::string& text) = 0;
  // Both are good when the thing has ended already.
  virtual Status KillStep(uint32_t job_id, uint32_t step_id) = 0;
  virtual Status CancelJob(uint32_t job_id) = 0;
};

}  // namespace muster::slurm
