#include "daemon/agent/coordinator_search.h"

#include <gtest/gtest.h>

#include <optional>

namespace muster {
namespace {

constexpr CoordinatorSearch::Nanos kMs = CoordinatorSearch::kMillisecond;

CoordinatorSearch Search() {
  return CoordinatorSearch({1, 2, 0}, {});
}

// Dials, and the link ends at once. How long the next dial waits, in ms.
int64_t LostAt(CoordinatorSearch* search, CoordinatorSearch::Nanos now) {
  search->Dial(now);
  search->Lost(now);
  return (search->due().value_or(-1) - now) / kMs;
}

TEST(CoordinatorSearch, TheFirstCandidateIsAskedFirst) {
  CoordinatorSearch search = Search();
  EXPECT_EQ(search.coordinator(), 1U);
  EXPECT_TRUE(search.Idle());
  EXPECT_FALSE(search.due());
}

TEST(CoordinatorSearch, ARestartedMusterdAsksTheCoordinatorThatItKnew) {
  CoordinatorSearch search = Search();
  search.Restore(7);
  EXPECT_EQ(search.coordinator(), 7U);
}

TEST(CoordinatorSearch, ALinkWithoutAWordIsHungUp) {
  CoordinatorSearch search = Search();
  search.Dial(5 * kMs);
  EXPECT_FALSE(search.Idle());
  EXPECT_EQ(search.linked_at(), 5 * kMs);
  EXPECT_EQ(search.due(), 10'005 * kMs);
  EXPECT_EQ(search.Due(), CoordinatorSearch::Step::kHangUp);
  EXPECT_FALSE(search.due()) << "once";
}

TEST(CoordinatorSearch, ALinkWithAWordIsKept) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  search.Heard();
  EXPECT_FALSE(search.due());
  EXPECT_FALSE(search.Idle());
}

TEST(CoordinatorSearch, ALostLinkIsDialledAgainAfterAWait) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  search.Heard();
  search.Lost(kMs);
  EXPECT_EQ(search.due(), 51 * kMs);
  EXPECT_FALSE(search.Idle()) << "nobody else is to dial meanwhile";
  EXPECT_FALSE(search.linked_at());
  EXPECT_EQ(search.Due(), CoordinatorSearch::Step::kDial);
}

TEST(CoordinatorSearch, WaitsGrowUntilAWordIsHeard) {
  CoordinatorSearch search = Search();
  EXPECT_TRUE(search.FirstWait());
  EXPECT_EQ(LostAt(&search, 0), 50);
  EXPECT_FALSE(search.FirstWait());
  EXPECT_EQ(LostAt(&search, 0), 100);
  EXPECT_EQ(LostAt(&search, 0), 200);
  EXPECT_EQ(LostAt(&search, 0), 400);
  EXPECT_EQ(LostAt(&search, 0), 800);
  EXPECT_EQ(LostAt(&search, 0), 1000);
  EXPECT_EQ(LostAt(&search, 0), 1000);
  search.Dial(0);
  search.Heard();
  EXPECT_TRUE(search.FirstWait());
  search.Lost(0);
  EXPECT_EQ(search.due(), 50 * kMs);
}

TEST(CoordinatorSearch, WhatAnOlderLinkSaysIsDropped) {
  CoordinatorSearch search = Search();
  const uint64_t first = search.Dial(0);
  EXPECT_TRUE(search.IsNewest(first));
  search.Lost(0);
  EXPECT_FALSE(search.IsNewest(first)) << "it is told once that a link has ended";
  const uint64_t second = search.Dial(0);
  EXPECT_TRUE(search.IsNewest(second));
  search.Anew();
  EXPECT_FALSE(search.IsNewest(second));
  const uint64_t third = search.Dial(0);
  search.Anew();
  EXPECT_FALSE(search.IsNewest(third));
  EXPECT_TRUE(search.Idle());
}

TEST(CoordinatorSearch, AWordThatComesLateEndsNoWait) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  search.Lost(0);
  search.Heard();
  EXPECT_TRUE(search.due());
}

