// Which nodes fail together, as Slurm's topology.conf says it: those below one leaf switch, or of one block.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "daemon/base/result.h"

namespace muster {

class Topology {
 public:
  // The text of a topology.conf(5): lines of SwitchName= (tree) or BlockName= (block) with Nodes=, with comments and
  // continued lines; other keys and upper switches say nothing about nodes. kInvalid with the line's number.
  static Result<Topology> Parse(std::string_view text);
  // The leaf switch or block of a node, of several the first; "": the file names none.
  [[nodiscard]] std::string DomainOf(const std::string& node) const;

 private:
  std::unordered_map<std::string, std::string> domains_;
};

// The file, read again when it has changed. Thread-safe.
class TopologyFile {
 public:
  // "": where slurmd has it, which is /etc/slurm, or what slurmctld has sent it.
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
