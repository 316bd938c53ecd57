// Where nodes are in the network, as Slurm's topology.conf or topology.yaml says it: below which switches, or of which block.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace muster {

class Topology {
 public:
  // The text of a topology.conf(5): lines of SwitchName= (tree) or BlockName= (block) with Nodes= or Switches=, with comments
  // and continued lines; other keys say nothing about nodes. kInvalid with the line's number.
  static Result<Topology> Parse(std::string_view text);
  // The text of a topology.yaml(5) (Slurm 25.05 and later): a node is where the first topology with cluster_default says it is,
  // one that this says nothing of where the first of the others does. kInvalid with the line's number.
  static Result<Topology> ParseYaml(std::string_view text);
  // The leaf switch or block of a node, of several the first; "": the file names none. Those of one fail together.
  [[nodiscard]] std::string DomainOf(const std::string& node) const;
  // The switches above a node, from the root's to its leaf's; a block is one. Of several above one the first; no more than
  // kMaxSwitches, should a file have them in a circle.
  [[nodiscard]] std::vector<std::string> SwitchesOf(const std::string& node) const;
  static constexpr size_t kMaxSwitches = 32;

 private:
  // What the switch, or block, of this name has directly below it.
  void Add(const std::string& name, const std::vector<std::string>& nodes,
           const std::vector<std::string>& switches);

  std::unordered_map<std::string, std::string> domains_;  // by node
  std::unordered_map<std::string, std::string> above_;    // by switch
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
