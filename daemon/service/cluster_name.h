// How this node's Slurm cluster is called. slurmctld says it once; a musterd that is started again while slurmctld is away finds it in
// a file. Everything on the loop's thread.
#pragma once

#include <functional>
#include <string>

#include "base/loop.h"
#include "daemon/slurm/slurm.h"

namespace muster {

class ClusterName {
 public:
  // `known` is called once: at once when `configured` is not empty, or `file` has the name. Slurm is asked until it answers.
  ClusterName(Loop& loop, Slurm& slurm, const std::string& configured, std::string file,
              std::function<void(const std::string&)> known);
  ~ClusterName();
  ClusterName(const ClusterName&) = delete;
  ClusterName& operator=(const ClusterName&) = delete;

 private:
  void Ask();
  void Answered(const Result<std::string>& name);

  Loop& loop_;
  Slurm& slurm_;
  const std::string file_;
  const std::function<void(const std::string&)> known_;
  std::string name_;
  bool said_ = false;  // that Slurm does not answer
  Loop::TimerId timer_ = 0;
};

}  // namespace muster