TEST(CoordinatorSearch, WithoutALeaseEachCandidateIsAskedInTurn) {
  CoordinatorSearch search = Search();
  LostAt(&search, 1'000 * kMs);
  LostAt(&search, 6'000 * kMs);
  EXPECT_EQ(search.coordinator(), 1U) << "not before the time is over";
  LostAt(&search, 6'001 * kMs);
  EXPECT_EQ(search.coordinator(), 2U);
  LostAt(&search, 6'002 * kMs);
  EXPECT_EQ(search.coordinator(), 0U);
  LostAt(&search, 6'003 * kMs);
  EXPECT_EQ(search.coordinator(), 1U) << "and again from the first";
}

TEST(CoordinatorSearch, AfterANodeThatIsNoCandidateTheFirstCandidateIsAsked) {
  CoordinatorSearch search = Search();
  search.Restore(9);
  LostAt(&search, 0);
  LostAt(&search, 5'001 * kMs);
  EXPECT_EQ(search.coordinator(), 1U);
}

TEST(CoordinatorSearch, WithALeaseTheSameNodeIsDialledUntilTheBeatsNameAnother) {
  CoordinatorSearch search = Search();
  LostAt(&search, 0);
  search.TakenIn(1);
  EXPECT_FALSE(search.LeaseBegins());
  EXPECT_TRUE(search.attended());
  LostAt(&search, 60'000 * kMs);
  LostAt(&search, 90'000 * kMs);
  EXPECT_EQ(search.coordinator(), 1U);
  search.LeaseEnds();
  EXPECT_FALSE(search.attended());
  LostAt(&search, 100'000 * kMs);
  EXPECT_EQ(search.coordinator(), 1U) << "the time counts from the first loss without a lease";
  LostAt(&search, 105'001 * kMs);
  EXPECT_EQ(search.coordinator(), 2U);
}

TEST(CoordinatorSearch, TheTimeBeginsAgainWhenACoordinatorHasTakenTheNodeIn) {
  CoordinatorSearch search = Search();
  LostAt(&search, 0);
  search.TakenIn(2);
  EXPECT_EQ(search.coordinator(), 2U);
  EXPECT_EQ(search.followed(), 2U);
  LostAt(&search, 5'001 * kMs);
  EXPECT_EQ(search.coordinator(), 2U);
}

TEST(CoordinatorSearch, ALossWithALeaseEndsTheTimeWithout) {
  CoordinatorSearch search = Search();
  search.TakenIn(1);
  LostAt(&search, 0);
  EXPECT_FALSE(search.LeaseBegins());
  LostAt(&search, 1'000 * kMs);
  search.LeaseEnds();
  LostAt(&search, 6'000 * kMs);
  EXPECT_EQ(search.coordinator(), 1U);
}

TEST(CoordinatorSearch, ALeaseThatBeginsBringsTheNodeBackToItsCoordinator) {
  CoordinatorSearch search = Search();
  search.TakenIn(0);
  LostAt(&search, 0);
  LostAt(&search, 5'001 * kMs);
  ASSERT_EQ(search.coordinator(), 1U) << "in vain";
  EXPECT_TRUE(search.LeaseBegins());
  EXPECT_EQ(search.coordinator(), 0U);
  EXPECT_TRUE(search.Idle()) << "it is dialled at once";
}

TEST(CoordinatorSearch, AnAnnouncedNodeIsDialledAtOnceAndFollowed) {
  CoordinatorSearch search = Search();
  LostAt(&search, 0);
  LostAt(&search, 0);
  EXPECT_TRUE(search.Announced(2));
  EXPECT_EQ(search.coordinator(), 2U);
  EXPECT_EQ(search.followed(), 2U);
  EXPECT_TRUE(search.Idle());
  EXPECT_TRUE(search.FirstWait());
}

TEST(CoordinatorSearch, AHigherTermOfTheNodeThatItIsLinkedToNeedsNoNewLink) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  EXPECT_FALSE(search.Announced(search.coordinator()));
  EXPECT_FALSE(search.Idle());
  EXPECT_TRUE(search.Announced(0));
  search.Dial(0);
  search.TookOver(1);
  EXPECT_TRUE(search.Idle()) << "whoever has taken over registers anew";
}

TEST(CoordinatorSearch, TheRecordsNodeIsFollowedAndDialledWhenItIsNews) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  EXPECT_FALSE(search.Recorded(1, false));
  EXPECT_TRUE(search.linked_at());
  EXPECT_EQ(search.followed(), 1U) << "the lease may not know it";
  EXPECT_TRUE(search.Recorded(1, true)) << "of a new term: it wants a registration in that one";
  EXPECT_FALSE(search.linked_at());
  EXPECT_TRUE(search.Recorded(2, false));
  EXPECT_EQ(search.coordinator(), 2U);
  EXPECT_EQ(search.followed(), 2U);
}

TEST(CoordinatorSearch, TheNodeThatCoordinatesRegistersWithItself) {
  CoordinatorSearch search = Search();
  LostAt(&search, 0);
  EXPECT_TRUE(search.CoordinatedHere(2));
  EXPECT_EQ(search.coordinator(), 2U);
  EXPECT_EQ(search.followed(), 2U) << "the lease, when it begins, does not bring it back";
  EXPECT_FALSE(search.CoordinatedHere(2)) << "done";
  EXPECT_FALSE(search.LeaseBegins());
}

TEST(CoordinatorSearch, ANodeThatACoordinatorHearsWaitsForItsBeats) {
  CoordinatorSearch search = Search();
  search.TakenIn(1);
  EXPECT_FALSE(search.LeaseBegins());
  EXPECT_FALSE(search.CoordinatedHere(2));
  EXPECT_EQ(search.coordinator(), 1U);
}

TEST(CoordinatorSearch, ANodeThatKnowsOfAnotherIsBelieved) {
  CoordinatorSearch search = Search();
  search.TakenIn(1);
  search.Dial(0);
  EXPECT_FALSE(search.Elsewhere(std::nullopt));
  EXPECT_FALSE(search.Elsewhere(1)) << "the one that says so";
  EXPECT_TRUE(search.linked_at()) << "the owner hangs up";
  EXPECT_TRUE(search.Elsewhere(2));
  EXPECT_EQ(search.coordinator(), 2U);
  EXPECT_EQ(search.followed(), 1U) << "hearsay";
  EXPECT_TRUE(search.Idle());
}

TEST(CoordinatorSearch, ACoordinatorThatHasWaitedIsMissedOnceAfterItsLinkHasEnded) {
  CoordinatorSearch search = Search();
  search.Dial(0);
  EXPECT_FALSE(search.WaitedLately());
  EXPECT_EQ(search.Patience(6'000 * kMs), 6'000 * kMs);
  search.CoordinatorWaits();
  EXPECT_EQ(search.Patience(6'000 * kMs), 60'000 * kMs) << "its host may be dead, and is dialled first";
  EXPECT_EQ(search.Patience(90'000 * kMs), 90'000 * kMs);
  EXPECT_TRUE(search.WaitedLately());
  EXPECT_TRUE(search.WaitedLately()) << "it still waits";
  search.Lost(1);
  EXPECT_TRUE(search.WaitedLately());
  EXPECT_FALSE(search.WaitedLately());
  EXPECT_TRUE(search.has_waited());
}

TEST(CoordinatorSearch, ACoordinatorThatWaitsIsNotLeftForWhatWasLongAgo) {
  CoordinatorSearch search = Search();
  LostAt(&search, 0);
  search.Dial(100 * kMs);
  search.CoordinatorWaits();
  LostAt(&search, 60'000 * kMs);
  EXPECT_EQ(search.coordinator(), 1U);
  LostAt(&search, 65'001 * kMs);
  EXPECT_EQ(search.coordinator(), 2U) << "the time counts from the loss of the link on which it waited";
}

TEST(CoordinatorSearch, ANewRegistrationGoesToTheSameNode) {
  CoordinatorSearch search = Search();
  const uint64_t link = search.Dial(0);
  search.Anew();
  EXPECT_EQ(search.coordinator(), 1U);
  EXPECT_TRUE(search.Idle());
  EXPECT_FALSE(search.IsNewest(link));
}

}  // namespace
}  // namespace muster
