#include "daemon/coordinator/take_over.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <variant>

#include "daemon/coordinator/record_of_gang.h"
#include "daemon/gang/gang.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using After = TakeOver::Swap::After;
using Next = TakeOver::Next;

constexpr TakeOver::Until kUntil{.successor = 100, .refusal = 1'000};
constexpr TakeOver::Nanos kNoWait = 100;  // for a successor

GangJob AskingJob() {
  GangJob job;
  job.job_id = 12;
  job.restart_count = 1;
  job.submission = 7;
  job.launched_ns = 5'000;
  job.task_count = 3;
  job.hosts = {"n1", "n2", "n3"};
  return job;
}

GangRecord RecordIn(gang::State state) {
  const GangJob job = AskingJob();
  GangRecord record;
  record.gang = job.Id();
  record.job_id = job.job_id;
  record.restart_count = job.restart_count;
  record.submission = job.submission;
  record.launched_ns = job.launched_ns;
  record.state = gang::ToString(state);
  record.term = 3;
  record.coordinator = "n1";
  record.nodes = job.hosts;
  record.witnesses = {0, 1, 2};
  return record;
}

GangJob NamedJob() {
  GangJob job = AskingJob();
  std::strcpy(job.options.name, "exp");
  return job;
}

// Of another job's gang, which has the name.
GangRecord HolderIn(gang::State state) {
  GangRecord record = RecordIn(state);
  record.gang = "11.0";
  record.job_id = 11;
  record.restart_count = 0;
  record.submission = 6;
  return record;
}

bool IsHeld(TakeOver& rules, const GangRecord& record) {
  return std::holds_alternative<TakeOver::Held>(rules.Decide({{3, 2}, &record}, {}, {}));
}

SlurmJob InSlurm(const std::string& state) {
  SlurmJob job;
  job.state = state;
  return job;
}

// This is n2.
TakeOver Rules(const TakeOver::Origin& origin) {
  return {origin, AskingJob(), "n2", kUntil};
}

TakeOver::Decision Decide(const TakeOver::Origin& origin, const GangRecord& record,
                          const TakeOver::Try& now = {.now = kNoWait}) {
  return Rules(origin).Decide({{3, 2}, &record}, now, {});
}

std::optional<Error> Refusal(const TakeOver::Decision& decision) {
  const auto* error = std::get_if<Error>(&decision);
  return error != nullptr ? std::optional(*error) : std::nullopt;
}

TEST(TakeOver, AFreshGangsRecordIsMadeWhereThereIsNone) {
  GangRecord mine = RecordIn(gang::State::kJoining);
  const auto decision = Rules({.fresh = true}).Decide({}, {}, mine);
  const auto* swap = std::get_if<TakeOver::Swap>(&decision);
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->from, Fence());
  EXPECT_EQ(swap->to, (Fence{1, 0}));
  EXPECT_EQ(swap->after, After::kNothing);
  EXPECT_EQ(swap->record.term, 1U);
  EXPECT_EQ(swap->record.coordinator, "n2");
}

TEST(TakeOver, TheGangsRecordIsTakenInTheNextTermAndNamesWhoHasIt) {
  GangRecord record = RecordIn(gang::State::kRunning);
  record.step_reached = 80;
  const auto decision = Decide({.known_term = 3}, record);
  const auto* swap = std::get_if<TakeOver::Swap>(&decision);
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->from, (Fence{3, 2}));
  EXPECT_EQ(swap->to, (Fence{4, 2}));
  EXPECT_EQ(swap->after, After::kGang);
  EXPECT_EQ(swap->record.term, 4U);
  EXPECT_EQ(swap->record.coordinator, "n2");
  EXPECT_EQ(swap->record.step_reached, 80U);
}

TEST(TakeOver, ATermIsAboveTheHighestThatThoseWhoAskHaveObeyed) {
  const GangRecord record = RecordIn(gang::State::kRunning);
  const auto decision = Decide({.known_term = 5}, record);
  const auto* swap = std::get_if<TakeOver::Swap>(&decision);
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->to, (Fence{6, 2})) << "the store was set back to term 3";
  EXPECT_EQ(swap->record.term, 6U);
}

TEST(TakeOver, TheRecordOfAnEndSaysThatTheGangIsOver) {
  const auto decision = Decide({.known_term = 3}, RecordIn(gang::State::kFinished));
  const auto* swap = std::get_if<TakeOver::Swap>(&decision);
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->after, After::kEnd);
}

TEST(TakeOver, AnotherGangsRecordIsReplacedByAFreshGangsAndRefusedToOneThatRuns) {
  GangRecord record = RecordIn(gang::State::kFinished);
  record.submission = 6;
  const GangRecord mine = RecordIn(gang::State::kJoining);
  const auto decision = Rules({.fresh = true}).Decide({{3, 2}, &record}, {}, mine);
  const auto* swap = std::get_if<TakeOver::Swap>(&decision);
  ASSERT_TRUE(swap);
  EXPECT_EQ(swap->record.submission, mine.submission) << "who comes next finds whose the key is";
  EXPECT_EQ(swap->record.term, 4U);
  EXPECT_EQ(swap->record.coordinator, "n2");
  EXPECT_EQ(swap->after, After::kNothing);
  const auto refusal = Refusal(Decide({.known_term = 3}, record));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code, Errc::kInvalid);
}

