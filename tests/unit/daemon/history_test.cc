#include "daemon/coordinator/history.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace muster {
namespace {

using ::testing::SizeIs;

GangRecord RecordWith(const History& history) {
  GangRecord record;
  history.WriteInto(&record);
  return record;
}

TEST(History, TheFirstEventsAndTheNewestAreKept) {
  History history("12.0");
  for (size_t event = 0; event < History::kMostEvents + 50; ++event)
    history.Add("joined", fmt::format("{}", event), event);
  const auto events = RecordWith(history).events;
  ASSERT_THAT(events, SizeIs(History::kMostEvents));
  EXPECT_EQ(events[0].kind, "joined");
  EXPECT_EQ(events[0].text, "0");
  EXPECT_EQ(events[99].text, "99");
  EXPECT_EQ(events[100].text, "150") << "the 50 events after the first 100 were dropped";
  EXPECT_EQ(events.back().text, "549");
  EXPECT_EQ(events.back().generation, 549U);
}

TEST(History, WhatIsPlannedLeavesTheNewestFaultAsItIs) {
  History history("12.0");
  history.Fault("rank 1 exited with code 1");
  EXPECT_EQ(history.restart_cause(), "rank 1 exited with code 1");
  history.Planned("n1 is drained");
  const GangRecord record = RecordWith(history);
  EXPECT_EQ(record.first_cause, "rank 1 exited with code 1");
  EXPECT_EQ(record.restart_cause, "n1 is drained");
}

TEST(History, AnotherCoordinatorGoesOnWithIt) {
  GangRecord before;
  before.created_ns = 5;
  before.first_cause = "rank 1 exited with code 1";
  before.restart_cause = "n1 is drained";
  before.events = {{6, 1, "joined", "all 2 nodes are here"}};
  History history("12.0");
  history.GoOn(before);
  history.Add("coordinator", "n2 coordinates, term 2", 1);
  const GangRecord record = RecordWith(history);
  EXPECT_EQ(record.created_ns, 5);
  EXPECT_EQ(record.first_cause, before.first_cause);
  EXPECT_EQ(record.restart_cause, before.restart_cause);
  ASSERT_THAT(record.events, SizeIs(2));
  EXPECT_EQ(record.events[0].text, "all 2 nodes are here");
  EXPECT_EQ(record.events[1].text, "n2 coordinates, term 2");
}

TEST(History, AGangThatHasWaitedForItsRecordIsThereSinceItsEnd) {
  const int64_t start = RealtimeNs();
  History history("12.0");
  const int64_t made = history.created_ns();
  EXPECT_GE(made, start);
  while (RealtimeNs() <= made) {
  }
  history.BeginNow();
  EXPECT_GT(RecordWith(history).created_ns, made);
}

}  // namespace
}  // namespace muster
