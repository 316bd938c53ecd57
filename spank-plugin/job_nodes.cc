#include "spank-plugin/job_nodes.h"

#include <slurm/slurm_version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "spank-plugin/spank_header.h"

// Of the program that loads the plugin. From 26.05 on a job is named by a structure.
extern "C" {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
__attribute__((weak)) int slurm_load_job(job_info_msg_t** jobs, slurm_step_id_t id, uint16_t flags);
#else
__attribute__((weak)) int slurm_load_job(job_info_msg_t** jobs, uint32_t id, uint16_t flags);
#endif
__attribute__((weak)) void slurm_free_job_info_msg(job_info_msg_t* jobs);
__attribute__((weak)) decltype(slurm_hostlist_create) slurm_hostlist_create;
__attribute__((weak)) decltype(slurm_hostlist_shift) slurm_hostlist_shift;
__attribute__((weak)) decltype(slurm_hostlist_find) slurm_hostlist_find;
__attribute__((weak)) decltype(slurm_hostlist_destroy) slurm_hostlist_destroy;
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

// The list of nodes, as Slurm writes it, of the job that NodesNow was last asked about; "" where it is too long.
constinit char nodes_now[64 * 1024] = "";

// 0 when slurmctld does not answer.
uint32_t NodesNow(uint32_t job_id) {
  if (slurm_load_job == nullptr || slurm_free_job_info_msg == nullptr) return 0;
  job_info_msg_t* jobs = nullptr;
  // Without SHOW_LOCAL the other clusters of a federation are asked too.
  if (slurm_load_job(&jobs, Key(job_id), SHOW_ALL | SHOW_LOCAL) != 0) return 0;
  uint32_t nodes = 0;
  // The first component of a heterogeneous job brings all of them.
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    const slurm_job_info_t& job = jobs->job_array[i];
    if (job.job_id != job_id) continue;
    nodes = job.num_nodes;
    const size_t size = job.nodes != nullptr ? strlen(job.nodes) + 1 : 0;
    nodes_now[0] = '\0';
    if (size > 0 && size <= sizeof(nodes_now)) memcpy(nodes_now, job.nodes, size);
  }
  slurm_free_job_info_msg(jobs);
  return nodes;
}

// Goes through a number for each node as Slurm writes them: "2(x3),1".
class NumberPerNode {
 public:
  explicit NumberPerNode(const char* text) : at_(text) {}
  // Returns 0 after the last node, and where the text is malformed.
  uint32_t Next() {
    if (times_ == 0) {
      char* end = nullptr;
      number_ = static_cast<uint32_t>(strtoul(at_, &end, 10));
      if (end == at_ || number_ > UINT16_MAX) return 0;
      times_ = 1;
      if (strncmp(end, "(x", 2) == 0) {
        times_ = static_cast<uint32_t>(strtoul(end + 2, &end, 10));
        if (times_ == 0 || *end++ != ')') return 0;
      }
      at_ = *end == ',' ? end + 1 : end;
    }
    --times_;
    return number_;
  }

 private:
  const char* at_;
  uint32_t number_ = 0;
  uint32_t times_ = 0;
};

bool HasHostLists() {
  return slurm_hostlist_create != nullptr && slurm_hostlist_shift != nullptr &&
         slurm_hostlist_find != nullptr && slurm_hostlist_destroy != nullptr;
}

// Takes the numbers of lost nodes out of a variable that has a number for each of the job's nodes, and returns the sum of the others.
// Returns 0 and changes nothing where the variable is absent, or its numbers do not fit the nodes.
uint32_t KeepNumbers(const char* variable) {
  const char* text = getenv(variable);
  const char* nodes_before = getenv("SLURM_JOB_NODELIST");
  if (text == nullptr || nodes_before == nullptr || !HasHostLists()) return 0;
  char each[16 * 1024];  // up to 4,096 nodes of three digits
  auto* const left = slurm_hostlist_create(nodes_now);
  auto* const before = slurm_hostlist_create(nodes_before);
  NumberPerNode numbers(text);
  uint32_t sum = 0;
  size_t written = 0;
  bool known = true;
  for (char* node = slurm_hostlist_shift(before); node != nullptr; node = slurm_hostlist_shift(before)) {
    const uint32_t number = numbers.Next();
    known &= number > 0 && written < sizeof(each);
    if (known && slurm_hostlist_find(left, node) >= 0) {
      sum += number;
      written += static_cast<size_t>(
          snprintf(each + written, sizeof(each) - written, "%s%u", written > 0 ? "," : "", number));
    }
    free(node);
  }
  slurm_hostlist_destroy(before);
  slurm_hostlist_destroy(left);
  if (!known || written >= sizeof(each) || sum == 0) return 0;
  setenv(variable, each, 1);
  return sum;
}

// A lower number in the variable is the user's wish. Returns the number that was there, or 0.
uint32_t Lower(const char* variable, uint32_t number) {
  const uint32_t before = NumberOf(variable);
  if (number == 0 || before <= number) return 0;
  char text[16];
  snprintf(text, sizeof(text), "%u", number);
  setenv(variable, text, 1);
  return before;
}

constinit Left left_to_the_job;
// What slurmctld has said to ForgetLostNodes.
constinit uint32_t known_job = 0;
constinit uint32_t known_nodes = 0;

}  // namespace

uint32_t NodesLeft(uint32_t job_id) {
  const uint32_t nodes = job_id == known_job && known_nodes > 0 ? known_nodes : NodesNow(job_id);
  // With 0 a head node's srun would be taken for a gang, and refused. Few jobs have lost a node while slurmctld is silent.
  return nodes > 0 ? nodes : NodesAtFirst(job_id);
}

void ForgetLostNodes() {
  left_to_the_job = Left();
  known_job = NumberOf("SLURM_JOB_ID");
  known_nodes = 0;
  const uint32_t before = NumberOf("SLURM_JOB_NUM_NODES");
  // Slurm sets SLURM_NO_KILL in jobs with --no-kill. It ends any other job with the first node that fails, so such a job has lost none.
  if (getenv("SLURM_NO_KILL") == nullptr || known_job == 0 || before < 2 ||
      getenv("SLURM_HET_SIZE") != nullptr)
    return;
  known_nodes = NodesNow(known_job);
  if (known_nodes == 0 || known_nodes >= before || nodes_now[0] == '\0') return;
  left_to_the_job = {known_nodes, before, 0, 0, nodes_now};
  KeepNumbers("SLURM_JOB_CPUS_PER_NODE");
  const uint32_t tasks = KeepNumbers("SLURM_TASKS_PER_NODE");
  for (const char* variable : {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) Lower(variable, known_nodes);
  for (const char* variable : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) setenv(variable, nodes_now, 1);
  left_to_the_job.tasks_before = Lower("SLURM_NTASKS", tasks);
  if (left_to_the_job.tasks_before > 0) left_to_the_job.tasks = tasks;
  Lower("SLURM_NPROCS", tasks);
}

const Left& LeftToTheJob() {
  return left_to_the_job;
}

bool AllLeft(const char* list) {
  if (left_to_the_job.nodes == 0 || !HasHostLists()) return true;
  auto* const left = slurm_hostlist_create(left_to_the_job.list);
  auto* const asked_for = slurm_hostlist_create(list);
  bool all = true;
  for (char* node = slurm_hostlist_shift(asked_for); node != nullptr;
       node = slurm_hostlist_shift(asked_for)) {
    all &= slurm_hostlist_find(left, node) >= 0;
    free(node);
  }
  slurm_hostlist_destroy(asked_for);
  slurm_hostlist_destroy(left);
  return all;
}

}  // namespace muster::plugin
