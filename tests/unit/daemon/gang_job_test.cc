#include "daemon/gang_job/gang_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GangJob NewJob() {
  GangJob job;
  job.job_id = 12;
  job.step_id = 3;
  job.uid = 1000;
  job.task_count = 4;
  job.node_list = "n[1-3]";
  return job;
}

TEST(GangJob, IsNamedAfterItsStepAndARequeueMakesItAnotherGang) {
  GangJob job = NewJob();
  EXPECT_EQ(job.Id(), "12.3");
  job.restart_count = 2;
  EXPECT_EQ(job.Id(), "12.3-r2");
}

TEST(GangJob, KeepsItsCheckpointsAcrossARequeue) {
  GangJob job = NewJob();
  const std::string key = job.Key();
  job.restart_count = 1;
  EXPECT_EQ(job.Key(), key);
}

TEST(GangJob, AnotherSubmissionOfTheSameNumberHasAnotherKeyButNotAnotherName) {
  GangJob job = NewJob();
  EXPECT_EQ(job.Key(), "job-12.3");
  job.submission = 0x1f00c3e95a2b7d8;
  EXPECT_EQ(job.Key(), "job-12.3-01f00c3e95a2b7d8");
  EXPECT_EQ(job.Id(), "12.3");
  EXPECT_EQ(job.Unique(), "12.3-01f00c3e95a2b7d8");
  job.options_text = "name=llama";
  ASSERT_TRUE(job.Complete());
  EXPECT_EQ(job.Key(), "name-llama");
}

TEST(GangJob, ASubmissionIsATextAndBack) {
  EXPECT_EQ(SubmissionOf(SubmissionText(UINT64_MAX)), UINT64_MAX);
  EXPECT_EQ(SubmissionOf(SubmissionText(1)), 1U);
  EXPECT_EQ(SubmissionText(0), "");
  for (const char* none : {"", "x", "12g", "-1", "10000000000000000"})
    EXPECT_EQ(SubmissionOf(none), 0U) << none;
}

TEST(GangJob, ANameGivesTheKeyThatALaterJobFinds) {
  GangJob job = NewJob();
  job.options_text = "name=llama";
  ASSERT_TRUE(job.Complete());
  EXPECT_EQ(job.Key(), "name-llama");
  EXPECT_EQ(job.Space(), "u1000");
}

TEST(GangJob, TheBatchHostIsTheLastCandidate) {
  GangJob job = NewJob();
  ASSERT_TRUE(job.Complete());
  EXPECT_THAT(job.hosts, ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(job.CandidateNodes(), ElementsAre(1U, 2U, 0U));
  job.node_list = "n1";
  ASSERT_TRUE(job.Complete());
  EXPECT_THAT(job.CandidateNodes(), ElementsAre(0U));
}

TEST(GangJob, RefusesStepsThatCannotBe) {
  for (const uint32_t tasks : {0U, 2U, (1U << 24) + 1}) {
    GangJob job = NewJob();
    job.task_count = tasks;
    const Status complete = job.Complete();
    ASSERT_FALSE(complete) << tasks;
    EXPECT_THAT(complete.error().message, HasSubstr("tasks on 3 nodes"));
  }
}

TEST(GangJob, RefusesOptionsThatTheUserMayNotGive) {
  GangJob job = NewJob();
  job.options_text = "name=../../etc";
  const Status complete = job.Complete();
  ASSERT_FALSE(complete);
  EXPECT_THAT(complete.error().message, HasSubstr("name=../../etc"));
}

TEST(GangJob, RefusesMoreSparesThanThereAreNodesToSpare) {
  GangJob job = NewJob();
  job.options_text = "spares=2,min=1";
  ASSERT_TRUE(job.Complete());
  job.options_text = "spares=3";
  const Status complete = job.Complete();
  ASSERT_FALSE(complete);
  EXPECT_THAT(complete.error().message, HasSubstr("spares=3 of 3 nodes"));
}

}  // namespace
}  // namespace muster
