// The only code that sees libslurm, whose structures change with each release. Written for 22.05, compiles up to 26.05.
#include "daemon/slurm/helper/libslurm.h"

#include <fmt/format.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace muster::slurm {
namespace {

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* message) const { Free(message); }
};
using JobMessage = std::unique_ptr<job_info_msg_t, Freer<job_info_msg_t, slurm_free_job_info_msg>>;
using NodeMessage = std::unique_ptr<node_info_msg_t, Freer<node_info_msg_t, slurm_free_node_info_msg>>;
using Configuration = std::unique_ptr<slurm_conf_t, Freer<slurm_conf_t, slurm_free_ctl_conf>>;
using PartitionMessage =
    std::unique_ptr<partition_info_msg_t, Freer<partition_info_msg_t, slurm_free_partition_info_msg>>;

// From 26.05 on jobs are named by a structure, from 25.11 on steps and what is to be updated.
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
slurm_step_id_t JobKey(uint32_t job_id) {
  slurm_step_id_t key{};
  key.job_id = job_id;
  key.step_het_comp = NO_VAL;
  key.step_id = NO_VAL;
  return key;
}
#else
uint32_t JobKey(uint32_t job_id) {
  return job_id;
}
#endif

int SignalStep(uint32_t job_id, uint32_t step_id, uint16_t signal) {
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
  slurm_step_id_t key{};
  key.job_id = job_id;
  key.step_het_comp = NO_VAL;
  key.step_id = step_id;
  return slurm_kill_job_step(&key, signal, 0);
#elif SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
  return slurm_kill_job_step(job_id, step_id, signal, 0);
#else
  return slurm_kill_job_step(job_id, step_id, signal);
#endif
}

void SetJob(job_desc_msg_t* message, uint32_t job_id) {
  slurm_init_job_desc_msg(message);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
  message->step_id.job_id = job_id;
#else
  message->job_id = job_id;
#endif
}

void SetReason(update_node_msg_t* message, char* reason) {
  message->reason = reason;
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(26, 5, 0)
  message->reason_uid = ::getuid();
#endif
}

std::string Owned(const char* text) {
  return text != nullptr ? text : "";
}

Errc CodeOf(int error) {
  switch (error) {
    case ESLURM_INVALID_JOB_ID:
    case ESLURM_INVALID_NODE_NAME:
      return Errc::kNotFound;
    case ESLURM_ACCESS_DENIED:
    case ESLURM_USER_ID_MISSING:
    case ESLURM_DISABLED:
    case ESLURM_BATCH_ONLY:
      return Errc::kDenied;
    case ESLURM_TRANSITION_STATE_NO_UPDATE:
    case ESLURM_IN_STANDBY_MODE:
    case ESLURM_JOB_NOT_PENDING:  // not yet
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 5, 0)
    case ESLURM_JOB_SETTING_DB_INX:  // of a job that has lost a node, perhaps never
#endif
      return Errc::kUnavailable;
    default:
      // System errors and those of the transport are below slurmctld's own; those of sockets, a timeout among them, are 5000 to
      // 5099, whose names are not the same in all of Slurm's releases.
      return error < ESLURM_INVALID_PARTITION_NAME || (error >= 5000 && error < 5100) ? Errc::kUnavailable
                                                                                      : Errc::kInternal;
  }
}

Error Failed(const std::string& what) {
  const int error = errno;
  return {CodeOf(error), fmt::format("Slurm: {}: {}", what, slurm_strerror(error))};
}

const char* StateName(uint32_t state) {
  constexpr const char* kNames[] = {"PENDING",   "RUNNING",   "SUSPENDED", "COMPLETED",
                                    "CANCELLED", "FAILED",    "TIMEOUT",   "NODE_FAIL",
                                    "PREEMPTED", "BOOT_FAIL", "DEADLINE",  "OUT_OF_MEMORY"};
  const uint32_t base = state & JOB_STATE_BASE;
  return base < std::size(kNames) ? kNames[base] : "UNKNOWN";
}

std::vector<std::string> Expand(char* expression) {
  std::vector<std::string> names;
  if (expression == nullptr || expression[0] == '\0') return names;
  auto* const list = slurm_hostlist_create(expression);
  while (char* name = slurm_hostlist_shift(list)) {
    names.emplace_back(name);
    ::free(name);  // NOLINT: it is strdup's
  }
  slurm_hostlist_destroy(list);
  return names;
}

