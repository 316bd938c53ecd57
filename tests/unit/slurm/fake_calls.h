// A Slurm that is two tables; what is done to it is written down.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "daemon/slurm/helper/calls.h"

namespace muster::slurm {

class FakeCalls : public Calls {
 public:
  std::vector<SlurmJob> jobs;
  std::map<std::string, NodeState> nodes;
  std::vector<std::string> log;
  std::string name = "rack";

  SlurmJob& AddJob(uint32_t id, std::vector<std::string> on, const std::string& state = "RUNNING") {
    SlurmJob job;
    job.job_id = id;
    job.state = state;
    job.batch = true;
    job.requeueable = true;
    job.partition = "main";
    job.batch_host = on.empty() ? "" : on[0];
    for (const std::string& node : on) nodes.try_emplace(node);
    job.nodes = std::move(on);
    jobs.push_back(job);
    return jobs.back();
  }

  Result<std::string> ClusterName() override { return name; }
  Result<std::vector<SlurmJob>> LoadJob(uint32_t id) override {
    std::vector<SlurmJob> found;
    for (const SlurmJob& job : jobs) {
      if (job.job_id == id || (job.het_leader != 0 && job.het_leader == id)) found.push_back(job);
    }
    if (found.empty()) return Error{Errc::kNotFound, "no such job"};
    return found;
  }
  Result<std::vector<SlurmJob>> LoadJobsOn(const std::vector<std::string>& on) override {
    std::vector<SlurmJob> found;
    for (const SlurmJob& job : jobs) {
      const bool there = std::any_of(on.begin(), on.end(), [&](const std::string& node) {
        return std::find(job.nodes.begin(), job.nodes.end(), node) != job.nodes.end();
      });
      if (there) found.push_back(job);
    }
    return found;
  }
  Result<uint32_t> GraceTime(const std::string& /*partition*/) override { return 30; }
  Result<NodeState> LoadNode(const std::string& node) override {
    const auto it = nodes.find(node);
    if (it == nodes.end()) return Error{Errc::kNotFound, "no such node"};
    return it->second;
  }
  Status UpdateNode(const std::string& node, NodeChange change, const std::string& reason) override {
    constexpr const char* kNames[] = {"down", "drain", "resume"};
    return Note(std::string(kNames[static_cast<int>(change)]) + " " + node + " '" + reason + "'");
  }
  Status Requeue(uint32_t id) override { return Note("requeue " + std::to_string(id)); }
  Status Begin(uint32_t id) override { return Note("begin " + std::to_string(id)); }
  Status Free(uint32_t id) override { return Note("free " + std::to_string(id)); }
  Status SetAdminComment(uint32_t id, const std::string& text) override {
    return Note("comment " + std::to_string(id) + " '" + text + "'");
  }
  Status KillStep(uint32_t id, uint32_t step) override {
    return Note("kill " + std::to_string(id) + "." + std::to_string(step));
  }
  Status CancelJob(uint32_t id) override { return Note("cancel " + std::to_string(id)); }

 private:
  Status Note(std::string what) {
    log.push_back(std::move(what));
    return {};
  }
};

}  // namespace muster::slurm
