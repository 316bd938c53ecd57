// How many nodes a job has, by a slurmctld that answers or not; with stand-ins for the functions of libslurm.
#include "spank-plugin/job_nodes.h"

#include <gtest/gtest.h>
#include <slurm/slurm_version.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <sstream>
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

// Lists of hosts in which nothing is abbreviated: "n1,n2".
struct hostlist {
  std::vector<std::string> names;
};

extern "C" hostlist* slurm_hostlist_create(const char* text) {
  auto* list = new hostlist;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) list->names.push_back(name);
  return list;
}

extern "C" char* slurm_hostlist_shift(hostlist* list) {
  if (list->names.empty()) return nullptr;
  char* first = strdup(list->names.front().c_str());
  list->names.erase(list->names.begin());
  return first;
}

extern "C" int slurm_hostlist_find(hostlist* list, const char* name) {
  const auto found = std::find(list->names.begin(), list->names.end(), name);
  return found == list->names.end() ? -1 : static_cast<int>(found - list->names.begin());
}

extern "C" void slurm_hostlist_destroy(hostlist* list) {
  delete list;
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
    ForgetLostNodes();  // what an srun before has found
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

constexpr const char* kVariables[] = {"SLURM_JOB_ID",       "SLURM_JOB_NUM_NODES",    "SLURM_NNODES",
                                      "SLURM_JOB_NODELIST", "SLURM_NODELIST",         "SLURM_HET_SIZE",
                                      "SLURM_NTASKS",       "SLURM_NPROCS",           "SLURM_TASKS_PER_NODE",
                                      "SLURM_NO_KILL",      "SLURM_JOB_CPUS_PER_NODE"};

// What an srun in the script of job 12 makes of its environment. The job had n1 to n4 with 3, 3, 2 and 1 tasks.
class LostNodes : public JobNodes {
 protected:
  void SetUp() override {
    JobNodes::SetUp();
    Set({{"SLURM_JOB_ID", "12"},
         {"SLURM_JOB_NUM_NODES", "4"},
         {"SLURM_NNODES", "4"},
         {"SLURM_JOB_NODELIST", "n1,n2,n3,n4"},
         {"SLURM_NODELIST", "n1,n2,n3,n4"},
         {"SLURM_NTASKS", "9"},
         {"SLURM_NPROCS", "9"},
         {"SLURM_TASKS_PER_NODE", "3(x2),2,1"},
         {"SLURM_JOB_CPUS_PER_NODE", "64(x3),32"},
         {"SLURM_NO_KILL", "set"}});
  }
  void TearDown() override {
    for (const char* variable : kVariables) unsetenv(variable);
  }
  static void Set(const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
  }
  static void Has(uint32_t nodes, const char* list) {
    Know(12, nodes);
    known.back().nodes = const_cast<char*>(list);
  }
  // "NTASKS NPROCS NUM_NODES NNODES NODELIST TASKS_PER_NODE" afterwards.
  static std::string After() {
    ForgetLostNodes();
    std::string all;
    for (const char* variable : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_JOB_NUM_NODES", "SLURM_NNODES",
                                 "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"}) {
      const char* value = getenv(variable);
      all += std::string(all.empty() ? "" : " ") + (value != nullptr ? value : "-");
    }
    return all;
  }
};

constexpr char kAsBefore[] = "9 9 4 4 n1,n2,n3,n4 3(x2),2,1";

TEST_F(LostNodes, TakeTheirOwnTasksWithThem) {
  Has(2, "n2,n4");
  EXPECT_EQ(After(), "4 4 2 2 n2,n4 3,1");
  EXPECT_EQ(LeftToTheJob().nodes, 2U);
  EXPECT_EQ(LeftToTheJob().nodes_before, 4U);
  EXPECT_EQ(LeftToTheJob().tasks, 4U);
  EXPECT_EQ(LeftToTheJob().tasks_before, 9U);
  EXPECT_STREQ(getenv("SLURM_JOB_CPUS_PER_NODE"), "64,32");
  EXPECT_TRUE(AllLeft("n4,n2"));
  EXPECT_FALSE(AllLeft("n2,n3"));
}

