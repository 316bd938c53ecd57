// libmuster: a musterd that is restarted, or says what is none of the protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Libmuster, ARestartOfMusterdLosesNoSave) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1, "first"), MUSTER_OK);
  ASSERT_EQ(Save(2, "second"), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.Stop();
  EXPECT_EQ(muster_step(m_, 3, nullptr), MUSTER_OK);  // training goes on
  musterd_.saves.clear();
  musterd_.shards.clear();
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = true; });
  musterd_.Start();
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(muster_wait(m_, 2, 10000), MUSTER_OK) << Said();
  EXPECT_THAT(musterd_.saves, ElementsAre(1, 2));
  EXPECT_THAT(musterd_.shards[2], HasSubstr("second"));
  EXPECT_EQ(musterd_.hellos.back(), "7.0 rank 2 generation 3");
}

TEST_F(Libmuster, ASaveMadeWhileMusterdIsAwayIsHandedOverLater) {
  Open();
  musterd_.Stop();
  ASSERT_EQ(Save(1), MUSTER_OK) << Said();
  musterd_.Start();
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
}

// A program that only says how far it is needs no musterd, however long that is away.
TEST_F(Libmuster, CallsGiveUpWhenMusterdIsAwayForAsLongAsItHasSaidButAStepDoesNot) {
  musterd_.Change([](auto& rules) { rules.reconnect_ms = 300; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  musterd_.Stop();
  uint64_t step = 1;
  EXPECT_TRUE(Eventually([&] {
    const int begun = muster_save_begin_nowait(m_, ++step, 0);
    muster_save_abort(m_);
    return begun == MUSTER_E_UNREACHABLE;
  }));
  EXPECT_EQ(muster_step(m_, step, nullptr), MUSTER_OK);
  musterd_.Start();
  EXPECT_TRUE(Eventually([&] { return muster_save_begin_nowait(m_, step, 0) == MUSTER_OK; })) << Said();
}

TEST_F(Libmuster, AShardThatIsDurableButNotCommittedIsHandedOverAgain) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 1; }));
  musterd_.Stop();
  musterd_.Change([](auto& rules) { rules.committed = true; });
  musterd_.Start();
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  EXPECT_THAT(musterd_.saves, ElementsAre(1, 1));
}

TEST_F(Libmuster, HowASaveEndedWhileMusterdWasRestartedIsAskedFor) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
  Open();
  for (uint64_t step = 1; step <= 4; ++step)
    ASSERT_EQ(Save(step),
              MUSTER_OK);  // the third and the fourth take the buffers of the first and the second
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 4; }));
  for (int restart = 0; restart < 2; ++restart) {
    musterd_.Stop();
    musterd_.Start();
    for (int i = 0; i < 1000; ++i) {
      size_t asked = 0;
      musterd_.Look([&](const auto& m) { asked = m.asked.size(); });
      if (asked == 2U * (restart + 1)) break;
      EXPECT_EQ(muster_wait(m_, 1, 10), MUSTER_E_TIMEOUT);
    }
  }
  EXPECT_THAT(musterd_.asked, ElementsAre(1, 2, 1, 2)) << "of each musterd";
  musterd_.SendCommitted(4);
  EXPECT_EQ(muster_wait(m_, 4, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT) << "a newer commit says nothing of it";
  musterd_.SendCommitted(1);
  musterd_.SendCommitted(2, MUSTER_E_STORE, "its shard was lost");
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(muster_wait(m_, 2, 10000), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("its shard was lost"));
}

// The first musterd's word counts: its shard is whole, and the others may not hear of the second one's trouble.
TEST_F(Libmuster, ASaveThatWasDurableIsNotFailedByTheMusterdThatItIsHandedToAgain) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait_durable(m_, 1, 10000), MUSTER_OK) << Said();
  musterd_.Stop();
  musterd_.Change([](auto& rules) { rules.durable = false; });
  musterd_.Start();
  ASSERT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_wait(m_, 1, 10), MUSTER_E_TIMEOUT);
    size_t saves = 0;
    musterd_.Look([&](const auto& m) { saves = m.saves.size(); });
    return saves == 2;
  }));
  musterd_.SendDurable(1, MUSTER_E_STORE, "the pool is full");
  ASSERT_TRUE(Eventually([&] {
    EXPECT_EQ(muster_wait(m_, 1, 10), MUSTER_E_TIMEOUT);
    size_t asked = 0;
    musterd_.Look([&](const auto& m) { asked = m.asked.size(); });
    return asked == 1;
  })) << "how it ends is asked for";
  musterd_.SendCommitted(1);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(Save(2), MUSTER_OK);
  EXPECT_EQ(Save(3), MUSTER_OK) << "its buffer is free";
}

