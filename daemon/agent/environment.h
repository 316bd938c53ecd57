// The environment that a member's program is started with. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// All that every member of a generation has in common.
struct ClusterSpec {
  struct Node {
    std::string name;
    std::vector<uint32_t> ranks;  // in the order of their local ids
    uint16_t lease_port = 0;      // first of 1 + ranks.size() ports that are free on that node
  };
  std::string gang;
  uint64_t generation = 1;
  std::string role = "worker";
  std::string restart_cause;  // "" in the first generation
  uint32_t restarts_allowed = 0;
  std::vector<Node> nodes;

  [[nodiscard]] uint32_t WorldSize() const;
};

struct LocalFacts {
  std::string token;      // hexadecimal
  std::string socket;     // musterd's
  std::string spec_file;  // where the whole spec is, for when TF_CONFIG does not fit
};

// One environment string holds 128 KiB in Linux; above this many bytes TF_CONFIG is left out.
inline constexpr size_t kMaxTfConfig = 120 * 1024;

// TF_CONFIG's "cluster" object, the same for all members: make it once a generation.
std::string TfCluster(const ClusterSpec& spec);

// "KEY=VALUE" to set, "KEY" to unset. `node` indexes spec.nodes, `local` its ranks.
std::vector<std::string> MemberEnvironment(const ClusterSpec& spec, const std::string& tf_cluster,
                                           uint32_t node, uint32_t local, const LocalFacts& facts);

}  // namespace muster
