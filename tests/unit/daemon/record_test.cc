#include "daemon/coordinator/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GangRecord Full() {
  GangRecord record;
  record.gang = "12.0-r1";
  record.key = "name-llama";
  record.job_id = 12;
  record.step_id = 0;
  record.restart_count = 1;
  record.submission = UINT64_MAX;
  record.launched_ns = 1'700'000'000'000'000'000;
  record.uid = 1000;
  record.state = "finished";
  record.succeeded = false;
  record.term = 4;
  record.generation = UINT64_MAX;
  record.coordinator = "n2";
  record.task_count = 4;
  record.nodes = {"n1", "n2"};
  record.task_counts = {2, 0};
  record.roles = {"chief", "worker"};
  record.succeeding = true;
  record.terminating = true;
  record.warned = "time_limit";
  record.restarts = {{"user", 2}, {"planned", 1}};
  record.user_faults = 2;
  record.user_fault_times = {INT64_MAX, 0};
  record.progress_since_user_fault = true;
  record.restart_limit = 5;
  record.starts = {{"chief", {}}, {"worker", {40'000'000'000, 90'000'000'000}}};
  record.step_reached = 1'000'000'007;
  record.restore = true;
  record.restore_step = 0;
  record.created_ns = 1;
  record.updated_ns = INT64_MAX;
  record.first_cause = "rank 1 on n2 exited with code 1";
  record.restart_cause = "n1 is drained";
  record.before = {1};
  record.placed = 3;
  record.lost = {0, 1};
  record.ended = {1};
  record.exiting = {1};
  record.finish_cause = 0;
  record.finish_code = -1;
  record.events = {{5, 1, "joined", "all 2 nodes are here"}, {6, 2, "fault", "\"quoted\"\n\ttext"}};
  return record;
}

TEST(GangRecord, IsOfALaunchInARunOfASubmission) {
  GangJob job;
  job.job_id = 12;
  job.restart_count = 1;
  job.submission = UINT64_MAX;
  EXPECT_FALSE(Full().IsOf(job));
  job.launched_ns = Full().launched_ns;
  EXPECT_TRUE(Full().IsOf(job));
  job.submission = 1;
  EXPECT_FALSE(Full().IsOf(job));
  job.submission = UINT64_MAX;
  job.restart_count = 2;
  EXPECT_FALSE(Full().IsOf(job));
}

