#include "daemon/agent/member_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/hostlist.h"
#include "wire/gang_options.h"

namespace muster {
namespace {

// A member as the frameworks address it.
struct Address {
  uint32_t rank = 0;
  const ClusterSpec::Node* node = nullptr;
  uint32_t local = 0;

  [[nodiscard]] uint32_t Port() const { return node->lease_port + 1U + local; }
};

// The members of each role in the order of their ranks; roles in the order of their first rank.
struct RoleMembers {
  std::string_view name;
  std::vector<Address> members;
};

std::vector<RoleMembers> RolesOf(const ClusterSpec& spec) {
  std::vector<RoleMembers> roles;
  for (const ClusterSpec::Node& node : spec.nodes) {
    const std::string_view name = spec.RoleOf(node);
    auto role = std::find_if(roles.begin(), roles.end(), [&](const auto& r) { return r.name == name; });
    if (role == roles.end()) role = roles.insert(role, {name, {}});
    for (uint32_t local = 0; local < node.ranks.size(); ++local)
      role->members.push_back({node.ranks[local], &node, local});
  }
  const auto by_rank = [](const Address& a, const Address& b) { return a.rank < b.rank; };
  for (RoleMembers& role : roles) std::sort(role.members.begin(), role.members.end(), by_rank);
  std::erase_if(roles, [](const RoleMembers& role) { return role.members.empty(); });
  std::sort(roles.begin(), roles.end(), [](const RoleMembers& a, const RoleMembers& b) {
    return a.members.front().rank < b.members.front().rank;
  });
  return roles;
}

const RoleMembers* Find(const std::vector<RoleMembers>& roles, std::string_view name) {
  const auto found = std::find_if(roles.begin(), roles.end(), [&](const auto& r) { return r.name == name; });
  return found == roles.end() ? nullptr : &*found;
}

size_t Count(const RoleMembers* role) {
  return role == nullptr ? 0 : role->members.size();
}

// "2(x3),1": Slurm's way to say how many tasks the nodes have.
std::string TasksPerNode(const ClusterSpec& spec) {
  std::string text;
  for (size_t i = 0; i < spec.nodes.size();) {
    const size_t tasks = spec.nodes[i].ranks.size();
    const size_t from = i;
    while (i < spec.nodes.size() && spec.nodes[i].ranks.size() == tasks) ++i;
    if (!text.empty()) text += ',';
    text += i - from > 1 ? fmt::format("{}(x{})", tasks, i - from) : fmt::format("{}", tasks);
  }
  return text;
}

// The environment that is being put together.
class Variables {
 public:
  template <typename Value>
  void Set(std::string_view key, const Value& value) {
    list_.push_back(fmt::format("{}={}", key, value));
  }
  void SetUnlessSet(std::string_view key, std::string_view value) {
    list_.push_back(fmt::format("{}?={}", key, value));
  }
  void Unset(std::string_view key) { list_.emplace_back(key); }
  // Left out when the kernel would not take it: then nobody reads another generation's.
  void SetOrUnset(std::string_view key, const std::string& value) {
    if (value.size() <= kMaxTfConfig) return Set(key, value);
    Unset(key);
  }
  [[nodiscard]] std::vector<std::string> Take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// All that programs read to find their place among Slurm's tasks, as if the gang were the step.
void SetSlurm(const ClusterSpec& spec, uint32_t node, uint32_t local, Variables& out) {
  const ClusterSpec::Node& here = spec.nodes[node];
  const uint32_t world = spec.MemberCount();
  std::vector<std::string> names;
  names.reserve(spec.nodes.size());
  for (const ClusterSpec::Node& other : spec.nodes) names.push_back(other.name);
  const std::string list = CompressHostlist(names);
  const std::string tasks = TasksPerNode(spec);
  out.Set("SLURM_PROCID", here.ranks[local]);
  out.Set("SLURM_LOCALID", local);
  out.Set("SLURM_NODEID", node);
  for (const char* key : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) out.Set(key, world);
  for (const char* key : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"})
    out.Set(key, spec.nodes.size());
  for (const char* key : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
    out.SetOrUnset(key, list);
  for (const char* key : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) out.SetOrUnset(key, tasks);
  out.Set("SLURM_GTIDS", fmt::format("{}", fmt::join(here.ranks, ",")));
}

void SetTensorFlow(std::string_view role, size_t index, const std::string& cluster, const LocalFacts& facts,
                   Variables& out) {
  const std::string tf =
      fmt::format(R"({{"cluster": {}, "task": {{"type": "{}", "index": {}}}}})", cluster, role, index);
  if (tf.size() <= kMaxTfConfig) {
    out.Set("TF_CONFIG", tf);
    out.Unset("MUSTER_CLUSTER_SPEC");
  } else {
    out.Unset("TF_CONFIG");
    out.Set("MUSTER_CLUSTER_SPEC", facts.spec_file);
  }
}

// MXNet's parameter server (ps-lite), when the gang has its scheduler. A member of another role than those three has
// no part in it.
void SetMxNet(const std::vector<RoleMembers>& roles, std::string_view role, Variables& out) {
  const RoleMembers* scheduler = Find(roles, "scheduler");
  const RoleMembers* server = Find(roles, "server");
  const RoleMembers* worker = Find(roles, "worker");
  if (scheduler == nullptr) return;
  if (role == "scheduler" || role == "server" || role == "worker") {
    out.Set("DMLC_ROLE", role);
  } else {
    out.Unset("DMLC_ROLE");
  }
  const Address& root = scheduler->members.front();
  out.Set("DMLC_PS_ROOT_URI", root.node->name);
  out.Set("DMLC_PS_ROOT_PORT", root.Port());
  out.Set("DMLC_NUM_SERVER", Count(server));
  out.Set("DMLC_NUM_WORKER", Count(worker));
}

// Horovod's "cross" is a member's place among those with its local rank.
void SetHorovod(const ClusterSpec& spec, uint32_t node, uint32_t local, Variables& out) {
  const ClusterSpec::Node& here = spec.nodes[node];
  size_t cross_rank = 0;
  size_t cross_size = 0;
  for (uint32_t i = 0; i < spec.nodes.size(); ++i) {
    if (spec.nodes[i].ranks.size() <= local) continue;
    ++cross_size;
    if (i < node) ++cross_rank;
  }
  out.Set("HOROVOD_RANK", here.ranks[local]);
  out.Set("HOROVOD_SIZE", spec.MemberCount());
  out.Set("HOROVOD_LOCAL_RANK", local);
  out.Set("HOROVOD_LOCAL_SIZE", here.ranks.size());
  out.Set("HOROVOD_CROSS_RANK", cross_rank);
  out.Set("HOROVOD_CROSS_SIZE", cross_size);
  out.Set("HOROVOD_HOSTNAME", here.name);
}

}  // namespace

uint32_t ClusterSpec::MemberCount() const {
  size_t size = 0;
  for (const Node& node : nodes) size += node.ranks.size();
  return static_cast<uint32_t>(size);
}

const std::string& ClusterSpec::RoleOf(const Node& node) const {
  return node.role.empty() ? role : node.role;
}

World WorldOf(const ClusterSpec& spec, uint32_t node) {
  const auto trains = [](const ClusterSpec::Node& n) { return n.Trains(); };
  World world{spec, node};
  const ClusterSpec::Node& here = spec.nodes[node];
  const bool any = std::any_of(spec.nodes.begin(), spec.nodes.end(), trains);
  const auto together = [&](const ClusterSpec::Node& other) {
    return !any || (here.Trains() ? other.Trains() : spec.RoleOf(other) == spec.RoleOf(here));
  };
  if (std::all_of(spec.nodes.begin(), spec.nodes.end(), together)) return world;
  world.spec.nodes.clear();
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < spec.nodes.size(); ++i) {
    if (!together(spec.nodes[i])) continue;
    if (i == node) world.node = static_cast<uint32_t>(world.spec.nodes.size());
    world.spec.nodes.push_back(spec.nodes[i]);
    ranks.insert(ranks.end(), spec.nodes[i].ranks.begin(), spec.nodes[i].ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  for (ClusterSpec::Node& one : world.spec.nodes) {
    for (uint32_t& rank : one.ranks)
      rank = static_cast<uint32_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  return world;
}

uint32_t World::RankOf(const ClusterSpec& gang, uint32_t gang_rank) const {
  for (const ClusterSpec::Node& other : gang.nodes) {
    const auto found = std::find(other.ranks.begin(), other.ranks.end(), gang_rank);
    if (found == other.ranks.end() || node >= spec.nodes.size() || other.name != spec.nodes[node].name)
      continue;
    return spec.nodes[node].ranks[static_cast<size_t>(found - other.ranks.begin())];
  }
  return gang_rank;
}

std::string TfCluster(const ClusterSpec& spec) {
  std::string cluster;
  for (const RoleMembers& role : RolesOf(spec)) {
    // TensorFlow's own rules: an evaluator is no part of the cluster that it evaluates, a sidecar is unknown to it.
    const std::string name(role.name);
    if (name == "evaluator" || wire::KindOfRole(name.c_str()) == wire::RoleKind::kSidecar) continue;
    std::vector<std::string> addresses;
    addresses.reserve(role.members.size());
    // Role and host names are validated where they come in: nothing in them needs quoting.
    for (const Address& member : role.members)
      addresses.push_back(fmt::format("\"{}:{}\"", member.node->name, member.Port()));
    cluster += fmt::format("{}\"{}\": [{}]", cluster.empty() ? "" : ", ", name, fmt::join(addresses, ", "));
  }
  return "{" + cluster + "}";
}

std::vector<std::string> MemberEnvironment(const ClusterSpec& spec, const World& mine,
                                           const std::string& tf_cluster, uint32_t node, uint32_t local,
                                           const LocalFacts& facts) {
  const ClusterSpec::Node& here = spec.nodes[node];
  const uint32_t gang_rank = here.ranks[local];
  const uint32_t rank = mine.spec.nodes[mine.node].ranks[local];
  const uint32_t world = mine.spec.MemberCount();
  const ClusterSpec::Node* first = &mine.spec.nodes[mine.node];
  for (const ClusterSpec::Node& other : mine.spec.nodes) {
    if (std::find(other.ranks.begin(), other.ranks.end(), 0U) != other.ranks.end()) first = &other;
  }
  const std::vector<RoleMembers> roles = RolesOf(spec);
  const std::string& role = spec.RoleOf(here);
  const std::vector<Address>& peers = Find(roles, role)->members;
  const auto me =
      std::find_if(peers.begin(), peers.end(), [&](const Address& a) { return a.rank == gang_rank; });
  const auto role_rank = static_cast<size_t>(me - peers.begin());

  Variables out;
  // PyTorch's env:// and what torchrun adds to it.
  out.Set("MASTER_ADDR", first->name);
  out.Set("MASTER_PORT", first->lease_port);
  out.Set("RANK", rank);
  out.Set("LOCAL_RANK", local);
  out.Set("WORLD_SIZE", world);
  out.Set("LOCAL_WORLD_SIZE", here.ranks.size());
  out.Set("GROUP_RANK", mine.node);
  out.Set("GROUP_WORLD_SIZE", mine.spec.nodes.size());
  out.Set("ROLE_NAME", role);
  out.Set("ROLE_RANK", role_rank);
  out.Set("ROLE_WORLD_SIZE", peers.size());
  out.Set("TORCHELASTIC_RUN_ID", spec.gang);
  out.Set("TORCHELASTIC_RESTART_COUNT", spec.generation - 1);
  out.Set("TORCHELASTIC_MAX_RESTARTS", spec.restarts_allowed);
  out.Set("JAX_COORDINATOR_ADDRESS", fmt::format("{}:{}", first->name, first->lease_port));
  out.Set("JAX_NUM_PROCESSES", world);
  out.Set("JAX_PROCESS_ID", rank);
  SetHorovod(mine.spec, mine.node, local, out);
  SetTensorFlow(role, role_rank, tf_cluster, facts, out);
  SetMxNet(roles, role, out);
  SetSlurm(mine.spec, mine.node, local, out);
  out.Set("MUSTER_GANG", spec.gang);
  out.Set("MUSTER_GENERATION", spec.generation);
  out.Set("MUSTER_RANK", gang_rank);
  out.Set("MUSTER_ROLE", role);
  out.Set("MUSTER_ROLE_RANK", role_rank);
  std::string sizes;
  for (const RoleMembers& one : roles)
    sizes += fmt::format("{}{}={}", sizes.empty() ? "" : ",", one.name, one.members.size());
  out.Set("MUSTER_ROLES", sizes);
  out.Set("MUSTER_RESTART_CAUSE", spec.restart_cause);
  out.Set("MUSTER_TOKEN", facts.token);
  out.Set("MUSTER_SOCKET", facts.socket);
  // For the supervisor, which starts it and tells the program its directory (spank-plugin/supervisor/files_process.h).
  if (!facts.files.empty()) out.Set("MUSTER_FILES", facts.files);
  for (const std::string& one : facts.defaults) {
    const size_t equals = one.find('=');
    out.SetUnlessSet(one.substr(0, equals), one.substr(equals + 1));
  }
  return out.Take();
}

}  // namespace muster
