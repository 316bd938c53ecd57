#include "daemon/agent/member_environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "wire/files_protocol.h"
#include "wire/member_variables.h"
#include "wire/warm_protocol.h"

namespace muster {
namespace {

using nlohmann::json;

ClusterSpec Spec() {
  ClusterSpec spec;
  spec.gang = "12.0";
  spec.generation = 3;
  spec.role = "worker";
  spec.restart_cause = "rank 1 on n2 exited with code 1";
  spec.restarts_allowed = 5;
  spec.nodes = {{"n1", {2, 3}, 20100, ""}, {"n2", {0, 1}, 20200, ""}};
  return spec;
}

const LocalFacts kFacts{"00ff", "/run/muster/musterd.sock", "/run/muster/gangs/12.0.json.cluster"};

// What is set; a key that is to be unset has no value.
std::map<std::string, std::optional<std::string>> Of(const ClusterSpec& spec, uint32_t node, uint32_t local) {
  std::map<std::string, std::optional<std::string>> environment;
  for (const std::string& entry :
       MemberEnvironment(spec, WorldOf(spec, node), TfCluster(spec), node, local, kFacts)) {
    const size_t equals = entry.find('=');
    const bool fresh =
        environment
            .emplace(entry.substr(0, equals),
                     equals == std::string::npos ? std::nullopt : std::optional(entry.substr(equals + 1)))
            .second;
    EXPECT_TRUE(fresh) << entry << " is there twice";
  }
  return environment;
}

TEST(Environment, HasPyTorchsVariables) {
  const auto e = Of(Spec(), 0, 1);
  EXPECT_EQ(e.at("MASTER_ADDR"), "n2") << "where rank 0 is";
  EXPECT_EQ(e.at("MASTER_PORT"), "20200");
  EXPECT_EQ(e.at("RANK"), "3");
  EXPECT_EQ(e.at("LOCAL_RANK"), "1");
  EXPECT_EQ(e.at("WORLD_SIZE"), "4");
  EXPECT_EQ(e.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(e.at("GROUP_RANK"), "0");
  EXPECT_EQ(e.at("TORCHELASTIC_RESTART_COUNT"), "2");
  EXPECT_EQ(e.at("TORCHELASTIC_MAX_RESTARTS"), "5");
}

// srun unsets these for a step that a member starts.
TEST(Environment, WhatIdentifiesAMemberIsInTheListForItsSteps) {
  ClusterSpec spec = Spec();
  spec.nodes[0].role = "scheduler";
  spec.nodes[1].role = "worker";
  LocalFacts facts = kFacts;
  facts.files = "/usr/libexec/muster-files";
  facts.defaults = {"NCCL_IB_TC=106"};
  std::set<std::string> set;
  for (const std::string& entry : MemberEnvironment(spec, WorldOf(spec, 0), TfCluster(spec), 0, 0, facts)) {
    const std::string key = entry.substr(0, entry.find('='));
    if (!key.starts_with("SLURM_") && !key.ends_with('?')) set.insert(key);
  }
  // The supervisor's.
  set.insert({wire::kCheckpointVariable, wire::kWarmVariable});
  EXPECT_EQ(set, std::set<std::string>(std::begin(wire::kMemberVariables), std::end(wire::kMemberVariables)));
}

TEST(Environment, EveryMemberFindsTheSameRankZero) {
  for (const uint32_t node : {0, 1}) {
    for (const uint32_t local : {0, 1}) {
      const auto e = Of(Spec(), node, local);
      EXPECT_EQ(e.at("MASTER_ADDR"), "n2");
      EXPECT_EQ(e.at("MASTER_PORT"), "20200");
      EXPECT_EQ(e.at("JAX_COORDINATOR_ADDRESS"), "n2:20200");
    }
  }
}

TEST(Environment, TellsTheProgramWhereItIsAndWhy) {
  const auto e = Of(Spec(), 1, 0);
  EXPECT_EQ(e.at("MUSTER_GANG"), "12.0");
  EXPECT_EQ(e.at("MUSTER_GENERATION"), "3");
  EXPECT_EQ(e.at("MUSTER_ROLE"), "worker");
  EXPECT_EQ(e.at("MUSTER_RESTART_CAUSE"), "rank 1 on n2 exited with code 1");
  EXPECT_EQ(e.at("MUSTER_TOKEN"), "00ff");
  EXPECT_EQ(e.at("MUSTER_SOCKET"), "/run/muster/musterd.sock");
}

TEST(Environment, WhatTheFabricNeedsIsSetUnlessTheProgramHasItsOwn) {
  LocalFacts facts = kFacts;
  facts.defaults = {"NCCL_IB_HCA==mlx5_0:1,mlx5_1:1", "NCCL_IB_TC=106"};
  const ClusterSpec spec = Spec();
  EXPECT_THAT(MemberEnvironment(spec, WorldOf(spec, 0), TfCluster(spec), 0, 0, facts),
              testing::IsSupersetOf({"NCCL_IB_HCA?==mlx5_0:1,mlx5_1:1", "NCCL_IB_TC?=106"}));
}

TEST(Environment, TfConfigIsJsonWithTheTasksInRankOrder) {
  const auto e = Of(Spec(), 0, 0);
  const json tf = json::parse(*e.at("TF_CONFIG"));
  EXPECT_EQ(tf["cluster"]["worker"], json({"n2:20201", "n2:20202", "n1:20101", "n1:20102"}));
  EXPECT_EQ(tf["task"]["type"], "worker");
  EXPECT_EQ(tf["task"]["index"], 2);
  EXPECT_FALSE(e.at("MUSTER_CLUSTER_SPEC")) << "unset: a generation before may have had it";
}

ClusterSpec Large(uint32_t nodes) {
  ClusterSpec spec = Spec();
  spec.nodes.clear();
  for (uint32_t i = 0; i < nodes; ++i) {
    spec.nodes.push_back(
        {fmt::format("a-long-node-name-{:05}", i), {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}, 20000, ""});
  }
  return spec;
}

TEST(Environment, ATfConfigThatDoesNotFitIsLeftOutAndAFileIsNamed) {
  const auto e = Of(Large(2'000), 0, 0);
  EXPECT_FALSE(e.at("TF_CONFIG")) << "unset: the user's own would be wrong";
  EXPECT_EQ(e.at("MUSTER_CLUSTER_SPEC"), kFacts.spec_file);
}

TEST(Environment, NoStringIsLongerThanTheKernelTakes) {
  for (const uint32_t nodes : {1U, 900U, 1'000U, 1'100U, 1'200U, 16'000U}) {
    const ClusterSpec spec = Large(nodes);
    for (const std::string& entry :
         MemberEnvironment(spec, WorldOf(spec, 0), TfCluster(spec), 0, 0, kFacts)) {
      EXPECT_LT(entry.size(), 128U * 1024) << nodes << ": " << entry.substr(0, 40);
    }
  }
}

TEST(Environment, TheWholeSpecIsJsonHoweverLarge) {
  const json cluster = json::parse(TfCluster(Large(2'000)));
  EXPECT_EQ(cluster["worker"].size(), 8'000U);
}

TEST(Environment, SlurmsVariablesSayWhereTheMemberIsInTheGangNotInTheStep) {
  ClusterSpec spec = Spec();
  spec.nodes = {{"n1", {0, 1}, 20100, ""}, {"n5", {2, 3}, 20100, ""}, {"n4", {4}, 20100, ""}};
  const auto e = Of(spec, 1, 1);
  EXPECT_EQ(e.at("SLURM_PROCID"), "3");
  EXPECT_EQ(e.at("SLURM_LOCALID"), "1");
  EXPECT_EQ(e.at("SLURM_NODEID"), "1");
  for (const char* key : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"})
    EXPECT_EQ(e.at(key), "5") << key;
  for (const char* key : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"})
    EXPECT_EQ(e.at(key), "3") << key;
  for (const char* key : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
    EXPECT_EQ(e.at(key), "n[1,5,4]") << key << ": in the order of SLURM_NODEID";
  EXPECT_EQ(e.at("SLURM_TASKS_PER_NODE"), "2(x2),1");
  EXPECT_EQ(e.at("SLURM_STEP_TASKS_PER_NODE"), "2(x2),1");
  EXPECT_EQ(e.at("SLURM_GTIDS"), "2,3");
}

TEST(Environment, HorovodsCrossRankCountsNodesThatHaveTheLocalRank) {
  ClusterSpec spec = Spec();
  spec.nodes = {{"n1", {0}, 20100, ""}, {"n2", {1, 2}, 20100, ""}, {"n3", {3, 4}, 20100, ""}};
  const auto e = Of(spec, 2, 1);
  EXPECT_EQ(e.at("HOROVOD_RANK"), "4");
  EXPECT_EQ(e.at("HOROVOD_SIZE"), "5");
  EXPECT_EQ(e.at("HOROVOD_LOCAL_SIZE"), "2");
  EXPECT_EQ(e.at("HOROVOD_CROSS_RANK"), "1");
  EXPECT_EQ(e.at("HOROVOD_CROSS_SIZE"), "2");
  EXPECT_EQ(Of(spec, 2, 0).at("HOROVOD_CROSS_SIZE"), "3");
}

// A heterogeneous job: a chief, two parameter servers on one node, three workers on two, an evaluator, TensorBoard.
ClusterSpec TensorFlowSpec() {
  ClusterSpec spec = Spec();
  spec.nodes = {{"c", {0}, 20000, "chief", wire::RoleKind::kChief},
                {"p", {4, 5}, 20100, "ps", wire::RoleKind::kService},
                {"w1", {1, 2}, 20200, ""},
                {"w2", {3}, 20300, ""},
                {"e", {6}, 20400, "evaluator", wire::RoleKind::kUntracked},
                {"t", {7}, 20500, "tensorboard", wire::RoleKind::kSidecar}};
  return spec;
}

TEST(Environment, TfConfigHasEveryRoleWithItsOwnIndices) {
  const auto e = Of(TensorFlowSpec(), 3, 0);
  const json tf = json::parse(*e.at("TF_CONFIG"));
  EXPECT_EQ(tf["cluster"], json({{"chief", {"c:20001"}},
                                 {"ps", {"p:20101", "p:20102"}},
                                 {"worker", {"w1:20201", "w1:20202", "w2:20301"}}}));
  EXPECT_EQ(tf["task"], json({{"type", "worker"}, {"index", 2}}));
  EXPECT_EQ(e.at("MUSTER_RANK"), "3") << "of the whole gang";
  EXPECT_EQ(e.at("MUSTER_ROLE"), "worker");
  EXPECT_EQ(e.at("MUSTER_ROLE_RANK"), "2");
  EXPECT_EQ(e.at("MUSTER_ROLES"), "chief=1,worker=3,ps=2,evaluator=1,tensorboard=1");
  EXPECT_EQ(e.at("ROLE_NAME"), "worker");
  EXPECT_EQ(e.at("ROLE_RANK"), "2");
  EXPECT_EQ(e.at("ROLE_WORLD_SIZE"), "3");
  EXPECT_FALSE(e.contains("DMLC_ROLE"));
}

TEST(Environment, TheChiefAndTheWorkersAreOneWorld) {
  for (const auto& [node, local, rank] :
       {std::tuple{0U, 0U, "0"}, {2U, 0U, "1"}, {2U, 1U, "2"}, {3U, 0U, "3"}}) {
    const auto e = Of(TensorFlowSpec(), node, local);
    EXPECT_EQ(e.at("RANK"), rank);
    EXPECT_EQ(e.at("WORLD_SIZE"), "4");
    EXPECT_EQ(e.at("MASTER_ADDR"), "c");
    EXPECT_EQ(e.at("MASTER_PORT"), "20000");
    EXPECT_EQ(e.at("GROUP_WORLD_SIZE"), "3");
    EXPECT_EQ(e.at("SLURM_PROCID"), rank);
    EXPECT_EQ(e.at("SLURM_NTASKS"), "4");
    EXPECT_EQ(e.at("SLURM_JOB_NODELIST"), "c,w[1-2]");
    EXPECT_EQ(e.at("JAX_NUM_PROCESSES"), "4");
    EXPECT_EQ(e.at("HOROVOD_RANK"), rank);
  }
}

TEST(Environment, AnyOtherRoleIsAWorldOfItsOwn) {
  const auto ps = Of(TensorFlowSpec(), 1, 1);
  EXPECT_EQ(ps.at("RANK"), "1");
  EXPECT_EQ(ps.at("MUSTER_RANK"), "5");
  EXPECT_EQ(ps.at("WORLD_SIZE"), "2");
  EXPECT_EQ(ps.at("MASTER_ADDR"), "p");
  EXPECT_EQ(ps.at("MASTER_PORT"), "20100");
  EXPECT_EQ(ps.at("GROUP_RANK"), "0");
  EXPECT_EQ(ps.at("SLURM_NNODES"), "1");
  EXPECT_EQ(Of(TensorFlowSpec(), 5, 0).at("WORLD_SIZE"), "1") << "and not the evaluator's";
}

TEST(Environment, WhereNobodyTrainsAllAreOneWorld) {
  ClusterSpec spec = Spec();
  spec.nodes = {{"p", {0}, 20000, "ps", wire::RoleKind::kService},
                {"e", {1}, 20100, "evaluator", wire::RoleKind::kUntracked}};
  EXPECT_EQ(Of(spec, 1, 0).at("RANK"), "1");
  EXPECT_EQ(Of(spec, 1, 0).at("WORLD_SIZE"), "2");
}

TEST(Environment, AnEvaluatorIsATaskButNoPartOfTensorFlowsCluster) {
  const json tf = json::parse(*Of(TensorFlowSpec(), 4, 0).at("TF_CONFIG"));
  EXPECT_EQ(tf["task"], json({{"type", "evaluator"}, {"index", 0}}));
  EXPECT_FALSE(tf["cluster"].contains("evaluator"));
  EXPECT_TRUE(tf["cluster"].contains("chief"));
}

ClusterSpec MxNetSpec() {
  ClusterSpec spec = Spec();
  spec.nodes = {{"s", {0}, 20000, "scheduler"},
                {"v", {1, 2}, 20100, "server"},
                {"w1", {3, 4}, 20200, ""},
                {"w2", {5}, 20300, ""},
                {"x", {6}, 20400, "log"}};
  return spec;
}

TEST(Environment, MxNetsServersWorkersAndSchedulerFindOneAnother) {
  const std::pair<uint32_t, const char*> roles[] = {{0, "scheduler"}, {1, "server"}, {2, "worker"}};
  for (const auto& [node, role] : roles) {
    const auto e = Of(MxNetSpec(), node, 0);
    EXPECT_EQ(e.at("DMLC_ROLE"), role);
    EXPECT_EQ(e.at("DMLC_PS_ROOT_URI"), "s");
    EXPECT_EQ(e.at("DMLC_PS_ROOT_PORT"), "20001");
    EXPECT_EQ(e.at("DMLC_NUM_SERVER"), "2");
    EXPECT_EQ(e.at("DMLC_NUM_WORKER"), "3");
  }
  EXPECT_FALSE(Of(MxNetSpec(), 4, 0).at("DMLC_ROLE")) << "a role that ps-lite does not know";
}

TEST(Environment, RolesThatAreOnSeveralNodesApartAreCountedTogether) {
  ClusterSpec spec = Spec();
  spec.nodes = {{"a", {0}, 20000, "worker"}, {"b", {1}, 20100, "ps"}, {"c", {2}, 20200, "worker"}};
  const json tf = json::parse(*Of(spec, 2, 0).at("TF_CONFIG"));
  EXPECT_EQ(tf["cluster"]["worker"], json({"a:20001", "c:20201"}));
  EXPECT_EQ(tf["task"]["index"], 1);
}

}  // namespace
}  // namespace muster
