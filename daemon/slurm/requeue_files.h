// The requeues that are under way, each in a file of musterd's state directory: they outlive the daemon that began them.
#pragma once

#include <string>
#include <vector>

#include "daemon/slurm/requeue.h"

namespace muster::slurm {

// On one thread. With an empty directory nothing is kept.
class RequeueFiles {
 public:
  explicit RequeueFiles(std::string directory) : directory_(std::move(directory)) {}

  // What cannot be written is logged, and would be lost with the daemon.
  void Save(const RequeueRequest& request) const;
  void Remove(const RequeueRequest& request) const;
  // Those that an earlier daemon has left, without times. What is no such file is logged and removed.
  [[nodiscard]] std::vector<RequeueRequest> Load() const;

 private:
  [[nodiscard]] std::string PathOf(const RequeueRequest& request) const;

  const std::string directory_;
};

}  // namespace muster::slurm