SlurmJob Convert(const slurm_job_info_t& info) {
  SlurmJob job;
  job.job_id = info.job_id;
  job.uid = info.user_id;
  job.state = StateName(info.job_state);
  job.completing = (info.job_state & JOB_COMPLETING) != 0;
  job.requeueable = info.requeue != 0;
  job.batch = info.batch_flag != 0;
  job.launch_failed = info.priority == 0 && Owned(info.state_desc).find("launch failed") != std::string::npos;
  job.put_off = info.state_reason == WAIT_TIME;
  job.restart_count = info.restart_cnt;
  job.submit_time = info.submit_time;
  job.start_time = info.start_time;
  // Without a limit slurmctld gives a date a year ahead.
  const bool running = job.state == "RUNNING" || job.state == "SUSPENDED";
  job.end_time = running && info.time_limit == INFINITE ? 0 : info.end_time;
  job.preempt_time = info.preempt_time;
  job.preemptable_time = info.preemptable_time;
  job.partition = Owned(info.partition);
  job.batch_host = Owned(info.batch_host);
  job.nodes = Expand(info.nodes);
  job.het_leader = info.het_job_id;
  job.het_offset = info.het_job_id != 0 ? info.het_job_offset : 0;
  return job;
}

// Whether lists of ranges of node indexes, ended by -1, meet.
bool Meet(const int32_t* a, const int32_t* b) {
  if (a == nullptr || b == nullptr) return false;
  for (const int32_t* x = a; x[0] != -1; x += 2) {
    for (const int32_t* y = b; y[0] != -1; y += 2) {
      if (x[0] <= y[1] && y[0] <= x[1]) return true;
    }
  }
  return false;
}

bool HoldsNodes(const slurm_job_info_t& info) {
  const uint32_t base = info.job_state & JOB_STATE_BASE;
  return base == JOB_RUNNING || base == JOB_SUSPENDED || (info.job_state & JOB_COMPLETING) != 0;
}

class Libslurm final : public Calls {
 public:
  Libslurm() { slurm_init(nullptr); }

  Result<std::string> ClusterName() override {
    slurm_conf_t* loaded = nullptr;
    if (slurm_load_ctl_conf(0, &loaded) != SLURM_SUCCESS) return Failed("the configuration");
    const Configuration message(loaded);
    return Owned(message->cluster_name);
  }

  Result<std::vector<SlurmJob>> LoadJob(uint32_t job_id) override {
    job_info_msg_t* loaded = nullptr;
    if (slurm_load_job(&loaded, JobKey(job_id), SHOW_ALL) != SLURM_SUCCESS)
      return Failed(fmt::format("job {}", job_id));
    const JobMessage message(loaded);
    std::vector<SlurmJob> jobs;
    for (uint32_t i = 0; i < message->record_count; ++i) {
      const slurm_job_info_t& info = message->job_array[i];
      // slurmctld answers with a whole array of jobs when the number is that of one.
      if (info.job_id == job_id || (info.het_job_id != 0 && info.het_job_id != NO_VAL))
        jobs.push_back(Convert(info));
    }
    if (jobs.empty()) return Error{Errc::kNotFound, fmt::format("Slurm knows no job {}", job_id)};
    return jobs;
  }

