#include "daemon/slurm/helper/operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "daemon/slurm/messages.h"

namespace muster::slurm {
namespace {

using nlohmann::json;
using Answered = Result<json>;

constexpr int64_t kClocks = 300;  // seconds by which two hosts' clocks may differ: MUNGE allows no more

std::optional<uint32_t> Number(const json& question, const char* key) {
  const auto it = question.find(key);
  if (it == question.end() || !it->is_number_unsigned()) return std::nullopt;
  const auto value = it->get<uint64_t>();
  if (value > std::numeric_limits<uint32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(value);
}

std::optional<std::string> Text(const json& question, const char* key) {
  const auto it = question.find(key);
  if (it == question.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

// One node's name, no list: slurmctld would take an expression.
std::optional<std::string> NodeName(const json& question) {
  auto name = Text(question, "node");
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!name || name->empty() || name->size() > 255 || *name == "ALL" ||
      !std::all_of(name->begin(), name->end(), good)) {
    return std::nullopt;
  }
  return name;
}

Error Missing(const char* what) {
  return {Errc::kInvalid, fmt::format("the question lacks a good '{}'", what)};
}

Answered Done(const Status& status) {
  if (!status) return status.error();
  return json::object();
}

bool Flag(const json& question, const char* key) {
  const auto it = question.find(key);
  return it != question.end() && *it == true;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool SameJob(const SlurmJob& a, const SlurmJob& b) {
  return a.job_id == b.job_id || (a.het_leader != 0 && a.het_leader == b.het_leader);
}

// Whether Slurm's job is the one that the question is about, and not another one that has its number now. A run that has been requeued
// is in the queue since then.
Status IsAsked(const SlurmJob& job, const json& question) {
  const auto uid = Number(question, "uid");
  const auto seen = Number(question, "seen");
  const bool later = seen && job.restart_count <= Number(question, "restarts").value_or(0) &&
                     job.submit_time > *seen + kClocks;
  if ((!uid || *uid == job.uid) && !later) return {};
  return Error{
      Errc::kNotFound,
      fmt::format("Slurm does not know the job {} any more: another job has its number", job.job_id)};
}

// With all components of a heterogeneous one.
Result<std::vector<SlurmJob>> LoadAll(Calls& calls, const json& question) {
  const auto job_id = Number(question, "job");
  if (!job_id) return Missing("job");
  auto jobs = calls.LoadJob(*job_id);
  if (!jobs) return jobs.error();
  for (const SlurmJob& job : *jobs) {
    if (job.job_id != *job_id) continue;
    if (Status asked = IsAsked(job, question); !asked) return asked.error();
  }
  return jobs;
}

Result<SlurmJob> Load(Calls& calls, const json& question) {
  auto jobs = LoadAll(calls, question);
  if (!jobs) return jobs.error();
  const auto job_id = Number(question, "job");
  for (SlurmJob& job : *jobs) {
    if (job.job_id == *job_id) return std::move(job);
  }
  return Error{Errc::kNotFound, fmt::format("Slurm knows no job {}", *job_id)};
}

Answered Job(Calls& calls, const json& question) {
  auto job = Load(calls, question);
  if (!job) return job.error();
  if (const auto grace = calls.GraceTime(job->partition)) job->grace_seconds = *grace;
  if (Flag(question, "sharing") && !job->nodes.empty()) {
    const auto others = calls.LoadJobsOn(job->nodes);
    if (!others) return others.error();
    for (const std::string& node : job->nodes) {
      const bool shared = std::any_of(others->begin(), others->end(), [&](const SlurmJob& other) {
        return !SameJob(other, *job) && Contains(other.nodes, node);
      });
      if (shared) job->shared_nodes.push_back(node);
    }
  }
  return ToJson(*job);
}

// A node is set DOWN only on behalf of a job that has it, and has it to itself: nobody else is harmed.
Answered NodeDown(Calls& calls, const json& question) {
  const auto job_id = Number(question, "job");
  const auto node = NodeName(question);
  const auto reason = Text(question, "reason");
  if (!job_id) return Missing("job");
  if (!node) return Missing("node");
  if (!reason) return Missing("reason");
  const auto state = calls.LoadNode(*node);
  if (!state) return state.error();
  if (state->down) return json{{"changed", false}};
  const auto jobs = calls.LoadJobsOn({*node});
  if (!jobs) return jobs.error();
  const SlurmJob* own = nullptr;
  for (const SlurmJob& job : *jobs) {
    if (job.job_id == *job_id || job.het_leader == *job_id) own = &job;
  }
  if (own == nullptr) {
    return Error{Errc::kDenied,
                 fmt::format("{} is not set DOWN: it is not one of job {}'s nodes", *node, *job_id)};
  }
  if (Status asked = IsAsked(*own, question); !asked) return asked.error();
  for (const SlurmJob& job : *jobs) {
    // Of a job that is only completing there slurmctld just forgets the node.
    if (SameJob(job, *own) || job.completing) continue;
    return Error{Errc::kDenied, fmt::format("{} is not set DOWN: job {} is on it too", *node, job.job_id)};
  }
  // An administrator's reason for a drain stays.
  const bool keep = state->drain && !state->reason.empty();
  const Status set = calls.UpdateNode(*node, NodeChange::kDown, keep ? "" : kReasonPrefix + *reason);
  if (!set) return set.error();
  return json{{"changed", true}};
}

Answered NodeDrain(Calls& calls, const json& question) {
  const auto node = NodeName(question);
  const auto reason = Text(question, "reason");
  if (!node) return Missing("node");
  if (!reason) return Missing("reason");
  const auto state = calls.LoadNode(*node);
  if (!state) return state.error();
  if (state->drain) return json{{"changed", false}};
  return Done(calls.UpdateNode(*node, NodeChange::kDrain, kReasonPrefix + *reason));
}

Answered NodeResume(Calls& calls, const json& question) {
  const auto node = NodeName(question);
  if (!node) return Missing("node");
  const auto state = calls.LoadNode(*node);
  if (!state) return state.error();
  if (!state->down && !state->drain) return json{{"changed", false}};
  if (!state->reason.starts_with(kReasonPrefix)) {
    return Error{Errc::kDenied,
                 fmt::format("{} is not resumed: it is {} for a reason that is not Muster's: {}", *node,
                             state->state, state->reason.empty() ? "none given" : state->reason)};
  }
  return Done(calls.UpdateNode(*node, NodeChange::kResume, ""));
}

Answered Requeue(Calls& calls, const json& question) {
  const auto restarts = Number(question, "restarts");
  if (!restarts) return Missing("restarts");
  const auto job = Load(calls, question);
  if (!job) return job.error();
  if (job->restart_count > *restarts) return json{{"requeued", true}};
  if (!job->batch) {
    return Error{Errc::kDenied,
                 fmt::format("job {} cannot be requeued: it has no batch script", job->job_id)};
  }
  if (!job->requeueable) {
    return Error{
        Errc::kDenied,
        fmt::format("job {} may not be requeued: it was submitted with --no-requeue, or slurm.conf says "
                    "JobRequeue=0 and it has no --requeue",
                    job->job_id)};
  }
  const bool failed = job->state == "FAILED" && Flag(question, "failed");
  if (job->state != "RUNNING" && job->state != "SUSPENDED" && job->state != "PENDING" &&
      job->state != "NODE_FAIL" && job->state != "PREEMPTED" && !failed) {
    return Error{Errc::kDenied,
                 fmt::format("job {} is not requeued: it has ended ({})", job->job_id, job->state)};
  }
  if (Flag(question, "check")) {
    json answer = {{"requeued", false}};
    if (job->het_leader != 0) answer["heterogeneous"] = true;
    return answer;
  }
  return Done(calls.Requeue(job->het_leader != 0 ? job->het_leader : job->job_id));
}

// Slurm writes the begin time when the last node has completed, so it can be moved only after that.
Answered Release(Calls& calls, const json& question) {
  const auto restarts = Number(question, "restarts");
  if (!restarts) return Missing("restarts");
  const auto jobs = LoadAll(calls, question);
  if (!jobs) return jobs.error();
  for (const SlurmJob& job : *jobs) {
    if (job.restart_count <= *restarts) {
      return Error{Errc::kDenied,
                   fmt::format("job {} has not been requeued: it is {}", job.job_id, job.state)};
    }
    if (job.completing) return json{{"released", false}, {"state", "its last run is completing"}};
    if (job.state != "PENDING" && job.state != "RUNNING") {
      return Error{Errc::kDenied, fmt::format("job {} was requeued, but is {} now", job.job_id, job.state)};
    }
  }
  const bool pending =
      std::any_of(jobs->begin(), jobs->end(), [](const SlurmJob& job) { return job.state == "PENDING"; });
  if (pending && !Flag(question, "settled"))
    return json{{"released", false}, {"pending", true}, {"state", "it is pending"}};
  for (const SlurmJob& job : *jobs) {
    if (job.state != "PENDING") continue;
    if (Status begun = calls.Begin(job.job_id); !begun) return begun.error();
  }
  return json{{"released", true}};
}

// What becomes of a job that has been released: a node on which its last run has not been cleaned up yet refuses its
// script, and then Slurm holds the job until somebody releases it; or requeues it once more, and puts it off again.
Answered Launched(Calls& calls, const json& question) {
  const auto restarts = Number(question, "restarts");
  if (!restarts) return Missing("restarts");
  const auto jobs = LoadAll(calls, question);
  if (!jobs) return jobs.error();
  json answer = {{"held", false}, {"waits", false}};
  for (const SlurmJob& job : *jobs) {
    if (job.state != "PENDING") continue;
    answer["waits"] = true;
    const bool once_more = job.put_off && job.restart_count > *restarts + 1;
    if (!job.launch_failed && !once_more) continue;
    answer["held"] = true;
    if (!Flag(question, "free")) continue;
    if (Status freed = job.launch_failed ? calls.Free(job.job_id) : calls.Begin(job.job_id); !freed)
      return freed.error();
  }
  return answer;
}

Answered Comment(Calls& calls, const json& question) {
  const auto text = Text(question, "text");
  if (!text) return Missing("text");
  const auto job = Load(calls, question);
  if (!job) return job.error();
  return Done(calls.SetAdminComment(job->job_id, *text));
}

Answered KillStep(Calls& calls, const json& question) {
  const auto job_id = Number(question, "job");
  const auto step_id = Number(question, "step");
  if (!job_id) return Missing("job");
  if (!step_id) return Missing("step");
  return Done(calls.KillStep(*job_id, *step_id));
}

Answered Cancel(Calls& calls, const json& question) {
  const auto job_id = Number(question, "job");
  if (!job_id) return Missing("job");
  return Done(calls.CancelJob(*job_id));
}

Answered Cluster(Calls& calls, const json& /*question*/) {
  auto name = calls.ClusterName();
  if (!name) return name.error();
  if (name->empty()) return Error{Errc::kInternal, "Slurm's ClusterName is empty"};
  return json{{"cluster", *name}};
}

struct Operation {
  const char* name;
  Answered (*run)(Calls&, const json&);
};

constexpr Operation kOperations[] = {
    {"cluster", Cluster},        {"job", Job},
    {"node_down", NodeDown},     {"node_drain", NodeDrain},
    {"node_resume", NodeResume}, {"requeue", Requeue},
    {"release", Release},        {"launched", Launched},
    {"comment", Comment},        {"kill_step", KillStep},
    {"cancel", Cancel},
};

Answered Run(Calls& calls, const json& question) {
  if (Number(question, "v") != kProtocol) {
    return Error{Errc::kInvalid,
                 fmt::format("this muster-slurm speaks version {} of its protocol", kProtocol)};
  }
  const auto name = Text(question, "do");
  for (const Operation& operation : kOperations) {
    if (name == operation.name) return operation.run(calls, question);
  }
  return Error{Errc::kInvalid, "no such question"};
}

}  // namespace

std::string Answer(Calls& calls, std::string_view line) {
  const json question = json::parse(line, nullptr, false);
  uint64_t id = 0;
  if (question.is_object()) {
    const auto it = question.find("id");
    if (it != question.end() && it->is_number_unsigned()) id = it->get<uint64_t>();
  }
  json reply;
  if (id == 0) {
    reply = ErrorReply(0, {Errc::kInvalid, "not a question: a JSON object with 'id' from 1"});
  } else if (const Answered answer = Run(calls, question)) {
    reply = {{"id", id}, {"ok", *answer}};
  } else {
    reply = ErrorReply(id, answer.error());
  }
  return reply.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace muster::slurm
