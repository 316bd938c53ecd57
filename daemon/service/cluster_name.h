// How this node's Slurm cluster is called: as muster.yaml says, else slurmctld, which is asked until it answers. A musterd that is
// started again finds it in a file, and keeps to that: what runs has its record and its checkpoints under the name that it began with.
// Everything on the loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/loop.h"
#include "daemon/slurm/slurm.h"

namespace muster {

class ClusterName {
 public:
  // `known` is called once, perhaps from here. `configured`: "" for Slurm's.
  ClusterName(Loop& loop, Slurm& slurm, const std::string& configured, std::string file,
              std::function<void(const std::string&)> known);
  ~ClusterName();
  ClusterName(const ClusterName&) = delete;
  ClusterName& operator=(const ClusterName&) = delete;

 private:
  void Ask();
  void Hear(const std::string& name);

  Loop& loop_;
  Slurm& slurm_;
  const std::string file_;
  const std::function<void(const std::string&)> known_;
  std::string name_;
  std::chrono::milliseconds pause_{0};  // before Slurm is asked again
  Loop::TimerId timer_ = 0;
};

}  // namespace muster