TEST_F(Libmuster, ACommitThatComesWithTheWelcomeFreesWhatWasToBeHandedOverAgain) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.Stop();
  musterd_.Change([](auto& rules) { rules.tells = {1, 2}; });
  musterd_.Start();
  ASSERT_TRUE(Eventually([&] { return muster_committed(m_) == 2; }));
  for (uint64_t step = 3; step <= 5; ++step) ASSERT_EQ(Save(step), MUSTER_OK) << Said();
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() >= 5; }));
  musterd_.SendCommitted(5);
  EXPECT_EQ(muster_wait(m_, 5, 10000), MUSTER_OK) << Said();
}

TEST_F(Libmuster, OneWhoCallsSeldomFindsMusterdAgain) {
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  musterd_.Stop();
  musterd_.Start();
  ::usleep(300'000);  // longer than between two attempts to connect
  EXPECT_EQ(muster_step(m_, 1, nullptr), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.hellos.size() == 2; }));
  ::sleep(11);  // longer than a welcome is waited for
  EXPECT_EQ(muster_step(m_, 1, nullptr), MUSTER_OK);
  EXPECT_EQ(Save(4), MUSTER_OK) << Said();
  EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; })) << "handed over in the call";
  EXPECT_EQ(musterd_.hellos.size(), 2U);
}

TEST_F(Libmuster, AnOlderMusterdIsNotAskedAndALaterCommitEndsTheWait) {
  musterd_.Change([](auto& rules) {
    rules.committed = false;
    rules.features = wire::kKnowsShards | wire::kKnowsRanges;
  });
  Open();
  for (uint64_t step = 1; step <= 3; ++step)
    ASSERT_EQ(Save(step), MUSTER_OK);  // the third takes the first's buffer
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 3; }));
  musterd_.Stop();
  musterd_.Change([](auto& rules) { rules.committed = true; });
  musterd_.Start();
  EXPECT_EQ(muster_wait(m_, 3, 10000), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("restart of musterd"));
}

TEST_F(Libmuster, ANewGenerationEndsTheHandleForGood) {
  Open();
  musterd_.Stop();
  musterd_.Change([](auto& rules) {
    rules.refusal = wire::Refusal::kStaleGeneration;
    rules.refusal_text = "generation 3 is over";
  });
  musterd_.Start();
  muster_wish wish;
  EXPECT_TRUE(Eventually([&] { return muster_step(m_, 1, &wish) == MUSTER_E_DENIED; }));
  EXPECT_STREQ(wish.reason, "generation 3 is over");
  EXPECT_EQ(muster_save_begin(m_, 1, 0), MUSTER_E_DENIED);
}

TEST_F(Libmuster, PacketsThatAreNoneEndTheHandle) {
  Open();
  musterd_.SendRaw("this is not a message of Muster's protocol");
  EXPECT_TRUE(Eventually([&] { return muster_step(m_, 1, nullptr) == MUSTER_E_PROTOCOL; }));
}

TEST_F(Libmuster, MessagesThatAreTooShortOrUnknownAreIgnored) {
  Open();
  struct {
    wire::Header header;
  } unknown{}, cut{};
  wire::SetHeader(&unknown, static_cast<wire::Type>(999));
  wire::SetHeader(&cut, wire::Type::kCommitted);
  musterd_.SendRaw(std::string(reinterpret_cast<char*>(&unknown), sizeof(unknown)));
  musterd_.SendRaw(std::string(reinterpret_cast<char*>(&cut), sizeof(cut)));
  wire::Committed lying{};
  wire::SetHeader(&lying, wire::Type::kCommitted);
  lying.step = 5;
  lying.status = -99;
  lying.text_bytes = 1 << 30;
  musterd_.SendRaw(std::string(reinterpret_cast<char*>(&lying), sizeof(lying)));
  ASSERT_EQ(Save(6), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 6, 10000), MUSTER_OK) << Said();
}

}  // namespace
}  // namespace muster
