#include "spank-plugin/job_nodes.h"

#include <slurm/slurm_version.h>
#include <stdio.h>
#include <stdlib.h>

#include "spank-plugin/spank_header.h"

// Of the program that loads the plugin. From 26.05 on a job is named by a structure.
extern "C" {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
__attribute__((weak)) int slurm_load_job(job_info_msg_t** jobs, slurm_step_id_t id, uint16_t flags);
#else
__attribute__((weak)) int slurm_load_job(job_info_msg_t** jobs, uint32_t id, uint16_t flags);
#endif
__attribute__((weak)) void slurm_free_job_info_msg(job_info_msg_t* jobs);
}

namespace muster::plugin {
namespace {

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
slurm_step_id_t Key(uint32_t job_id) {
  slurm_step_id_t key{};
  key.job_id = job_id;
  key.step_het_comp = NO_VAL;
  key.step_id = NO_VAL;
  return key;
}
#else
uint32_t Key(uint32_t job_id) {
  return job_id;
}
#endif

uint32_t NumberOf(const char* variable) {
  const char* text = getenv(variable);
  return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : 0;
}

// Of the job when it started, or of the component; 0 outside of the job.
uint32_t NodesAtFirst(uint32_t job_id) {
  for (unsigned group = 0;; ++group) {
    char variable[64];
    snprintf(variable, sizeof(variable), "SLURM_JOB_ID_HET_GROUP_%u", group);
    const uint32_t component = NumberOf(variable);
    if (component == 0) return NumberOf("SLURM_JOB_NUM_NODES");
    snprintf(variable, sizeof(variable), "SLURM_JOB_NUM_NODES_HET_GROUP_%u", group);
    if (component == job_id) return NumberOf(variable);
  }
}

// 0 when slurmctld does not answer.
uint32_t NodesNow(uint32_t job_id) {
  if (slurm_load_job == nullptr || slurm_free_job_info_msg == nullptr) return 0;
  job_info_msg_t* jobs = nullptr;
  // Without SHOW_LOCAL the other clusters of a federation are asked too.
  if (slurm_load_job(&jobs, Key(job_id), SHOW_ALL | SHOW_LOCAL) != 0) return 0;
  uint32_t nodes = 0;
  // The first component of a heterogeneous job brings all of them.
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    if (jobs->job_array[i].job_id == job_id) nodes = jobs->job_array[i].num_nodes;
  }
  slurm_free_job_info_msg(jobs);
  return nodes;
}

}  // namespace

uint32_t NodesLeft(uint32_t job_id) {
  const uint32_t nodes = NodesNow(job_id);
  // With 0 a head node's srun would be taken for a gang, and refused. Few jobs have lost a node while slurmctld is silent.
  return nodes > 0 ? nodes : NodesAtFirst(job_id);
}

}  // namespace muster::plugin
