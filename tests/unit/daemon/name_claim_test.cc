#include "daemon/coordinator/name_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/gang/gang.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Claimed = NameClaim::Next;

constexpr NameClaim::Nanos kRefusal = 60'000'000'000;
constexpr NameClaim::Nanos kLate = kRefusal + 1;

GangRecord RecordOfHolder(gang::State state = gang::State::kRunning) {
  GangRecord record;
  record.gang = "11.0-r1";
  record.job_id = 11;
  record.restart_count = 1;
  record.submission = 6;
  record.state = gang::ToString(state);
  record.coordinator = "n3";
  record.created_ns = 1'795'873'500'000'000'000;  // 2026-11-28 13:45:00
  return record;
}

SlurmJob SlurmSays(const std::string& state, bool completing = false) {
  SlurmJob job;
  job.state = state;
  job.completing = completing;
  return job;
}

NameClaim Claim() {
  return {"exp", 12, false, kRefusal};
}

TEST(NameClaim, AJobThatSlurmHasKeepsItsName) {
  for (const char* state : {"RUNNING", "SUSPENDED", "PENDING", "STOPPED"}) {
    NameClaim claim = Claim();
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays(state), 0), Claimed::kLook) << state;
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays(state), NameClaim::kMayEnd), Claimed::kRefuse) << state;
    EXPECT_FALSE(claim.IsFree(RecordOfHolder()));
  }
}

TEST(NameClaim, AJobThatHasEndedOrIsUnknownGivesItsNameUp) {
  for (const char* state : {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
                            "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}) {
    NameClaim claim = Claim();
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays(state), 0), Claimed::kTake) << state;
    EXPECT_TRUE(claim.IsFree(RecordOfHolder()));
  }
  NameClaim claim = Claim();
  EXPECT_EQ(claim.Heard(RecordOfHolder(), Error{Errc::kNotFound, "no job 11"}, 0), Claimed::kTake);
}

TEST(NameClaim, AJobThatIsBeingEndedIsWaitedForUntilTheGangIsRefused) {
  NameClaim claim = Claim();
  EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("COMPLETED", true), kRefusal), Claimed::kWait);
  EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("COMPLETED", true), kLate), Claimed::kRefuse);
  EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("COMPLETED"), kLate), Claimed::kTake);
}

TEST(NameClaim, AJobWhoseRequeueIsUnderWayKeepsItsNameInTheStatesOutOfWhichJobsAreRequeued) {
  const GangRecord holder = RecordOfHolder(gang::State::kRequeueing);
  NameClaim claim = Claim();
  for (const char* state : {"FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})
    EXPECT_EQ(claim.Heard(holder, SlurmSays(state), 0), Claimed::kWait) << state;
  EXPECT_EQ(claim.Heard(holder, SlurmSays("CANCELLED"), 0), Claimed::kTake);
}

TEST(NameClaim, AGangThatSlurmHasEndedHasItsNameWhileItsJobIsInTheQueueAgain) {
  const GangRecord holder = RecordOfHolder(gang::State::kFinished);
  SlurmJob job = SlurmSays("PENDING");
  NameClaim claim = Claim();
  job.restart_count = holder.restart_count + 1;
  EXPECT_EQ(claim.Heard(holder, job, 0), Claimed::kLook);
  job = SlurmSays("RUNNING");
  job.restart_count = holder.restart_count;
  EXPECT_EQ(claim.Heard(holder, job, 0), Claimed::kTake) << "its script goes on after its step was cancelled";
  EXPECT_EQ(claim.Heard(holder, SlurmSays("CANCELLED", true), 0), Claimed::kTake);
  EXPECT_EQ(claim.Heard(holder, Error{Errc::kUnavailable, "no answer"}, 0), Claimed::kWait);
}

TEST(NameClaim, SilenceOfSlurmFreesNoName) {
  NameClaim claim = Claim();
  const Error silent{Errc::kUnavailable, "slurmctld does not answer"};
  EXPECT_EQ(claim.Heard(RecordOfHolder(), silent, kRefusal), Claimed::kWait);
  EXPECT_EQ(claim.Heard(RecordOfHolder(), silent, kLate), Claimed::kRefuse);
  EXPECT_FALSE(claim.IsFree(RecordOfHolder()));
  EXPECT_THAT(claim.Refusal(), HasSubstr("slurmctld does not answer"));
}

TEST(NameClaim, AnotherGangThatHasTakenTheNameMeanwhileIsLookedAtAnew) {
  NameClaim claim = Claim();
  EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), 0), Claimed::kLook);
  GangRecord other = RecordOfHolder();
  other.submission = 7;
  EXPECT_EQ(claim.Heard(other, SlurmSays("RUNNING"), NameClaim::kMayEnd), Claimed::kLook);
  EXPECT_EQ(claim.Heard(other, SlurmSays("COMPLETED"), NameClaim::kMayEnd), Claimed::kTake);
  EXPECT_FALSE(claim.IsFree(RecordOfHolder()));
  EXPECT_EQ(claim.Heard(other, SlurmSays("PENDING"), NameClaim::kMayEnd), Claimed::kLook);
  EXPECT_FALSE(claim.IsFree(other)) << "an administrator has requeued it";
}