TEST(TakeOver, ANameIsHeldByAGangThatHasNotEndedUntilSlurmSaysThatItsJobHas) {
  TakeOver rules({.fresh = true}, NamedJob(), "n2", kUntil);
  for (const gang::State state : {gang::State::kJoining, gang::State::kRunning, gang::State::kRequeueing})
    EXPECT_TRUE(IsHeld(rules, HolderIn(state)));
  GangRecord ended = HolderIn(gang::State::kFinished);
  EXPECT_FALSE(IsHeld(rules, ended));
  ended.terminating = true;
  EXPECT_TRUE(IsHeld(rules, ended)) << "Slurm has ended it, and may have requeued its job";
  GangRecord holder = HolderIn(gang::State::kRunning);
  rules.claim().Heard(holder, InSlurm("RUNNING"), 0);
  EXPECT_TRUE(IsHeld(rules, holder));
  rules.claim().Heard(holder, InSlurm("COMPLETED"), 0);
  EXPECT_FALSE(IsHeld(rules, holder));
  EXPECT_EQ(rules.NotTaken({Errc::kUnavailable, "the pool is full"}, 0), Next::kAgain);
  EXPECT_TRUE(IsHeld(rules, holder)) << "its job may have been requeued meanwhile";
  rules.claim().Heard(holder, InSlurm("COMPLETED"), 0);
  holder.launched_ns += 1;
  EXPECT_TRUE(IsHeld(rules, holder)) << "another gang has it by now";
}

TEST(TakeOver, ANameIsNotHeldByAFormerRunNorByAJobThatHadTheNumberBefore) {
  TakeOver rules({.fresh = true}, NamedJob(), "n2", kUntil);
  GangRecord own = RecordIn(gang::State::kRunning);
  own.step_id = 4;
  own.gang = "12.4-r1";
  EXPECT_TRUE(IsHeld(rules, own)) << "another step of this run";
  own.restart_count = 0;
  own.gang = "12.4";
  EXPECT_FALSE(IsHeld(rules, own)) << "a step of the run before";
  own.restart_count = 1;
  own.submission = 6;
  EXPECT_FALSE(IsHeld(rules, own)) << "of a job that Slurm has forgotten";
  TakeOver unnamed = Rules({.fresh = true});
  EXPECT_FALSE(IsHeld(unnamed, own));
}

TEST(TakeOver, WhoWaitsForANameWaitsForTheStoreToo) {
  GangJob job = NamedJob();
  job.options.name_wait = true;
  TakeOver rules({.fresh = true}, job, "n2", kUntil);
  const Error away{Errc::kUnavailable, "no answer"};
  EXPECT_EQ(rules.NotTaken(away, kUntil.refusal + 1), Next::kRefuse) << "it has not seen whose the name is";
  rules.claim().Heard(HolderIn(gang::State::kRunning), InSlurm("RUNNING"), 0);
  EXPECT_EQ(rules.NotTaken(away, kUntil.refusal + 1), Next::kAgain);
  TakeOver next({.fresh = true}, job, "n1", kUntil);
  next.claim().HasWaited();
  EXPECT_EQ(next.NotTaken(away, kUntil.refusal + 1), Next::kAgain) << "the coordinator before has seen it";
  EXPECT_EQ(rules.NotTaken({Errc::kCorrupt, "no record"}, 0), Next::kRefuse);
}

TEST(TakeOver, WhatARequeuedJobHasLeftBehindIsOver) {
  GangRecord record = RecordIn(gang::State::kRunning);
  record.restart_count = 2;
  record.gang = "12.0-r2";
  for (const bool fresh : {false, true}) {
    const auto refusal = Refusal(Decide({.fresh = fresh}, record));
    ASSERT_TRUE(refusal);
    EXPECT_TRUE(TakeOver::IsJobOver(*refusal)) << refusal->message;
  }
  record.submission = 6;
  EXPECT_FALSE(Refusal(Decide({.fresh = true}, record))) << "another job's, which had the number before";
}

TEST(TakeOver, ALaunchBeforeTheRecordsIsRefused) {
  GangRecord record = RecordIn(gang::State::kRunning);
  record.launched_ns = AskingJob().launched_ns + 1;
  const auto refusal = Refusal(Decide({.fresh = true}, record));
  ASSERT_TRUE(refusal);
  EXPECT_FALSE(TakeOver::IsJobOver(*refusal));
  EXPECT_THAT(refusal->message, HasSubstr("number again"));
  record.launched_ns = AskingJob().launched_ns - 1;
  EXPECT_FALSE(Refusal(Decide({.fresh = true}, record)));
}

