#include "daemon/agent/environment.h"

#include <fmt/format.h>

namespace muster {

uint32_t ClusterSpec::WorldSize() const {
  size_t size = 0;
  for (const Node& node : nodes) size += node.ranks.size();
  return static_cast<uint32_t>(size);
}

std::string TfCluster(const ClusterSpec& spec) {
  std::vector<std::string> addresses(spec.WorldSize());
  for (const ClusterSpec::Node& node : spec.nodes) {
    for (size_t i = 0; i < node.ranks.size(); ++i) {
      if (node.ranks[i] < addresses.size()) {
        addresses[node.ranks[i]] = fmt::format("\"{}:{}\"", node.name, node.lease_port + 1 + i);
      }
    }
  }
  // Role and host names are validated where they come in: nothing in them needs quoting.
  return fmt::format("{{\"{}\": [{}]}}", spec.role, fmt::join(addresses, ", "));
}

std::vector<std::string> MemberEnvironment(const ClusterSpec& spec, const std::string& tf_cluster,
                                           uint32_t node, uint32_t local, const LocalFacts& facts) {
  const ClusterSpec::Node& here = spec.nodes[node];
  const uint32_t rank = here.ranks[local];
  const uint32_t world = spec.WorldSize();
  const ClusterSpec::Node* first = &here;
  for (const ClusterSpec::Node& other : spec.nodes) {
    for (const uint32_t r : other.ranks) {
      if (r == 0) first = &other;
    }
  }
  std::vector<std::string> environment;
  const auto set = [&](const char* key, const auto& value) {
    environment.push_back(fmt::format("{}={}", key, value));
  };
  // PyTorch's env:// and what torchrun adds to it.
  set("MASTER_ADDR", first->name);
  set("MASTER_PORT", first->lease_port);
  set("RANK", rank);
  set("LOCAL_RANK", local);
  set("WORLD_SIZE", world);
  set("LOCAL_WORLD_SIZE", here.ranks.size());
  set("GROUP_RANK", node);
  set("GROUP_WORLD_SIZE", spec.nodes.size());
  set("ROLE_NAME", spec.role);
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world);
  set("TORCHELASTIC_RUN_ID", spec.gang);
  set("TORCHELASTIC_RESTART_COUNT", spec.generation - 1);
  set("TORCHELASTIC_MAX_RESTARTS", spec.restarts_allowed);
  // JAX and Horovod.
  set("JAX_COORDINATOR_ADDRESS", fmt::format("{}:{}", first->name, first->lease_port));
  set("JAX_NUM_PROCESSES", world);
  set("JAX_PROCESS_ID", rank);
  set("HOROVOD_RANK", rank);
  set("HOROVOD_SIZE", world);
  set("HOROVOD_LOCAL_RANK", local);
  set("HOROVOD_LOCAL_SIZE", here.ranks.size());
  set("HOROVOD_CROSS_RANK", node);
  set("HOROVOD_CROSS_SIZE", spec.nodes.size());
  // TensorFlow.
  const std::string tf =
      fmt::format(R"({{"cluster": {}, "task": {{"type": "{}", "index": {}}}}})", tf_cluster, spec.role, rank);
  if (tf.size() <= kMaxTfConfig) {
    set("TF_CONFIG", tf);
    environment.emplace_back("MUSTER_CLUSTER_SPEC");
  } else {
    environment.emplace_back("TF_CONFIG");
    set("MUSTER_CLUSTER_SPEC", facts.spec_file);
  }
  set("MUSTER_GANG", spec.gang);
  set("MUSTER_GENERATION", spec.generation);
  set("MUSTER_ROLE", spec.role);
  set("MUSTER_RESTART_CAUSE", spec.restart_cause);
  set("MUSTER_TOKEN", facts.token);
  set("MUSTER_SOCKET", facts.socket);
  return environment;
}

}  // namespace muster
