// The environment that a member's program is started with. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/gang_options.h"

namespace muster {

// All that every member of a generation has in common.
struct ClusterSpec {
  struct Node {
    std::string name;
    std::vector<uint32_t> ranks;  // in the order of their local ids
    uint16_t lease_port = 0;      // first of 1 + ranks.size() ports that are free on that node
    std::string role;             // of all its members; "": the spec's
    wire::RoleKind kind = wire::RoleKind::kTracked;

    [[nodiscard]] bool Trains() const {
      return kind == wire::RoleKind::kTracked || kind == wire::RoleKind::kChief;
    }
  };
  std::string gang;
  uint64_t generation = 1;
  std::string role = "worker";  // of nodes that have none of their own
  std::string restart_cause;    // "" in the first generation
  uint32_t restarts_allowed = 0;
  std::vector<Node> nodes;  // that take part: no spares, in the order of their ranks

  [[nodiscard]] uint32_t MemberCount() const;
  [[nodiscard]] const std::string& RoleOf(const Node& node) const;
};

// Who does the same work together, and so is numbered together in what PyTorch, JAX, Horovod and Slurm's own variables
// say: the members of tracked roles and the chief are one such world, each other role is one of its own.
struct World {
  ClusterSpec spec;   // of its nodes only, with ranks from 0
  uint32_t node = 0;  // where the member's is in it

  // The rank in this world of a member of that node, by its rank in the gang.
  [[nodiscard]] uint32_t RankOf(const ClusterSpec& gang, uint32_t gang_rank) const;
};
// The same for all members of a node: make it once a generation.
World WorldOf(const ClusterSpec& spec, uint32_t node);

struct LocalFacts {
  std::string token;      // hexadecimal
  std::string socket;     // musterd's
  std::string spec_file;  // where the whole spec is, for when TF_CONFIG does not fit
  std::string files;      // muster-files, where directories are checkpoints; else ""
  // "KEY=VALUE" of what the fabric needs: a program keeps its own.
  std::vector<std::string> defaults;
};

// One environment string holds 128 KiB in Linux; above this many bytes TF_CONFIG is left out.
inline constexpr size_t kMaxTfConfig = 120 * 1024;

// TF_CONFIG's "cluster" object, the same for all members: make it once a generation. Roles in the order of their first
// rank; the evaluator and sidecars have no place in it, as TensorFlow wants.
std::string TfCluster(const ClusterSpec& spec);

// "KEY=VALUE" to set, "KEY?=VALUE" to set unless the user has, "KEY" to unset. `node` indexes spec.nodes, `local` its ranks; `mine` is that node's world.
std::vector<std::string> MemberEnvironment(const ClusterSpec& spec, const World& mine,
                                           const std::string& tf_cluster, uint32_t node, uint32_t local,
                                           const LocalFacts& facts);

}  // namespace muster
