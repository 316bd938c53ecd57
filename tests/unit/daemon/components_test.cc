#include "daemon/gang_job/components.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gang_job/gang_job.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kHosts = {"n1", "n2", "n3", "n4"};

// Four nodes with two tasks each; the lines are components.
Result<Components> Parse(const std::string& lines) {
  return ParseComponents("job=12 tasks=2(x4)\n" + lines, kHosts);
}

std::string Refusal(const std::string& lines) {
  const auto components = Parse(lines);
  if (!components) return components.error().message;
  if (const Status good = CheckRoles(*components); !good) return good.error().message;
  const auto merged = MergeOptions(components->list);
  return merged ? "" : merged.error().message;
}

TEST(Components, AreReadWithTheirNodesInTheStepsOrder) {
  const auto components =
      ParseComponents("job=12 tasks=3,1(x2),2\n12 n4 role=chief\n13 n[1-3,9] spares=1,role=worker\n", kHosts);
  ASSERT_TRUE(components) << components.error().message;
  EXPECT_EQ(components->job_id, 12U);
  EXPECT_EQ(components->TaskCount(), 7U);
  EXPECT_THAT(components->node_tasks, ElementsAre(3U, 1U, 1U, 2U));
  EXPECT_THAT(components->first_task, ElementsAre(0U, 3U, 4U, 5U));
  EXPECT_THAT(components->of_node, ElementsAre(1U, 1U, 1U, 0U));
  ASSERT_EQ(components->list.size(), 2U);
  EXPECT_THAT(components->list[1].nodes, ElementsAre(0U, 1U, 2U)) << "n9 has no task of this step";
  EXPECT_EQ(components->list[1].job_id, 13U);
  EXPECT_EQ(components->list[1].options.spares, 1U);
  EXPECT_STREQ(components->list[0].options.role, "chief");
}

TEST(Components, WhatIsMalformedIsRefused) {
  for (const char* text :
       {"", "job=0 tasks=2(x4)\n1 n[1-4] \n", "job=x tasks=2(x4)\n1 n[1-4] \n", "job=12\n1 n[1-4] \n",
        "job=12 tasks=2(x3)\n1 n[1-4] \n", "job=12 tasks=2(x5)\n1 n[1-4] \n", "job=12 tasks=2(x\n1 n[1-4] \n",
        "job=12 tasks=0,2(x3)\n1 n[1-4] \n", "job=12 tasks=2(x4)\nn[1-4] \n", "job=12 tasks=2(x4)\n1 n[1- \n",
        "job=12 tasks=16777216(x4)\n1 n[1-4] \n", "job=12 tasks=2(x4)\n"}) {
    EXPECT_FALSE(ParseComponents(text, kHosts)) << text;
  }
}

TEST(Components, AHostileListIsRefusedBeforeItTakesLong) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "12 n[1-60000] \n";
  EXPECT_THAT(Parse("12 n[1-4] \n" + lines).error().message, HasSubstr("n1 is in two"));
  lines = "12 n[1-4],x[1-60000] \n13 y[1-60000] \n";
  EXPECT_THAT(Parse(lines).error().message, HasSubstr("more than 65536 nodes"));
}

TEST(Components, EveryNodeIsInOneOfThem) {
  EXPECT_THAT(Refusal("12 n[1-3] \n13 n[3-4] \n"), HasSubstr("n3 is in two"));
  EXPECT_THAT(Refusal("12 n[1-3] \n"), HasSubstr("n4 is in none"));
  EXPECT_THAT(Refusal("12 n[1-4] \n13 n9 \n"), HasSubstr("none of the step's nodes is job 13's"));
}

TEST(Components, EachMustHaveWhatItAsksForOnItsOwnNodes) {
  EXPECT_THAT(Refusal("12 n[1-3] \n13 n4 role=ps,spares=1\n"),
              ::testing::AllOf(HasSubstr("component 1"), HasSubstr("spares=1 of 1 nodes")));
  EXPECT_THAT(Refusal("12 n[1-3] min=4\n13 n4 role=ps\n"), HasSubstr("min=4"));
  EXPECT_THAT(Refusal("12 n[1-3] min=2,spares=1\n13 n4 role=ps\n"), "");
}

TEST(Components, ARoleHasOneKind) {
  EXPECT_THAT(Refusal("12 n[1-2] role=a,kind=service\n13 n[3-4] role=a\n"),
              ::testing::AllOf(HasSubstr("role=a"), HasSubstr("kind=service"), HasSubstr("kind=tracked")));
  EXPECT_EQ(Refusal("12 n[1-2] role=a\n13 n[3-4] role=a,spares=1\n"), "") << "of two kinds of nodes, say";
}

TEST(Components, OneTaskIsTheChief) {
  EXPECT_THAT(Refusal("12 n[1-3] role=worker\n13 n4 role=chief\n"), HasSubstr("2 tasks are chief"));
  const std::string tasks = "job=12 tasks=1(x4)\n";
  const auto chiefs = [&](const std::string& lines) {
    const auto components = ParseComponents(tasks + lines, kHosts);
    return components && CheckRoles(*components);
  };
  EXPECT_TRUE(chiefs("12 n[1-3] role=worker\n13 n4 role=chief\n"));
  EXPECT_TRUE(chiefs("12 n[1-2] role=worker\n13 n[3-4] role=chief,spares=1\n")) << "the other one waits";
  EXPECT_FALSE(chiefs("12 n[1-2] role=worker\n13 n3 role=chief\n14 n4 role=master\n"));
}

