#include "daemon/agent/orders.h"

#include <gtest/gtest.h>

#include <optional>

#include "daemon/agent/member_stop.h"

namespace muster {
namespace {

TEST(Orders, OnlyTheHighestTermIsObeyed) {
  Orders orders;
  EXPECT_TRUE(orders.Adopt(3));
  EXPECT_FALSE(orders.Adopt(3));
  EXPECT_FALSE(orders.Adopt(2));
  EXPECT_EQ(orders.term(), 3U);
  EXPECT_FALSE(orders.Obeys(2));
  EXPECT_TRUE(orders.Obeys(3));
  EXPECT_TRUE(orders.Obeys(4));
  EXPECT_TRUE(orders.Obeys(0)) << "what is no order";
}

TEST(Orders, AStopIsAnsweredOnceAndAgainWhenItIsOrderedAgain) {
  Orders orders;
  EXPECT_FALSE(orders.OwesStopped());
  EXPECT_TRUE(orders.Stop(4));
  EXPECT_FALSE(orders.MayRun(4));
  EXPECT_TRUE(orders.MayRun(5));
  EXPECT_TRUE(orders.OwesStopped());
  orders.SaidStopped();
  EXPECT_EQ(orders.said_stopped(), 4U);
  EXPECT_FALSE(orders.OwesStopped());
  EXPECT_FALSE(orders.Stop(3));
  EXPECT_FALSE(orders.OwesStopped()) << "an older order is none";
  EXPECT_TRUE(orders.Stop(4));
  EXPECT_TRUE(orders.OwesStopped()) << "another coordinator may be asking";
}

TEST(Orders, WhatExitsIsSaidOnceAnOrder) {
  Orders orders;
  orders.Adopt(1);
  orders.Stop(4);
  EXPECT_TRUE(orders.SayExiting());
  EXPECT_FALSE(orders.SayExiting());
  EXPECT_TRUE(orders.OwesStopped());
  orders.Stop(4);
  EXPECT_TRUE(orders.SayExiting());
  orders.Adopt(2);
  EXPECT_TRUE(orders.SayExiting());
}

TEST(Orders, WhatACoordinatorBeforeHasStoppedTheNextOneMayStart) {
  Orders orders;
  orders.Adopt(1);
  orders.Stop(9);
  orders.Adopt(2);
  EXPECT_TRUE(orders.MayRun(5));
  EXPECT_EQ(orders.stopped(), 0U);
  EXPECT_FALSE(orders.OwesStopped());
}

TEST(Orders, AGenerationIsNewsOnceAndSurvivesARestart) {
  Orders orders;
  orders.Restore(2, 5, 40);
  EXPECT_EQ(orders.term(), 2U);
  EXPECT_FALSE(orders.Start(5, 40));
  EXPECT_EQ(orders.from(), 40U);
  EXPECT_TRUE(orders.Start(6, std::nullopt));
  EXPECT_EQ(orders.started(), 6U);
  EXPECT_EQ(orders.from(), std::nullopt);
  EXPECT_TRUE(orders.OwesExecuted(6));
  orders.SaidExecuted(6);
  EXPECT_FALSE(orders.OwesExecuted(6));
  EXPECT_TRUE(orders.OwesExecuted(7));
}

TEST(MemberStop, AnOrderIsSentOnceAndAnotherOnlyToEndLastWords) {
  MemberStop at_once;
  EXPECT_TRUE(at_once.Order(false));
  EXPECT_FALSE(at_once.Order(false));
  EXPECT_FALSE(at_once.Order(true));
  MemberStop with_words;
  EXPECT_TRUE(with_words.Order(true));
  EXPECT_FALSE(with_words.Order(true));
  EXPECT_TRUE(with_words.Order(false));
  EXPECT_FALSE(with_words.Order(true));
}

}  // namespace
}  // namespace muster
