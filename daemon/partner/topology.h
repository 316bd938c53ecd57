// Which nodes fail together, as Slurm's topology.conf or topology.yaml says it: those below one leaf switch, or of one block.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"

namespace muster {

class Topology {
 public:
  // The text of a topology.conf(5): lines of SwitchName= (tree) or BlockName= (block) with Nodes=, with comments and
  // continued lines; other keys and upper switches say nothing about nodes. kInvalid with the line's number.
  static Result<Topology> Parse(std::string_view text);
  // The text of a topology.yaml(5) (Slurm 25.05 and later): a node is where the first topology with cluster_default says it is,
  // one that this says nothing of where the first of the others does. kInvalid with the line's number.
  static Result<Topology> ParseYaml(std::string_view text);
  // The leaf switch or block of a node, of several the first; "": the file names none.
  [[nodiscard]] std::string DomainOf(const std::string& node) const;

 private:
  std::unordered_map<std::string, std::string> domains_;
};

// The file, read again when it has changed. Thread-safe.
class TopologyFile {
 public:
  // A topology.yaml when its name ends so. "": where slurmd has it, which is /etc/slurm, or what slurmctld has sent it; of both
  // files the topology.yaml, as in Slurm.
  explicit TopologyFile(std::string path);
  // Reads the file; may block as long as its file system does. What is malformed is logged once, and leaves what was read before.
  void Refresh();
  // As of the last Refresh; empty before it, and while there is no file.
  [[nodiscard]] std::shared_ptr<const Topology> Now() const;

 private:
  const std::string path_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Topology> topology_ = std::make_shared<Topology>();
  std::string text_;  // that it was made of
};

}  // namespace muster