TEST_F(LostNodes, AreAskedForOnceInAnSrun) {
  Has(2, "n2,n4");
  ForgetLostNodes();
  known.clear();
  EXPECT_EQ(NodesLeft(12), 2U);
  EXPECT_EQ(NodesLeft(13), 2U) << "of another job the environment's number is all that there is";
}

TEST_F(LostNodes, LeaveAJobWithoutANumberOfTasksWithoutOne) {
  for (const char* variable : {"SLURM_NTASKS", "SLURM_NPROCS"}) unsetenv(variable);
  Set({{"SLURM_TASKS_PER_NODE", "64(x4)"}});  // Slurm's number of processors then
  Has(2, "n2,n4");
  EXPECT_EQ(After(), "- - 2 2 n2,n4 64,64");
  EXPECT_EQ(LeftToTheJob().tasks, 0U);
}

TEST_F(LostNodes, LeaveNumbersAloneThatAreTooManyToBeWritten) {
  std::string nodes = "n1,n2";
  for (int node = 3; node <= 6000; ++node) nodes += ",n" + std::to_string(node);
  const std::string left = nodes.substr(3);
  Set({{"SLURM_JOB_NUM_NODES", "6000"},
       {"SLURM_JOB_NODELIST", nodes.c_str()},
       {"SLURM_TASKS_PER_NODE", "128(x6000)"},
       {"SLURM_NTASKS", "768000"}});
  Has(5999, left.c_str());
  ForgetLostNodes();
  EXPECT_EQ(LeftToTheJob().nodes, 5999U);
  EXPECT_STREQ(getenv("SLURM_NTASKS"), "768000");
  EXPECT_STREQ(getenv("SLURM_TASKS_PER_NODE"), "128(x6000)");
}

TEST_F(LostNodes, LeaveALowerNumberOfTheUsersAlone) {
  Has(3, "n1,n2,n3");
  Set({{"SLURM_NTASKS", "2"}});
  EXPECT_EQ(After(), "2 8 3 3 n1,n2,n3 3,3,2");
}

TEST_F(LostNodes, OfWhichNobodySpeaksChangeNothing) {
  EXPECT_EQ(After(), kAsBefore) << "slurmctld is silent";
  Has(4, "n1,n2,n3,n4");
  EXPECT_EQ(After(), kAsBefore);
  known.clear();
  Has(2, "n2,n4");
  unsetenv("SLURM_NO_KILL");
  EXPECT_EQ(After(), kAsBefore) << "the job ends with its first lost node";
  Set({{"SLURM_NO_KILL", "set"}, {"SLURM_HET_SIZE", "2"}});
  EXPECT_EQ(After(), kAsBefore);
  unsetenv("SLURM_HET_SIZE");
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(After(), kAsBefore) << "no job";
}

TEST_F(LostNodes, LeaveTheTasksAloneWhereTheNumbersDoNotFit) {
  Has(2, "n2,n4");
  for (const char* text : {"3", "3(x2),2", "3(x0),2,1,1", "x", "", "3(x2,2,1", "-1,2,2,2"}) {
    Set({{"SLURM_TASKS_PER_NODE", text},
         {"SLURM_JOB_NODELIST", "n1,n2,n3,n4"},
         {"SLURM_JOB_NUM_NODES", "4"},
         {"SLURM_NNODES", "4"}});
    EXPECT_EQ(After(), std::string("9 9 2 2 n2,n4 ") + text);
  }
  unsetenv("SLURM_TASKS_PER_NODE");
  Set({{"SLURM_JOB_NUM_NODES", "4"}});
  EXPECT_EQ(After(), "9 9 2 2 n2,n4 -");
}

}  // namespace
}  // namespace muster::plugin