TEST(Components, AfterNamesARoleThatIsThereAndCanCome) {
  EXPECT_EQ(Refusal("12 n[1-3] after=ps\n13 n4 role=ps\n"), "");
  EXPECT_EQ(Refusal("12 n[1-3] after=prep:done\n13 n4 role=prep\n"), "");
  EXPECT_THAT(Refusal("12 n[1-3] after=db\n13 n4 role=ps\n"), HasSubstr("after=db: no component"));
  EXPECT_THAT(Refusal("12 n[1-3] after=ps:done\n13 n4 role=ps\n"), HasSubstr("would never start"));
  EXPECT_THAT(Refusal("12 n[1-2] role=a,after=b\n13 n[3-4] role=b,after=a\n"),
              HasSubstr("none of them would start"));
  EXPECT_THAT(Refusal("12 n[1-2] role=a,after=b\n13 n3 role=b,after=c\n14 n4 role=c,after=b\n"),
              HasSubstr("none of them would start"));
  EXPECT_EQ(Refusal("12 n[1-2] role=a,after=b\n13 n3 role=b,after=c\n14 n4 role=c\n"), "");
}

TEST(Components, WhatIsTheWholeGangsIsSaidOnce) {
  const auto components = Parse(
      "12 n[1-2] role=a,join=9s,last_words=9:USR1\n13 n[3-4] "
      "role=b,restarts=7,name=x,join=9s,order=topology\n");
  ASSERT_TRUE(components);
  const auto merged = MergeOptions(components->list);
  ASSERT_TRUE(merged);
  EXPECT_EQ(merged->restarts, 7U);
  EXPECT_EQ(merged->join_seconds, 9U);
  EXPECT_EQ(merged->last_words_seconds, 9U);
  EXPECT_TRUE(merged->order_by_topology);
  EXPECT_STREQ(merged->name, "x");
  EXPECT_STREQ(merged->role, "a");
  EXPECT_THAT(Refusal("12 n[1-2] restarts=5\n13 n[3-4] role=b,restarts=6\n"), HasSubstr("restarts="));
  EXPECT_THAT(Refusal("12 n[1-2] name=x\n13 n[3-4] role=b,name=y\n"),
              HasSubstr("name= is for the whole gang"));
  EXPECT_THAT(Refusal("12 n[1-2] hang=off\n13 n[3-4] role=b,hang=5s\n"),
              HasSubstr("hang= is for the whole gang"));
  EXPECT_THAT(Refusal("12 n[1-2] startup=4s\n13 n[3-4] role=b,startup=5s\n"),
              HasSubstr("startup= is for the whole gang"));
  EXPECT_THAT(Refusal("12 n[1-2] last_words=5\n13 n[3-4] role=b,last_words=5:INT\n"),
              HasSubstr("last_words= is for the whole gang"));
  EXPECT_THAT(Refusal("12 n[1-2] stop_codes=5\n13 n[3-4] role=b,stop_codes=5:6\n"),
              HasSubstr("stop_codes= is for the whole gang"));
}

TEST(Components, SlurmEndsTheJobWithANodeWhenOneBeforeItsHasASingleOne) {
  const auto first = Parse("12 n4 role=chief\n13 n[1-3] role=worker\n");
  EXPECT_TRUE(first->EndWith(0, {})) << "the chief's component has one node, and comes first";
  EXPECT_TRUE(first->EndWith(3, {}));
  const auto last = Parse("13 n[1-3] role=worker\n12 n4 role=chief\n");
  EXPECT_FALSE(last->EndWith(0, {}));
  EXPECT_FALSE(last->EndWith(0, {1}));
  EXPECT_TRUE(last->EndWith(0, {1, 2})) << "it is the last of its own";
  EXPECT_TRUE(last->EndWith(3, {}));
  const auto wider = Parse("12 n[4-5] role=chief\n13 n[1-3] role=worker\n");
  EXPECT_FALSE(wider->EndWith(0, {})) << "a node that is not in the step keeps the component's job alive";
  EXPECT_FALSE(Components().EndWith(0, {}));
}

GangJob Job() {
  GangJob job;
  job.job_id = 12;
  job.node_list = "n[1-4]";
  job.components_text = "job=12 tasks=2(x4)\n12 n[3-4] role=worker,name=x\n13 n[1-2] role=ps,restarts=9\n";
  return job;
}

TEST(Components, OfAJobMakeOneGang) {
  GangJob job = Job();
  const Status complete = job.Complete();
  ASSERT_TRUE(complete) << complete.error().message;
  EXPECT_EQ(job.task_count, 8U);
  EXPECT_EQ(job.Id(), "12.0");
  EXPECT_EQ(job.Key(), "name-x");
  EXPECT_EQ(job.options.restarts, 9U);
  EXPECT_EQ(job.options_text, "role=worker,name=x") << "the same wherever it is completed";
  EXPECT_EQ(job.JobOf(0), 13U);
  EXPECT_EQ(job.JobOf(3), 12U);
  EXPECT_TRUE(job.Complete()) << "again, as by a coordinator";
}

TEST(Components, TheFirstOnesNodesCoordinateFirstAndTheBatchHostLast) {
  GangJob job = Job();
  ASSERT_TRUE(job.Complete());
  EXPECT_THAT(job.CandidateNodes(), ElementsAre(3U, 0U, 1U, 2U));
}

TEST(Components, OfAnotherJobAreRefused) {
  GangJob job = Job();
  job.job_id = 14;
  EXPECT_FALSE(job.Complete());
}

}  // namespace
}  // namespace muster