TEST(NameClaim, WaitWaitsForWhateverHoldsTheName) {
  NameClaim claim("exp", 12, true, kRefusal);
  EXPECT_FALSE(claim.Patient()) << "nobody has it, as far as is known";
  for (const auto& job : {SlurmSays("RUNNING"), SlurmSays("PENDING"), SlurmSays("FAILED", true)})
    EXPECT_EQ(claim.Heard(RecordOfHolder(), job, 2 * kLate), Claimed::kWait) << job.state;
  EXPECT_TRUE(claim.Patient());
  EXPECT_EQ(claim.Heard(RecordOfHolder(), Error{Errc::kUnavailable, "no answer"}, 2 * kLate), Claimed::kWait);
  EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("FAILED"), 0), Claimed::kTake);
  EXPECT_TRUE(claim.Patient()) << "another one that waits may be faster";
}

TEST(NameClaim, AStepOfItsOwnJobIsNotWaitedForWithoutAnEnd) {
  for (const bool wait : {false, true}) {
    NameClaim claim("exp", 11, wait, kRefusal);
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), 0), Claimed::kLook);
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), NameClaim::kMayEnd), Claimed::kWait)
        << "its agents are told that they have a coordinator";
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), kRefusal), Claimed::kWait);
    EXPECT_FALSE(claim.Patient());
    EXPECT_EQ(claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), kLate), Claimed::kRefuse);
  }
}

TEST(NameClaim, LooksAtANameBecomeFewerAndGangsDoNotLookAtOnce) {
  NameClaim claim("exp", 12, true, kRefusal);
  claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), 0);
  for (const NameClaim::Nanos seconds : {5, 10, 20, 40, 60, 60})
    EXPECT_EQ(claim.Pause(0), seconds * 1'000'000'000);
  EXPECT_EQ(claim.Pause(7), NameClaim::kLongestPause - 7);
  EXPECT_GT(claim.Pause(UINT64_MAX), NameClaim::kLongestPause * 3 / 4);
  GangRecord other = RecordOfHolder();
  other.submission = 7;
  claim.Heard(other, SlurmSays("RUNNING"), 0);
  EXPECT_EQ(claim.Pause(0), NameClaim::kFirstPause);
}

TEST(NameClaim, TheRefusalSaysWhoseTheNameIsAndWhatToDo) {
  NameClaim claim = Claim();
  claim.Heard(RecordOfHolder(), SlurmSays("RUNNING"), 0);
  EXPECT_THAT(claim.Refusal(),
              AllOf(HasSubstr("name=exp is that of gang 11.0-r1, job 11 (RUNNING), coordinator n3, since "
                              "2026-11-28 13:45:00 UTC"),
                    HasSubstr("--dependency=singleton"), HasSubstr("--gang=name=exp:wait")));
}

}  // namespace
}  // namespace muster