TEST(GangRecord, ComesBackAsItWas) {
  const GangRecord before = Full();
  const auto after = GangRecord::Decode(before.Encode());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_EQ(after->Summary(), before.Summary());
  EXPECT_EQ(after->generation, UINT64_MAX);
  EXPECT_EQ(after->updated_ns, INT64_MAX);
  EXPECT_THAT(after->nodes, ElementsAre("n1", "n2"));
  EXPECT_THAT(after->task_counts, ElementsAre(2, 0));
  EXPECT_THAT(after->before, ElementsAre(1));
  EXPECT_EQ(after->placed, 3U);
  EXPECT_THAT(after->ended, ElementsAre(1));
  EXPECT_THAT(after->exiting, ElementsAre(1));
  EXPECT_EQ(after->restart_cause, "n1 is drained");
  EXPECT_THAT(after->roles, ElementsAre("chief", "worker"));
  EXPECT_THAT(after->user_fault_times, ElementsAre(INT64_MAX, 0));
  EXPECT_TRUE(after->progress_since_user_fault);
  EXPECT_TRUE(after->succeeding);
  EXPECT_EQ(after->starts.at("worker").first_step_ns, 40'000'000'000);
  EXPECT_EQ(after->starts.at("worker").tenth_step_ns, 90'000'000'000);
  EXPECT_TRUE(after->terminating);
  EXPECT_EQ(after->warned, "time_limit");
  EXPECT_TRUE(after->restore);
  EXPECT_EQ(after->restore_step, 0U) << "step 0 is a step, not the lack of one";
  EXPECT_EQ(after->finish_cause, 0U);
  EXPECT_EQ(after->finish_code, -1);
  ASSERT_EQ(after->events.size(), 2U);
  EXPECT_EQ(after->events[1].generation, 2U);
  EXPECT_EQ(after->events[1].text, "\"quoted\"\n\ttext");
}

TEST(GangRecord, ANewOneComesBackAsItWas) {
  const auto after = GangRecord::Decode(GangRecord().Encode());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_FALSE(after->restore);
  EXPECT_FALSE(after->finish_cause);
  EXPECT_FALSE(after->finish_code);
  EXPECT_TRUE(after->events.empty());
}

TEST(GangRecord, TakesBytesThatAreNotUtf8AndMakesThemReadable) {
  GangRecord record = Full();
  record.first_cause = "rank 1 (\xff\xfe, pid 3)";
  record.events[0].text = std::string("caf\xe9\0", 5);
  const auto after = GangRecord::Decode(record.Encode());
  ASSERT_TRUE(after) << after.error().message;
  EXPECT_THAT(after->first_cause, HasSubstr("rank 1 (\xef\xbf\xbd"));
}

TEST(GangRecord, EveryTruncationIsRefused) {
  const std::string whole = Full().Encode();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto record = GangRecord::Decode(whole.substr(0, size));
    ASSERT_FALSE(record) << size;
    ASSERT_EQ(record.error().code, Errc::kCorrupt);
  }
}

const std::set<std::string> kSinceVersionTwo = {"active",
                                                "before",
                                                "placed",
                                                "lost",
                                                "ended",
                                                "restart_cause",
                                                "away",
                                                "excluded",
                                                "draining",
                                                "exiting",
                                                "witnesses",
                                                "task_counts",
                                                "roles",
                                                "former_witnesses",
                                                "succeeding",
                                                "terminating",
                                                "warned",
                                                "last_signature",
                                                "restarts_without_progress",
                                                "restarts_by_cause",
                                                "user_fault_times",
                                                "progress_since_user_fault",
                                                "starts",
                                                "warm"};

TEST(GangRecord, ANodeThatIsNoneOfTheGangsIsRefused) {
  json damaged = json::parse(Full().Encode());
  damaged["active"] = {0, 4000};
  EXPECT_EQ(GangRecord::Decode(damaged.dump()).error().code, Errc::kCorrupt);
}

TEST(GangRecord, AMissingFieldOrOneOfAnotherTypeIsRefused) {
  const json good = json::parse(Full().Encode());
  for (const auto& [key, value] : good.items()) {
    if (key == "restarts") continue;  // for people: the sum of restarts_by_cause
    json damaged = good;
    damaged.erase(key);
    // The first version's records lack what came with nodes that can be lost.
    const bool newer = kSinceVersionTwo.contains(key);
    EXPECT_EQ(GangRecord::Decode(damaged.dump()).ok(), newer) << "without " << key;
    damaged[key] = value.is_object() ? json::array() : json::object();
    EXPECT_EQ(GangRecord::Decode(damaged.dump()).error().code, Errc::kCorrupt) << key;
  }
}

TEST(GangRecord, NumbersThatDoNotFitAreRefused) {
  const json good = json::parse(Full().Encode());
  for (const char* key : {"job", "term", "generation", "tasks", "uid", "restart_limit", "finish_cause"}) {
    for (const json& value : {json(-1), json(1.5), json(1e300), json("1")}) {
      json damaged = good;
      damaged[key] = value;
      EXPECT_FALSE(GangRecord::Decode(damaged.dump())) << key << ": " << value;
    }
  }
  json damaged = good;
  damaged["job"] = uint64_t{1} << 32;
  EXPECT_FALSE(GangRecord::Decode(damaged.dump()));
}

TEST(GangRecord, TheTimeOfAStartThatDoesNotFitIsRefused) {
  const json good = json::parse(Full().Encode());
  for (const char* key : {"first_step_ns", "tenth_step_ns"}) {
    for (const json& value : {json(-1), json(INT64_MAX), json("1"), json()}) {
      json damaged = good;
      damaged["starts"]["worker"][key] = value;
      EXPECT_FALSE(GangRecord::Decode(damaged.dump())) << key << ": " << value;
    }
  }
}

TEST(GangRecord, AnotherVersionIsRefusedByName) {
  json other = json::parse(Full().Encode());
  other["version"] = 2;
  const auto record = GangRecord::Decode(other.dump());
  ASSERT_FALSE(record);
  EXPECT_THAT(record.error().message, HasSubstr("record has version 2, this daemon reads 1"));
}

TEST(GangRecord, WhatIsNoRecordIsRefused) {
  for (const char* text : {"", "null", "[]", "1", "\"version\"", "{}", "{\"version\": 1}", "\xff\xff"}) {
    EXPECT_FALSE(GangRecord::Decode(text)) << text;
  }
  EXPECT_FALSE(GangRecord::Decode(std::string(100'000, '[')));
}

}  // namespace
}  // namespace muster
