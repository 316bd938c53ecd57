#include "spank-plugin/job_nodes.h"

#include <slurm/slurm_version.h>

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

}  // namespace

uint32_t NodesLeft(uint32_t job_id) {
  if (slurm_load_job == nullptr || slurm_free_job_info_msg == nullptr) return 0;
  job_info_msg_t* jobs = nullptr;
  if (slurm_load_job(&jobs, Key(job_id), SHOW_ALL) != 0) return 0;
  uint32_t nodes = 0;
  // The first component of a heterogeneous job brings all of them.
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    if (jobs->job_array[i].job_id == job_id) nodes = jobs->job_array[i].num_nodes;
  }
  slurm_free_job_info_msg(jobs);
  return nodes;
}

}  // namespace muster::plugin
