// Which Slurm step a gang is, and the names that follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/gang_job/components.h"
#include "wire/gang_options.h"

namespace muster {

struct GangJob {
  uint32_t job_id = 0;  // of a heterogeneous one the first component's
  uint32_t step_id = 0;
  uint32_t restart_count = 0;  // SLURM_RESTART_COUNT
  // Two jobs may have the same number in Slurm, one after the other. A submission is one job with all its requeues. Its own number is
  // drawn at random by sbatch, salloc or srun. 0: the job was submitted where the plugin was not loaded.
  uint64_t submission = 0;
  // When srun launched the step, by its host's CLOCK_REALTIME. A slurmctld that comes back with an older state gives a step's number
  // again within the job. 0: not known.
  int64_t launched_ns = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t task_count = 0;
  std::string node_list;           // Slurm's expression
  std::vector<std::string> hosts;  // expanded: by node index
  std::string options_text;        // --gang's value; with components the first one's
  wire::GangOptions options;       // with components what they say together (MergeOptions)
  std::string components_text;     // "": the step has one component
  Components components;

  // "12.0", after a requeue "12.0-r1".
  [[nodiscard]] std::string Id() const;
  // Id with the submission: a later gang of the same Id has another submission. Leases and partners' copies are kept under this name,
  // because they may outlive the gang.
  [[nodiscard]] std::string Unique() const;
  // Of its record and checkpoints: "name-KEY" if name=KEY is given, else the step's and the submission's, "job-12.0-1f00c3e95a2b7d84",
  // the same after a requeue.
  [[nodiscard]] std::string Key() const;
  // Whether both are one launch of one step, where their Id is the same.
  [[nodiscard]] bool SameLaunch(const GangJob& other) const {
    return submission == other.submission && launched_ns == other.launched_ns;
  }
  // The store's space of the user.
  [[nodiscard]] std::string Space() const;
  // What the node's own component says; of a step of one component `options`.
  [[nodiscard]] const wire::GangOptions& OptionsOf(uint32_t node) const;
  // The node of that host.
  [[nodiscard]] std::optional<uint32_t> NodeOf(const std::string& host) const;
  // The Slurm job that has this node: its component's.
  [[nodiscard]] uint32_t JobOf(uint32_t node) const;
  // Who may coordinate, in order: the job's nodes, of several components the first one's first; the batch host (where
  // the script and srun live) last.
  [[nodiscard]] std::vector<uint32_t> CandidateNodes() const;

  // Fills what follows from node_list, options_text and components_text, and checks that all of it is consistent.
  [[nodiscard]] Status Complete();

 private:
  [[nodiscard]] Status CompleteComponents();
};

// Who coordinates a gang, as the agent of one of its nodes knows it.
struct KnownCoordinator {
  uint32_t node = 0;
  uint64_t term = 0;     // 0: none has been heard of
  bool heard = false;    // its lease is good here
  std::string beat_key;  // the gang's for beats, with a term
};

std::string SpaceOf(uint32_t uid);

// As files and messages have a submission: 16 digits, "" for none. What is no such text is none.
std::string SubmissionText(uint64_t submission);
uint64_t SubmissionOf(std::string_view text);

}  // namespace muster
