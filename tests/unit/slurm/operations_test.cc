#include "daemon/slurm/helper/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/slurm/messages.h"
#include "tests/unit/slurm/fake_calls.h"

namespace muster::slurm {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Operations : public ::testing::Test {
 protected:
  json Ask(json question) {
    question["v"] = kProtocol;
    question["id"] = 7;
    const json reply = json::parse(Answer(calls, question.dump()));
    EXPECT_EQ(reply.at("id"), 7);
    return reply;
  }
  json Good(json question) {
    const json reply = Ask(std::move(question));
    EXPECT_TRUE(reply.contains("ok")) << reply;
    return reply.value("ok", json::object());
  }
  std::string Refused(json question, const char* code) {
    const json reply = Ask(std::move(question));
    EXPECT_TRUE(reply.contains("error")) << reply;
    if (!reply.contains("error")) return "";
    EXPECT_EQ(reply["error"]["code"], code) << reply;
    return reply["error"]["message"];
  }
  json Down(const std::string& node, uint32_t job = 12) {
    return {{"do", "node_down"}, {"job", job}, {"node", node}, {"reason", "its musterd is silent"}};
  }

  FakeCalls calls;
};

TEST_F(Operations, AJobIsToldWithItsGraceTimeAndTheNodesThatItShares) {
  calls.AddJob(12, {"n1", "n2", "n3"});
  calls.AddJob(13, {"n3", "n4"});
  const auto job = JobFromJson(Good({{"do", "job"}, {"job", 12}, {"sharing", true}}));
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->grace_seconds, 30u);
  EXPECT_THAT(job->nodes, ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(job->shared_nodes, ElementsAre("n3"));
  EXPECT_THAT(Refused({{"do", "job"}, {"job", 99}}, "not_found"), HasSubstr("no such job"));
}

TEST_F(Operations, ANodeThatTheJobHasToItselfIsSetDown) {
  calls.AddJob(12, {"n1", "n2"});
  EXPECT_EQ(Good(Down("n2")), json({{"changed", true}}));
  EXPECT_THAT(calls.log, ElementsAre("down n2 'muster: its musterd is silent'"));
}

TEST_F(Operations, ANodeThatIsDownAlreadyIsLeftAlone) {
  calls.AddJob(12, {"n1", "n2"});
  calls.nodes["n2"].down = true;
  EXPECT_EQ(Good(Down("n2")), json({{"changed", false}}));
  EXPECT_THAT(calls.log, IsEmpty());
}

TEST_F(Operations, ANodeThatIsSharedOrAnotherJobsOrUnknownIsNotSetDown) {
  calls.AddJob(12, {"n1", "n2"});
  calls.AddJob(13, {"n2", "n3"});
  EXPECT_THAT(Refused(Down("n2"), "denied"), HasSubstr("job 13 is on it too"));
  EXPECT_THAT(Refused(Down("n3"), "denied"), HasSubstr("not one of job 12's nodes"));
  EXPECT_THAT(Refused(Down("n1", 99), "denied"), HasSubstr("not one of job 99's nodes"));
  Refused(Down("n9"), "not_found");
  for (const char* expression : {"n[1-2]", "n1,n2", "ALL", "", "n1 n2"}) Refused(Down(expression), "invalid");
  EXPECT_THAT(calls.log, IsEmpty());
}

TEST_F(Operations, AJobThatOnlyCompletesThereDoesNotProtectANode) {
  calls.AddJob(12, {"n1", "n2"});
  calls.AddJob(13, {"n2"}, "COMPLETED").completing = true;
  Good(Down("n2"));
  EXPECT_EQ(calls.log.size(), 1u);
}

TEST_F(Operations, TheOtherComponentsOfAHeterogeneousJobAreTheJobItself) {
  calls.AddJob(12, {"n1", "n2"}).het_leader = 12;
  calls.AddJob(13, {"n2", "n3"}).het_leader = 12;
  Good(Down("n2"));
  Good(Down("n3"));
  EXPECT_EQ(calls.log.size(), 2u);
}

TEST_F(Operations, AnAdministratorsReasonStays) {
  calls.AddJob(12, {"n1", "n2"});
  calls.nodes["n2"] = {"DRAIN", false, true, "RMA 4711"};
  Good(Down("n2"));
  EXPECT_THAT(calls.log, ElementsAre("down n2 ''"));
  Good({{"do", "node_drain"}, {"node", "n2"}, {"reason", "Xid 79"}});
  EXPECT_EQ(calls.log.size(), 1u);
  EXPECT_THAT(Refused({{"do", "node_resume"}, {"node", "n2"}}, "denied"), HasSubstr("RMA 4711"));
}

TEST_F(Operations, WhatMusterHasSetItTakesBack) {
  calls.AddJob(12, {"n1", "n2"});
  Good({{"do", "node_drain"}, {"node", "n2"}, {"reason", "Xid 79"}});
  EXPECT_THAT(calls.log, ElementsAre("drain n2 'muster: Xid 79'"));
  Good({{"do", "node_resume"}, {"node", "n2"}});
  EXPECT_EQ(calls.log.size(), 1u) << "nothing to take back";
  calls.nodes["n2"] = {"DRAIN", false, true, "muster: Xid 79"};
  Good({{"do", "node_resume"}, {"node", "n2"}});
  EXPECT_EQ(calls.log.back(), "resume n2 ''");
}

TEST_F(Operations, ARequeueEndsTheNamedIncarnationOnly) {
  calls.AddJob(12, {"n1", "n2"}).restart_count = 3;
  EXPECT_EQ(Good({{"do", "requeue"}, {"job", 12}, {"restarts", 2}}), json({{"requeued", true}}));
  EXPECT_EQ(Good({{"do", "requeue"}, {"job", 12}, {"restarts", 3}, {"check", true}}),
            json({{"requeued", false}}));
  EXPECT_THAT(calls.log, IsEmpty());
  Good({{"do", "requeue"}, {"job", 12}, {"restarts", 3}});
  EXPECT_THAT(calls.log, ElementsAre("requeue 12"));
}

// slurmctld has come back with an older state, or none, and has given the number again.
TEST_F(Operations, AnotherJobOfTheSameNumberIsLeftAlone) {
  constexpr int64_t kSeen = 1'700'000'000;
  SlurmJob& job = calls.AddJob(12, {"n1", "n2"});
  job.uid = 1001;
  const auto all = [&](int restarts) {
    const json run = {{"job", 12}, {"restarts", restarts}, {"uid", 1001}, {"seen", kSeen}};
    std::vector<json> questions = {{{"do", "job"}},
                                   {{"do", "requeue"}},
                                   {{"do", "requeue"}, {"check", true}},
                                   {{"do", "release"}, {"settled", true}},
                                   {{"do", "launched"}, {"free", true}},
                                   {{"do", "comment"}, {"text", "restarted"}},
                                   Down("n2")};
    for (json& question : questions) question.update(run);
    return questions;
  };
  job.submit_time = kSeen + 301;
  for (const json& question : all(0))
    EXPECT_THAT(Refused(question, "not_found"), HasSubstr("another job")) << question;
  job.submit_time = kSeen - 3600;
  job.uid = 1002;
  for (const int restarts : {0, 1}) {
    job.restart_count = 1;
    for (const json& question : all(restarts)) Refused(question, "not_found");
  }
  EXPECT_THAT(calls.log, IsEmpty());
}

TEST_F(Operations, AJobThatWasSubmittedAgainByItsRequeueIsTheSame) {
  SlurmJob& job = calls.AddJob(12, {}, "PENDING");
  job.uid = 1001;
  job.restart_count = 1;
  job.submit_time = 1'700'003'600;
  json question = {{"do", "requeue"}, {"job", 12}, {"restarts", 0}, {"uid", 1001}, {"seen", 1'700'000'000}};
  EXPECT_EQ(Good(question), json({{"requeued", true}}));
  question.update({{"do", "release"}, {"settled", true}});
  EXPECT_TRUE(Good(question)["released"]);
  // The host's clock is behind slurmctld's.
  job.restart_count = 0;
  job.state = "RUNNING";
  job.submit_time = 1'700'000'300;
  Good({{"do", "requeue"}, {"job", 12}, {"restarts", 0}, {"uid", 1001}, {"seen", 1'700'000'000}});
  EXPECT_EQ(calls.log.back(), "requeue 12");
}

TEST_F(Operations, WhoeverAsksWhetherAJobMayBeRequeuedLearnsThatItIsHeterogeneous) {
  calls.AddJob(12, {"n1", "n2"}).het_leader = 12;
  EXPECT_EQ(Good({{"do", "requeue"}, {"job", 12}, {"restarts", 0}, {"check", true}}),
            json({{"requeued", false}, {"heterogeneous", true}}));
}

TEST_F(Operations, WhatMayNotBeRequeuedIsRefusedWithTheReason) {
  const auto refused = [&](SlurmJob& job) {
    return Refused({{"do", "requeue"}, {"job", job.job_id}, {"restarts", 0}, {"check", true}}, "denied");
  };
  SlurmJob& job = calls.AddJob(12, {"n1"});
  job.batch = false;
  EXPECT_THAT(refused(job), HasSubstr("no batch script"));
  job.batch = true;
  job.requeueable = false;
  EXPECT_THAT(refused(job), HasSubstr("--no-requeue"));
  job.requeueable = true;
  for (const char* ended : {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"}) {
    job.state = ended;
    EXPECT_THAT(refused(job), HasSubstr(ended));
  }
}

TEST_F(Operations, AJobThatHasFailedIsRequeuedIfThatWasExpected) {
  SlurmJob& job = calls.AddJob(12, {"n1"}, "FAILED");
  Good({{"do", "requeue"}, {"job", 12}, {"restarts", 0}, {"failed", true}});
  EXPECT_THAT(calls.log, ElementsAre("requeue 12"));
  job.state = "COMPLETED";
  Refused({{"do", "requeue"}, {"job", 12}, {"restarts", 0}, {"failed", true}}, "denied");
}

TEST_F(Operations, ARequeuedJobIsReleasedWhenItHasBeenInTheQueueForAWhile) {
  SlurmJob& job = calls.AddJob(12, {"n1"}, "PENDING");
  json question = {{"do", "release"}, {"job", 12}, {"restarts", 0}};
  EXPECT_THAT(Refused(question, "denied"), HasSubstr("has not been requeued"));
  job.restart_count = 1;
  job.completing = true;
  EXPECT_FALSE(Good(question)["released"]);
  job.completing = false;
  EXPECT_EQ(Good(question)["pending"], true);
  EXPECT_THAT(calls.log, IsEmpty());
  question["settled"] = true;
  EXPECT_TRUE(Good(question)["released"]);
  EXPECT_THAT(calls.log, ElementsAre("begin 12"));
  job.state = "RUNNING";
  EXPECT_TRUE(Good(question)["released"]);
  EXPECT_EQ(calls.log.size(), 1u);
  job.state = "CANCELLED";
  EXPECT_THAT(Refused(question, "denied"), HasSubstr("is CANCELLED now"));
}

TEST_F(Operations, AllComponentsOfAHeterogeneousJobAreReleasedTogether) {
  SlurmJob& leader = calls.AddJob(12, {}, "PENDING");
  leader.het_leader = 12;
  leader.restart_count = 1;
  SlurmJob& other = calls.AddJob(13, {"n1"}, "PENDING");
  other.het_leader = 12;
  other.restart_count = 1;
  other.completing = true;
  const json question = {{"do", "release"}, {"job", 12}, {"restarts", 0}, {"settled", true}};
  EXPECT_FALSE(Good(question)["released"]);
  other.completing = false;
  EXPECT_TRUE(Good(question)["released"]);
  EXPECT_THAT(calls.log, ElementsAre("begin 12", "begin 13"));
}

TEST_F(Operations, AJobThatSlurmHoldsForItsLaunchHasFailedIsFreedAndNoOther) {
  SlurmJob& job = calls.AddJob(12, {"n1"}, "PENDING");
  json question = {{"do", "launched"}, {"job", 12}, {"restarts", 0}, {"free", true}};
  EXPECT_EQ(Good(question), (json{{"held", false}, {"waits", true}}));
  EXPECT_THAT(calls.log, IsEmpty()) << "it may wait for room, or its user may hold it";
  job.launch_failed = true;
  question["free"] = false;
  EXPECT_EQ(Good(question), (json{{"held", true}, {"waits", true}}));
  EXPECT_THAT(calls.log, IsEmpty());
  question["free"] = true;
  EXPECT_EQ(Good(question)["held"], true);
  EXPECT_THAT(calls.log, ElementsAre("free 12"));
  job.launch_failed = false;
  job.state = "RUNNING";
  EXPECT_EQ(Good(question), (json{{"held", false}, {"waits", false}}));
  EXPECT_EQ(calls.log.size(), 1u);
}

TEST_F(Operations, AJobThatSlurmRequeuesOnceMoreIsNotPutOffAgain) {
  SlurmJob& job = calls.AddJob(12, {"n1"}, "PENDING");
  const json question = {{"do", "launched"}, {"job", 12}, {"restarts", 0}, {"free", true}};
  job.restart_count = 1;
  job.put_off = true;
  EXPECT_EQ(Good(question)["held"], false) << "somebody else's wish";
  EXPECT_THAT(calls.log, IsEmpty());
  job.restart_count = 2;
  EXPECT_EQ(Good(question)["held"], true);
  EXPECT_THAT(calls.log, ElementsAre("begin 12"));
}

TEST_F(Operations, TheClustersNameIsTold) {
  EXPECT_EQ(Good({{"do", "cluster"}})["cluster"], "rack");
  calls.name = "";
  Refused({{"do", "cluster"}}, "internal");
}

TEST_F(Operations, WhatIsNoQuestionIsRefused) {
  for (const char* line : {"", "{", "[]", "1", "{\"id\":0}", "{\"id\":-1}", "\xff\xfe"}) {
    EXPECT_THAT(Answer(calls, line), HasSubstr("\"code\":\"invalid\"")) << line;
  }
  for (const json& question :
       {json{{"do", "nothing"}}, json{{"do", 1}}, json::object(), json{{"do", "job"}},
        json{{"do", "job"}, {"job", -1}}, json{{"do", "job"}, {"job", 4294967296}},
        json{{"do", "kill_step"}, {"job", 1}}, json{{"do", "comment"}, {"job", 1}},
        json{{"do", "requeue"}, {"job", 12}}, json{{"do", "node_drain"}, {"node", "n1"}}}) {
    Refused(question, "invalid");
  }
  const json reply = json::parse(Answer(calls, R"({"v":2,"id":1,"do":"job","job":1})"));
  EXPECT_THAT(reply["error"]["message"].get<std::string>(), HasSubstr("speaks version 1"));
}

TEST(Messages, ATextIsCutBetweenCharactersAndHasNoControlCharacters) {
  EXPECT_EQ(CleanText("a\nb\tc\x7f"), "a b c ");
  const std::string umlauts = std::string(255, 'x') + "\xc3\xa4";
  EXPECT_EQ(CleanText(umlauts), std::string(255, 'x'));
}

TEST(Messages, AReplyIsToTheQuestionAsked) {
  EXPECT_TRUE(ParseReply(R"({"id":3,"ok":{}})", 3));
  for (const char* bad :
       {"", "{}", R"({"id":4,"ok":{}})", R"({"id":3})", R"({"id":3,"ok":1})", R"({"id":3,"error":{}})"}) {
    const auto reply = ParseReply(bad, 3);
    ASSERT_FALSE(reply) << bad;
    EXPECT_EQ(reply.error().code, Errc::kInternal);
  }
  const auto refused = ParseReply(ErrorReply(3, {Errc::kDenied, "no"}).dump(), 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kDenied);
  EXPECT_EQ(refused.error().message, "no");
}

}  // namespace
}  // namespace muster::slurm