  Result<std::vector<SlurmJob>> LoadJobsOn(const std::vector<std::string>& nodes) override {
    job_info_msg_t* loaded = nullptr;
    if (slurm_load_jobs(0, &loaded, SHOW_ALL) != SLURM_SUCCESS) return Failed("all jobs");
    const JobMessage message(loaded);
    const auto array = [&](uint32_t i) -> const slurm_job_info_t& { return message->job_array[i]; };
    // The indexes of the wanted nodes' jobs; names are expanded for those jobs only.
    std::vector<SlurmJob> jobs;
    std::vector<const int32_t*> wanted;
    for (uint32_t i = 0; i < message->record_count; ++i) {
      if (HoldsNodes(array(i)) && Names(array(i).nodes, nodes)) wanted.push_back(array(i).node_inx);
    }
    for (uint32_t i = 0; i < message->record_count; ++i) {
      if (!HoldsNodes(array(i))) continue;
      const bool met = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const int32_t* indexes) { return Meet(indexes, array(i).node_inx); });
      if (!met) continue;
      SlurmJob job = Convert(array(i));
      const bool there = std::any_of(job.nodes.begin(), job.nodes.end(), [&](const std::string& node) {
        return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
      });
      if (there) jobs.push_back(std::move(job));
    }
    return jobs;
  }

  Result<uint32_t> GraceTime(const std::string& partition) override {
    partition_info_msg_t* loaded = nullptr;
    if (slurm_load_partitions(0, &loaded, SHOW_ALL) != SLURM_SUCCESS) return Failed("partitions");
    const PartitionMessage message(loaded);
    for (uint32_t i = 0; i < message->record_count; ++i) {
      const partition_info_t& info = message->partition_array[i];
      if (Owned(info.name) == partition) return info.grace_time;
    }
    return Error{Errc::kNotFound, fmt::format("Slurm knows no partition {}", partition)};
  }

  Result<NodeState> LoadNode(const std::string& node) override {
    node_info_msg_t* loaded = nullptr;
    std::string name = node;
    if (slurm_load_node_single(&loaded, name.data(), SHOW_ALL) != SLURM_SUCCESS) {
      return Failed(fmt::format("node {}", node));
    }
    const NodeMessage message(loaded);
    for (uint32_t i = 0; i < message->record_count; ++i) {
      const node_info_t& info = message->node_array[i];
      if (Owned(info.name) != node) continue;
      NodeState state;
      state.down = (info.node_state & NODE_STATE_BASE) == NODE_STATE_DOWN;
      state.drain = (info.node_state & NODE_STATE_DRAIN) != 0;
      state.state = state.down ? "DOWN" : state.drain ? "DRAIN" : "up";
      state.reason = Owned(info.reason);
      return state;
    }
    return Error{Errc::kNotFound, fmt::format("Slurm knows no node {}", node)};
  }

  Status UpdateNode(const std::string& node, NodeChange change, const std::string& reason) override {
    std::string name = node;
    std::string why = reason;
    update_node_msg_t message;
    slurm_init_update_node_msg(&message);
    message.node_names = name.data();
    message.node_state = change == NodeChange::kDown    ? static_cast<uint32_t>(NODE_STATE_DOWN)
                         : change == NodeChange::kDrain ? static_cast<uint32_t>(NODE_STATE_DRAIN)
                                                        : static_cast<uint32_t>(NODE_RESUME);
    if (!why.empty()) SetReason(&message, why.data());
    if (slurm_update_node(&message) != SLURM_SUCCESS) return Failed(fmt::format("update of node {}", node));
    return {};
  }

  Status Requeue(uint32_t job_id) override {
    if (slurm_requeue(JobKey(job_id), 0) == SLURM_SUCCESS || errno == ESLURM_JOB_PENDING) return {};
    return Failed(fmt::format("requeue of job {}", job_id));
  }

  Status Begin(uint32_t job_id) override {
    job_desc_msg_t message;
    SetJob(&message, job_id);
    message.begin_time = 1;  // slurmctld takes its own clock for what is past
    return Update(&message, fmt::format("begin time of job {}", job_id));
  }

  Status Free(uint32_t job_id) override {
    job_desc_msg_t message;
    SetJob(&message, job_id);
    message.begin_time = 1;
    message.priority = INFINITE;  // what `scontrol release` sends
    return Update(&message, fmt::format("release of job {}", job_id));
  }

  Status SetAdminComment(uint32_t job_id, const std::string& text) override {
    // slurmctld of later releases appends what begins like this.
    std::string comment = text.starts_with("+=") ? " " + text : text;
    job_desc_msg_t message;
    SetJob(&message, job_id);
    message.admin_comment = comment.data();
    return Update(&message, fmt::format("comment of job {}", job_id));
  }

  Status KillStep(uint32_t job_id, uint32_t step_id) override {
    if (SignalStep(job_id, step_id, SIGKILL) == SLURM_SUCCESS || HasEnded()) return {};
    return Failed(fmt::format("end of step {}.{}", job_id, step_id));
  }

  Status CancelJob(uint32_t job_id) override {
    if (slurm_kill_job(JobKey(job_id), SIGKILL, 0) == SLURM_SUCCESS || HasEnded()) return {};
    return Failed(fmt::format("end of job {}", job_id));
  }

 private:
  static bool HasEnded() { return errno == ESLURM_ALREADY_DONE || errno == ESLURM_INVALID_JOB_ID; }

  static Status Update(job_desc_msg_t* message, const std::string& what) {
    if (slurm_update_job(message) == SLURM_SUCCESS) return {};
    return Failed(what);
  }

  static bool Names(char* expression, const std::vector<std::string>& nodes) {
    if (expression == nullptr || expression[0] == '\0') return false;
    auto* const list = slurm_hostlist_create(expression);
    const bool found = std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node) {
      return slurm_hostlist_find(list, node.c_str()) >= 0;
    });
    slurm_hostlist_destroy(list);
    return found;
  }
};

}  // namespace

std::unique_ptr<Calls> OpenLibslurm() {
  return std::make_unique<Libslurm>();
}

}  // namespace muster::slurm
