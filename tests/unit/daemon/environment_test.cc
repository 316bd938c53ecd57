#include "daemon/agent/environment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

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
  spec.nodes = {{"n1", {2, 3}, 20100}, {"n2", {0, 1}, 20200}};
  return spec;
}

const LocalFacts kFacts{"00ff", "/run/muster/musterd.sock", "/run/muster/gangs/12.0.json.cluster"};

// What is set; a key that is to be unset has no value.
std::map<std::string, std::optional<std::string>> Of(const ClusterSpec& spec, uint32_t node, uint32_t local) {
  std::map<std::string, std::optional<std::string>> environment;
  for (const std::string& entry : MemberEnvironment(spec, TfCluster(spec), node, local, kFacts)) {
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
        {fmt::format("a-long-node-name-{:05}", i), {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}, 20000});
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
    for (const std::string& entry : MemberEnvironment(spec, TfCluster(spec), 0, 0, kFacts)) {
      EXPECT_LT(entry.size(), 128U * 1024) << nodes << ": " << entry.substr(0, 40);
    }
  }
}

TEST(Environment, TheWholeSpecIsJsonHoweverLarge) {
  const json cluster = json::parse(TfCluster(Large(2'000)));
  EXPECT_EQ(cluster["worker"].size(), 8'000U);
}

}  // namespace
}  // namespace muster
