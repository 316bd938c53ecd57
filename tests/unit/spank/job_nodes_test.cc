// How many nodes a job has, by a slurmctld that answers or not; with a stand-in for the two functions of libslurm.
#include "spank-plugin/job_nodes.h"

#include <gtest/gtest.h>
#include <slurm/slurm_version.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "spank-plugin/spank_header.h"

namespace {

std::vector<slurm_job_info_t> known;  // to slurmctld, unless it is empty: then slurmctld is silent
uint16_t asked_with = 0;

}  // namespace

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
extern "C" int slurm_load_job(job_info_msg_t** jobs, slurm_step_id_t /*id*/, uint16_t flags) {
#else
extern "C" int slurm_load_job(job_info_msg_t** jobs, uint32_t /*id*/, uint16_t flags) {
#endif
  asked_with = flags;
  if (known.empty()) return -1;
  *jobs = new job_info_msg_t{};
  (*jobs)->record_count = static_cast<uint32_t>(known.size());
  (*jobs)->job_array = known.data();
  return 0;
}

extern "C" void slurm_free_job_info_msg(job_info_msg_t* jobs) {
  delete jobs;
}

namespace muster::plugin {
namespace {

class JobNodes : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* part : {"ID", "NUM_NODES"}) {
      for (const char* group : {"", "_HET_GROUP_0", "_HET_GROUP_1"})
        unsetenv((std::string("SLURM_JOB_") + part + group).c_str());
    }
    known.clear();
    setenv("SLURM_JOB_NUM_NODES", "3", 1);
  }
  static void Know(uint32_t job, uint32_t nodes) {
    slurm_job_info_t record{};
    record.job_id = job;
    record.num_nodes = nodes;
    known.push_back(record);
  }
};

TEST_F(JobNodes, AreThoseThatSlurmctldHasLeftToTheJob) {
  Know(12, 2);
  Know(13, 1);
  EXPECT_EQ(NodesLeft(12), 2U);
  EXPECT_EQ(NodesLeft(13), 1U);
  EXPECT_EQ(asked_with, SHOW_ALL | SHOW_LOCAL);
}

TEST_F(JobNodes, AreThoseOfTheEnvironmentWhenSlurmctldIsSilent) {
  EXPECT_EQ(NodesLeft(12), 3U);
  unsetenv("SLURM_JOB_NUM_NODES");
  EXPECT_EQ(NodesLeft(12), 0U);
}

TEST_F(JobNodes, AreTheComponentsWhenSlurmctldIsSilent) {
  setenv("SLURM_JOB_ID_HET_GROUP_0", "12", 1);
  setenv("SLURM_JOB_NUM_NODES_HET_GROUP_0", "3", 1);
  setenv("SLURM_JOB_ID_HET_GROUP_1", "13", 1);
  setenv("SLURM_JOB_NUM_NODES_HET_GROUP_1", "1", 1);
  EXPECT_EQ(NodesLeft(12), 3U);
  EXPECT_EQ(NodesLeft(13), 1U);
}

}  // namespace
}  // namespace muster::plugin
