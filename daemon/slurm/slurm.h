// Everything that musterd asks of Slurm or tells it. libslurm may end the process (fatal()) and its calls block for
// MessageTimeout, so it lives in a process of its own, muster-slurm, which is started when it is first needed, asked
// one thing at a time, and killed and started again when it hangs or dies. musterd never waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace muster {

// The config's keys of these names.
struct SlurmOptions {
  std::string helper;                         // slurm_helper; "": muster-slurm, where HelperProgram finds it
  std::chrono::milliseconds timeout{10'000};  // slurm_timeout: of one question, from the call on
  std::chrono::milliseconds requeue_timeout{300'000};  // slurm_requeue_timeout
  std::chrono::milliseconds comment_pause{5'000};      // before a comment that was refused is tried again
  std::chrono::milliseconds comment_first{200};  // how long a node is not set DOWN for a comment on its way
  int64_t node_downs_per_minute = 4;             // slurm_node_downs_per_minute; 0: never
  std::string requeue_dir;                       // where requeues are kept until they are done; "": nowhere
};

// One run of a job. slurmctld gives a job's number again when its state was lost or restored. `seen` is a time when the run was under
// way. A job of that number which was submitted later, or by another user, is another job: the answer is kNotFound.
struct JobRun {
  uint32_t job_id = 0;
  uint32_t restart_count = 0;  // SLURM_RESTART_COUNT
  uint32_t uid = 0;
  int64_t seen = 0;  // seconds since 1970; 0: any job of the number will do
};

// What Slurm knows of a job.
struct SlurmJob {
  uint32_t job_id = 0;
  uint32_t uid = 0;
  std::string state;  // Slurm's word without its flags: PENDING, RUNNING, SUSPENDED, COMPLETED, ...
  bool completing = false;
  bool requeueable = false;
  bool batch = false;          // has a script; salloc's and srun's own jobs cannot be requeued
  bool launch_failed = false;  // a node would not start its script: Slurm holds it in the queue
  bool put_off = false;        // it waits for its begin time, says Slurm
  uint32_t restart_count = 0;
  int64_t submit_time = 0;  // seconds since 1970
  int64_t start_time = 0;   // seconds since 1970; 0: not yet
  int64_t end_time = 0;  // the time limit's end while it runs, its end afterwards; 0: no limit, or not known
  int64_t preempt_time = 0;      // when it was told that it is preempted; 0: it was not
  int64_t preemptable_time = 0;  // when preemption becomes possible; 0: at any time
  uint32_t grace_seconds = 0;    // its partition's GraceTime: between preemption's SIGTERM and SIGKILL
  std::string partition;
  std::string batch_host;                 // "" for a job without a script
  std::vector<std::string> nodes;         // expanded
  std::vector<std::string> shared_nodes;  // those with other jobs on them; only when asked for
  uint32_t het_leader = 0;  // job id of a heterogeneous job's first component; 0: not heterogeneous
  uint32_t het_offset = 0;
};

// The requests are for the loop's thread. Each `done` is called once, on the loop's thread, after the call has
// returned; not any more once the object is gone. Errors that all of them give:
//   kUnavailable  no answer in time, slurmctld does not answer, or the helper is missing or died. What was asked
//                 may have been done all the same.
//   kExhausted    too many questions wait already (64).
// Texts are cut to 256 bytes, control characters replaced.
class Slurm {
 public:
  using Done = std::function<void(Status)>;
  using JobDone = std::function<void(Result<SlurmJob>)>;
  enum class Sharing { kSkip, kAsk };  // kAsk loads all jobs of the cluster: not for a poll

  Slurm(Loop& loop, SlurmOptions options);
  ~Slurm();
  Slurm(const Slurm&) = delete;
  Slurm& operator=(const Slurm&) = delete;

  // slurm.conf's ClusterName.
  void ClusterName(std::function<void(Result<std::string>)> done);

  // kNotFound: Slurm does not know the job (any more).
  void JobInfo(const JobRun& run, Sharing sharing, JobDone done);

  // Sets a node of the job DOWN, so that Slurm gives it up now and not after SlurmdTimeout: its tasks count as
  // ended, srun no longer waits for them. On the job's batch host this ends the job (requeued if it may be).
  // kDenied: the node is not the job's, another job is on it, or Slurm does not let us. kExhausted: more than
  // node_downs_per_minute. Good at once when the node is DOWN already.
  void NodeDown(const JobRun& run, const std::string& node, const std::string& reason, Done done);

  // No new jobs there; the running ones stay. kNotFound: no such node.
  void NodeDrain(const std::string& node, const std::string& reason, Done done);
  // Takes back a drain or a DOWN that Muster has set (reasons begin with "muster: ", which NodeDown and NodeDrain
  // put before them). kDenied: somebody else has set it. Good when there is nothing to take back.
  void NodeResume(const std::string& node, Done done);

  // What is known of a job's script: it runs; it may be killed when its node is set DOWN, if slurmd lives there after all;
  // it may have failed because the step could not be launched.
  enum class Script { kRuns, kMayBeKilled, kMayHaveFailed };

  // Ends this run of a batch job, puts it back into the queue and, past Slurm's BeginTime of two minutes, lets it run as soon as
  // there is room; once that is arranged, `done`. Asking twice is harmless: a later run is left alone. A dead batch host does not
  // matter, when two waits are avoided: slurmctld's for the nodes that do not answer (MessageTimeout), by naming all of them in
  // `dead_nodes`, which are set DOWN in this order under the rules of NodeDown; and slurmstepd's on the other nodes for an srun
  // that does not answer (15 s), by EndJobHere (local_job.h) on each of them. A job that has failed is requeued too unless its
  // script runs; with kMayHaveFailed no node may be left that cannot be set DOWN. kDenied: the job may not be requeued, and why.
  // kNotFound: it is gone. Goes on by itself while slurmctld does not answer, until requeue_timeout.
  void Requeue(const JobRun& run, std::vector<std::string> dead_nodes, const std::string& reason,
               Script script, Done done);
  // Goes on with the requeues that the daemon before this one has left in requeue_dir.
  void ResumeRequeues();

  // What `scontrol show job` and `squeue -O admin_comment` show as the job's AdminComment; replaces what was there.
  // slurmctld takes no change of a job that has lost a node before the database has a new index for it: after some
  // seconds with slurmdbd, never again in this run of the job without (kUnavailable, after 5 s). So it is tried three
  // times, with growing pauses, then `done` gets the error; nothing else waits meanwhile, but a NodeDown for the same
  // job, briefly. A text that a newer one replaces before it could be set counts as set.
  void SetComment(const JobRun& run, const std::string& text, Done done);

  // Ends one step, or a whole job, as scancel does.
  void KillStep(uint32_t job_id, uint32_t step_id, Done done);
  void CancelJob(uint32_t job_id, Done done);

  // The helper's pid, 0 while none runs. For tests and status.
  [[nodiscard]] int helper_pid() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
