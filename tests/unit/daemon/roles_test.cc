#include "daemon/coordinator/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;

gang::Settings Of(const std::string& components) {
  GangJob job;
  job.job_id = 12;
  job.task_count = 4;
  job.node_list = "n[1-4]";
  job.components_text = components.empty() ? "" : "job=12 tasks=1(x4)\n" + components;
  if (components.empty()) job.options_text = "role=chief,spares=1,min=2";
  const Status complete = job.Complete();
  EXPECT_TRUE(complete) << complete.error().message;
  gang::Settings settings;
  SetRoles(job, &settings);
  return settings;
}

std::vector<std::string> Names(const gang::Settings& settings) {
  std::vector<std::string> names;
  for (const gang::Role& role : settings.roles) names.push_back(role.name);
  return names;
}

TEST(Roles, AStepOfOneComponentHasOne) {
  const gang::Settings settings = Of("");
  EXPECT_THAT(Names(settings), ElementsAre("chief"));
  EXPECT_EQ(settings.roles[0].kind, gang::RoleKind::kTracked) << "there is nobody whose chief it could be";
  EXPECT_EQ(settings.roles[0].spares, 1U);
  EXPECT_EQ(settings.roles[0].min_nodes, 2U);
  EXPECT_TRUE(settings.node_roles.empty());
}

TEST(Roles, WhoTrainsComesFirstTheChiefBeforeAll) {
  const gang::Settings settings =
      Of("12 n4 role=tensorboard\n13 n3 role=ps\n14 n2 role=worker\n15 n1 role=chief\n");
  EXPECT_THAT(Names(settings), ElementsAre("chief", "worker", "ps", "tensorboard"));
  EXPECT_THAT(settings.node_roles, ElementsAre(0U, 1U, 2U, 3U));
  EXPECT_EQ(settings.roles[0].kind, gang::RoleKind::kChief);
  EXPECT_EQ(settings.roles[2].kind, gang::RoleKind::kService);
}

TEST(Roles, OfOneNameInTwoComponentsHaveTheirOwnSpares) {
  const gang::Settings settings = Of("12 n[1-2] spares=1\n13 n3 role=worker\n14 n4 role=ps,after=worker\n");
  EXPECT_THAT(Names(settings), ElementsAre("worker", "worker", "ps"));
  EXPECT_EQ(settings.roles[0].spares, 1U);
  EXPECT_EQ(settings.roles[1].spares, 0U);
  EXPECT_EQ(settings.roles[2].after, 0U);
  EXPECT_FALSE(settings.roles[0].after);
}

TEST(Roles, AnOrderIsKept) {
  const gang::Settings settings = Of("12 n[1-2] role=worker,after=prep:done\n13 n[3-4] role=prep\n");
  EXPECT_EQ(settings.roles[0].after, 1U);
  EXPECT_TRUE(settings.roles[0].after_done);
}

TEST(Roles, OneRoleInSeveralComponentsIsTracked) {
  const gang::Settings settings = Of("12 n[1-2] role=ps\n13 n[3-4] role=ps\n");
  EXPECT_THAT(settings.node_roles, ElementsAre(0U, 0U, 1U, 1U));
  EXPECT_EQ(settings.roles[0].kind, gang::RoleKind::kTracked);
  EXPECT_EQ(settings.roles[1].kind, gang::RoleKind::kTracked);
}

}  // namespace
}  // namespace muster