TEST(TakeOver, AFreshNodeOfAJobThatIsBeingRequeuedHasComeTooLate) {
  const GangRecord record = RecordIn(gang::State::kRequeueing);
  EXPECT_TRUE(Refusal(Decide({.fresh = true}, record)));
  EXPECT_FALSE(Refusal(Decide({.known_term = 3}, record)));
}

TEST(TakeOver, ALostNodeComesBackWhenTheOtherWitnessesAreNoMajority) {
  GangRecord record = RecordIn(gang::State::kRunning);
  record.lost = {1};
  const TakeOver::Origin origin{.known_term = 3};
  const auto refusal = Refusal(Decide(origin, record, {.now = kNoWait, .here = {1}}));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code, Errc::kConflict);
  EXPECT_FALSE(Refusal(Decide(origin, record, {.now = kNoWait, .here = {0, 1}})));
  EXPECT_FALSE(Refusal(Decide({.promised = true, .after_term = 3}, record))) << "most have promised it";
  record.state = gang::ToString(gang::State::kFinished);
  EXPECT_FALSE(Refusal(Decide(origin, record))) << "nobody goes on";
  record.state = gang::ToString(gang::State::kRunning);
  record.lost = {0};
  EXPECT_FALSE(Refusal(Decide(origin, record))) << "another is lost";
}

TEST(TakeOver, ATermOfWhichThoseWhoAskHaveNotHeardIsASuccessorsForAWhile) {
  GangRecord record = RecordIn(gang::State::kRunning);
  const TakeOver::Origin origin{.known_term = 2};
  const auto decision = Decide(origin, record, {.now = kNoWait - 1});
  const auto* elsewhere = std::get_if<TakeOver::Elsewhere>(&decision);
  ASSERT_TRUE(elsewhere);
  EXPECT_EQ(elsewhere->coordinator, "n1");
  EXPECT_EQ(elsewhere->term, 3U);
  const auto taken = [](const TakeOver::Decision& d) { return std::holds_alternative<TakeOver::Swap>(d); };
  EXPECT_TRUE(taken(Decide(origin, record, {.now = kNoWait}))) << "it has died unannounced";
  EXPECT_TRUE(taken(Decide({.fresh = true}, record, {})));
  EXPECT_TRUE(taken(Decide({.promised = true, .after_term = 3}, record, {})));
  EXPECT_TRUE(taken(Decide({.known_term = 3}, record, {}))) << "they have heard of it";
  TakeOver rules = Rules(origin);
  rules.Asked(3);
  EXPECT_TRUE(taken(rules.Decide({{3, 2}, &record}, {}, {}))) << "another node asks, which has";
  record.coordinator = "n2";
  EXPECT_TRUE(taken(Decide(origin, record, {}))) << "an earlier life of this daemon";
  record.term = 2;
  const auto unnamed = Refusal(Decide(origin, record, {}));
  ASSERT_TRUE(unnamed) << "whose the term is, the record does not say";
  EXPECT_EQ(unnamed->code, Errc::kConflict);
}

TEST(TakeOver, WhoHasPromisedOneTermTakesNoOther) {
  const GangRecord record = RecordIn(gang::State::kRunning);
  const TakeOver::Origin origin{.promised = true, .after_term = 2};
  const auto refusal = Refusal(Decide(origin, record));
  ASSERT_TRUE(refusal);
  EXPECT_EQ(Rules(origin).NotTaken(*refusal, 0), Next::kStepDown);
  EXPECT_TRUE(Refusal(Rules(origin).Decide({}, {}, {}))) << "there is no record any more";
  EXPECT_TRUE(Rules(origin).ForSure());
  EXPECT_FALSE(Rules({}).ForSure());
}

TEST(TakeOver, AGangThatRunsWaitsForItsStoreAndAFreshOneUntilItIsRefused) {
  const Error away{Errc::kUnavailable, "no answer"};
  const Error full{Errc::kExhausted, "full"};
  const Error faster{Errc::kConflict, "somebody else was faster"};
  const Error damaged{Errc::kCorrupt, "no record"};
  TakeOver runs = Rules({});
  TakeOver fresh = Rules({.fresh = true});
  TakeOver promised = Rules({.promised = true});
  const TakeOver::Nanos late = kUntil.refusal + 1;
  for (const Error& passes : {away, full}) {
    EXPECT_EQ(runs.NotTaken(passes, late), Next::kAgain);
    EXPECT_EQ(fresh.NotTaken(passes, kUntil.refusal), Next::kAgain);
    EXPECT_EQ(fresh.NotTaken(passes, late), Next::kRefuse);
    EXPECT_EQ(promised.NotTaken(passes, 0), Next::kStepDown);
  }
  for (TakeOver rules : {runs, fresh}) {
    EXPECT_EQ(rules.NotTaken(faster, kUntil.refusal), Next::kAgain);
    EXPECT_EQ(rules.NotTaken(faster, late), Next::kRefuse);
    EXPECT_EQ(rules.NotTaken(damaged, 0), Next::kRefuse);
  }
  EXPECT_FALSE(TakeOver::StillAsked({}));
  EXPECT_TRUE(TakeOver::StillAsked({0}));
}

}  // namespace
}  // namespace muster
