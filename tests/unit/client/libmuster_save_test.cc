// libmuster: saves, how they end, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Libmuster, EqualStatesGiveEqualBytesAlsoInUsedMemory) {
  Open();
  const std::string large(100000, 'L');
  for (uint64_t step = 1; step <= 2; ++step) ASSERT_EQ(Save(step, large), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 2, 10000), MUSTER_OK);
  for (uint64_t step = 3; step <= 6; ++step) {
    ASSERT_EQ(muster_save_begin(m_, step, 0), MUSTER_OK);
    ASSERT_EQ(muster_save_add(m_, "a", nullptr, "x", 1), MUSTER_OK);
    ASSERT_EQ(muster_save_add(m_, "b", nullptr, "yz", 2), MUSTER_OK);
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
    ASSERT_EQ(muster_wait(m_, step, 10000), MUSTER_OK);
  }
  EXPECT_EQ(musterd_.shards[3], musterd_.shards[4]);
  EXPECT_EQ(musterd_.shards[3], musterd_.shards[6]);
}

TEST_F(Libmuster, BadEntriesAreRefusedAndTheSaveGoesOn) {
  Open();
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_commit(m_), MUSTER_E_INVALID);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  EXPECT_EQ(muster_save_begin(m_, 2, 0), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, nullptr, nullptr, "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, "", nullptr, "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, "a\nb", nullptr, "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, std::string(256, 'n').c_str(), nullptr, "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, "x", std::string(4097, 'm').c_str(), "d", 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, nullptr, 1), MUSTER_E_INVALID);
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, "d", SIZE_MAX), MUSTER_E_TOO_LARGE);
  EXPECT_EQ(muster_save_add(m_, std::string(255, 'n').c_str(), std::string(4096, 'm').c_str(), "d", 1),
            MUSTER_OK);
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, "d", 1), MUSTER_OK);
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, "e", 1), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("'x' is in this save already"));
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  muster_restore* r = nullptr;
  ASSERT_EQ(muster_restore_open(m_, 1, &r), MUSTER_OK);
  EXPECT_EQ(muster_restore_count(r), 2u);
  muster_restore_close(r);
}

TEST_F(Libmuster, WithoutCudaInTheProcessMemoryOfAGpuIsRefused) {
  Open();
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  EXPECT_EQ(muster_save_add_device(m_, "x", nullptr, "d", 1, nullptr), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("this process has not loaded CUDA"));
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, "d", 1), MUSTER_OK);
  EXPECT_EQ(muster_save_commit(m_), MUSTER_OK);
}

TEST_F(Libmuster, ManyEntriesAreFoundByName) {
  Open();
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(muster_save_add(m_, ("layer." + std::to_string(i)).c_str(), nullptr, &i, sizeof(i)), MUSTER_OK);
  }
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  muster_restore* r = nullptr;
  ASSERT_EQ(muster_restore_open(m_, 1, &r), MUSTER_OK);
  for (int i = 0; i < 5000; ++i) {
    int got = -1;
    ASSERT_EQ(muster_restore_get(r, ("layer." + std::to_string(i)).c_str(), &got, sizeof(got)), MUSTER_OK);
    EXPECT_EQ(got, i);
  }
  muster_restore_close(r);
}

TEST_F(Libmuster, ACommittedStepIsSavedOnceAndStepsGoUp) {
  Open();
  ASSERT_EQ(Save(10), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 10, 10000), MUSTER_OK);
  EXPECT_EQ(Save(10), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("step 10 is committed already"));
  EXPECT_EQ(Save(9), MUSTER_E_INVALID);
  EXPECT_EQ(Save(MUSTER_LATEST), MUSTER_E_INVALID);
  ASSERT_EQ(muster_save_begin(m_, 11, 0), MUSTER_OK);
  muster_save_abort(m_);
  EXPECT_EQ(Save(11), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 11, 10000), MUSTER_OK);
  EXPECT_THAT(musterd_.saves, ElementsAre(10, 11));
}

// Another member has failed, and all save the step again.
TEST_F(Libmuster, AStepThatIsNotCommittedMayBeSavedAgainOnceItIsWritten) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(10, "first"), MUSTER_OK);
  EXPECT_EQ(muster_save_begin_nowait(m_, 10, 0), MUSTER_E_BUSY);
  EXPECT_THAT(Said(), HasSubstr("the save of step 10 is still being written"));
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 1; }));
  musterd_.SendDurable(10);
  ASSERT_EQ(Save(10, "second"), MUSTER_OK);
  EXPECT_EQ(Save(9), MUSTER_E_INVALID);
  EXPECT_EQ(muster_wait(m_, 10, 0), MUSTER_E_TIMEOUT);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDurable(10);
  musterd_.SendCommitted(10);
  EXPECT_EQ(muster_wait(m_, 10, 10000), MUSTER_OK);
  EXPECT_EQ(Save(10), MUSTER_E_INVALID);
  EXPECT_THAT(musterd_.shards[10], HasSubstr("second"));
}

TEST_F(Libmuster, AStepThatHasFailedMayBeSavedAgain) {
  musterd_.Change([](auto& rules) {
    rules.save_status = MUSTER_E_STORE;
    rules.save_text = "full";
  });
  Open();
  ASSERT_EQ(Save(10, "first"), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 10, 10000), MUSTER_E_STORE);
  musterd_.Change([](auto& rules) { rules.save_status = 0; });
  ASSERT_EQ(Save(10, "second"), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 10, 10000), MUSTER_OK);
  EXPECT_THAT(musterd_.saves, ElementsAre(10, 10));
}

// Only the second of both is handed over again, though the first one's memory holds it still.
TEST_F(Libmuster, AStepThatWasSavedAgainIsHandedOverOnceWhenTheDaemonComesBack) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
  Open();
  ASSERT_EQ(Save(10, "first"), MUSTER_OK);
  ASSERT_EQ(muster_wait_durable(m_, 10, 10000), MUSTER_OK);
  ASSERT_EQ(Save(10, "second"), MUSTER_OK);
  ASSERT_EQ(muster_wait_durable(m_, 10, 10000), MUSTER_OK);
  musterd_.Stop();
  musterd_.Start();
  musterd_.Change([](auto& rules) { rules.committed = true; });
  ASSERT_EQ(muster_wait(m_, 10, 10000), MUSTER_OK);
  EXPECT_THAT(musterd_.saves, ElementsAre(10, 10, 10));
  EXPECT_THAT(musterd_.shards[10], HasSubstr("second"));
}

TEST_F(Libmuster, TheDaemonsLimitIsKept) {
  musterd_.Change([](auto& rules) { rules.max_shard_bytes = 1 << 20; });
  Open();
  EXPECT_EQ(muster_save_begin(m_, 1, 2 << 20), MUSTER_E_TOO_LARGE);
  ASSERT_EQ(muster_save_begin(m_, 1, 0), MUSTER_OK);
  const std::string data((1 << 20) - 64, 'x');
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, data.data(), data.size() + 1), MUSTER_E_TOO_LARGE);
  EXPECT_EQ(muster_save_add(m_, "x", nullptr, data.data(), data.size()), MUSTER_OK);
  EXPECT_EQ(muster_save_commit(m_), MUSTER_E_TOO_LARGE);  // no room for the index
  EXPECT_EQ(Save(1, "small"), MUSTER_OK);
}

TEST_F(Libmuster, ASecondSaveGoesIntoTheSecondBufferAndAThirdWaits) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_E_BUSY);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  std::thread later([&] {
    ::usleep(50'000);
    musterd_.SendDurable(1);
  });
  ASSERT_EQ(muster_save_begin(m_, 3, 0), MUSTER_OK) << Said();
  later.join();
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 2, 20), MUSTER_E_TIMEOUT);
  EXPECT_THAT(Said(), HasSubstr("not durable"));
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
  EXPECT_THAT(Said(), HasSubstr("other members"));
}

TEST_F(Libmuster, WithMemoryForOneBufferASaveWaitsForTheOneBefore) {
  musterd_.Change([](auto& rules) {
    rules.durable = rules.committed = false;
    rules.memories = 1;
  });
  Open();
  const std::string large(40 << 20, 'L');
  ASSERT_EQ(Save(1, large), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 1; }));
  EXPECT_EQ(muster_save_begin_nowait(m_, 2, large.size()), MUSTER_E_BUSY);
  EXPECT_THAT(Said(), HasSubstr("room for one only: no memory for a shard of"));
  EXPECT_THAT(Said(), HasSubstr("the job's memory limit leaves 3 MiB"));
  // Who polls does not ask each time.
  EXPECT_EQ(muster_save_begin_nowait(m_, 2, large.size()), MUSTER_E_BUSY);
  EXPECT_THAT(Said(), HasSubstr("the job's memory limit leaves 3 MiB"));
  std::thread later([&] {
    ::usleep(50'000);
    musterd_.SendDurable(1);
  });
  ASSERT_EQ(muster_save_begin(m_, 2, large.size()), MUSTER_OK) << Said();
  later.join();
  ASSERT_EQ(muster_save_add(m_, "x", nullptr, large.data(), large.size()), MUSTER_OK);
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDurable(2);
  // It is there now: the next two do not wait.
  musterd_.Change([](auto& rules) { rules.memories = 2; });
  ASSERT_EQ(muster_wait_durable(m_, 2, 10000), MUSTER_OK);
  ASSERT_EQ(Save(3, large), MUSTER_OK);
  EXPECT_TRUE(Eventually([&] { return muster_save_begin_nowait(m_, 4, large.size()) == MUSTER_OK; }))
      << Said();
}

// It would find out half way that there is no memory, each time again.
TEST_F(Libmuster, WithMemoryForOneBufferASaveOfUnknownSizeGoesIntoTheOneThatHasHeldOne) {
  musterd_.Change([](auto& rules) { rules.memories = 1; });
  Open();
  const std::string large(40 << 20, 'L');
  for (const uint64_t step : {1, 2, 3}) {
    ASSERT_EQ(muster_save_begin(m_, step, 0), MUSTER_OK) << Said();
    ASSERT_EQ(muster_save_add(m_, "x", nullptr, large.data(), large.size()), MUSTER_OK) << Said();
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  }
  EXPECT_EQ(muster_wait(m_, 3, 10000), MUSTER_OK) << Said();
}

// Else the program would stand still for as long as the store.
TEST_F(Libmuster, WithMemoryForOneBufferASaveThatTheStoreDoesNotTakeIsGivenUpForTheNext) {
  musterd_.Change([](auto& rules) {
    rules.durable = rules.committed = false;
    rules.memories = 1;
  });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 1; }));
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  ASSERT_EQ(muster_save_begin(m_, 2, 0), MUSTER_OK) << Said();
  EXPECT_THAT(musterd_.given_up, ElementsAre(1));
}

TEST_F(Libmuster, ASaveForWhichThereIsNoMemorySaysSoAndTheNextMayFindSome) {
  musterd_.Change([](auto& rules) { rules.memories = 0; });
  Open();
  EXPECT_EQ(muster_save_begin(m_, 1, 100 << 20), MUSTER_E_NO_MEMORY);
  EXPECT_THAT(Said(), HasSubstr("the job's memory limit leaves 3 MiB"));
  EXPECT_EQ(muster_save_commit(m_), MUSTER_E_INVALID);
  musterd_.Change([](auto& rules) { rules.memories = 1; });
  EXPECT_TRUE(Eventually([&] { return Save(1) == MUSTER_OK; })) << Said();
}

TEST_F(Libmuster, MemoryIsAskedForAsAWholeAndOnlyWhenASaveOutgrowsWhatItHas) {
  Open();
  for (const uint64_t step : {1, 2, 3, 4}) {
    ASSERT_EQ(muster_save_begin(m_, step, 20 << 20), MUSTER_OK);
    const std::string data(20 << 20, 'd');
    ASSERT_EQ(muster_save_add(m_, "x", nullptr, data.data(), data.size()), MUSTER_OK);
    ASSERT_EQ(muster_save_commit(m_), MUSTER_OK);
  }
  ASSERT_EQ(muster_wait(m_, 4, 10000), MUSTER_OK);
  EXPECT_THAT(musterd_.wanted, ElementsAre(32u << 20, 32u << 20));  // one for each buffer
}

TEST_F(Libmuster, AMusterdThatDoesNotSayWhetherThereIsMemoryIsNotWaitedFor) {
  musterd_.Change([](auto& rules) { rules.answers_memory = false; });
  Open();
  EXPECT_EQ(Save(1), MUSTER_OK) << Said();
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
}

TEST_F(Libmuster, AnOlderMusterdIsNotAskedForMemory) {
  musterd_.Change([](auto& rules) { rules.features &= ~wire::kGrantsMemory; });
  Open();
  EXPECT_EQ(Save(1), MUSTER_OK) << Said();
  EXPECT_TRUE(musterd_.wanted.empty());
}

// The program stands still: that must not look as if it computed.
TEST_F(Libmuster, AWaitOfASecondIsSaidOnceAMinute) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  testing::internal::CaptureStderr();
  for (const uint64_t step : {1, 2}) {
    ASSERT_TRUE(musterd_.Await([&](const auto& m) { return m.saves.size() == step + 1; }));
    std::thread later([&] {
      ::usleep(step == 1 ? 4'000'000 : 1'100'000);  // from before the save waits
      musterd_.SendDurable(step);
    });
    EXPECT_EQ(Save(step + 2), MUSTER_OK) << Said();
    later.join();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex(
                  "muster: rank 2: the save of step 3 waited [0-9.]+ s for a staging buffer: the store "
                  "takes saves more slowly than they come\n"));
}

TEST_F(Libmuster, ASaveThatTheStoreDoesNotTakeMakesRoomForANewerOne) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1, "one"), MUSTER_OK);
  ASSERT_EQ(Save(2, "two"), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  musterd_.SendDelayed(2, MUSTER_E_STORE, "the pool is full");
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
  EXPECT_THAT(Said(), HasSubstr("the pool is full"));
  EXPECT_EQ(muster_wait_durable(m_, 2, 20), MUSTER_E_TIMEOUT);
  EXPECT_THAT(Said(), HasSubstr("the pool is full"));
  for (uint64_t step = 3; step < 8; ++step) {
    ASSERT_EQ(Save(step, "more"), MUSTER_OK) << Said();
    ASSERT_TRUE(musterd_.Await([&](const auto& m) { return m.saves.size() == step; }));
    musterd_.SendDelayed(step, MUSTER_E_STORE, "the pool is full");
  }
  musterd_.Look([](const auto& m) { EXPECT_THAT(m.given_up, testing::ElementsAre(1, 2, 3, 4, 5)); });
  EXPECT_EQ(muster_wait(m_, 5, 0), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("it was given up"));
  EXPECT_EQ(muster_wait(m_, 6, 20), MUSTER_E_TIMEOUT) << "the newest two are kept";
  EXPECT_EQ(muster_wait(m_, 7, 20), MUSTER_E_TIMEOUT);
  musterd_.SendDurable(7);
  musterd_.SendCommitted(7);
  EXPECT_EQ(muster_wait(m_, 7, 10000), MUSTER_OK) << Said();
}

// Another member's has failed while this one's was on its way to musterd, which goes on to write it.
TEST_F(Libmuster, ASaveThatComesToNothingKeepsNoBufferThoughItIsBeingWritten) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendCommitted(1, MUSTER_E_STORE, "another member's shard is missing");
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  EXPECT_TRUE(Eventually([&] { return muster_save_begin_nowait(m_, 3, 0) == MUSTER_OK; })) << Said();
  musterd_.Look([](const auto& m) { EXPECT_THAT(m.given_up, testing::ElementsAre(1)); });
  EXPECT_EQ(muster_wait(m_, 1, 0), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("another member's shard is missing"));
  EXPECT_EQ(muster_wait(m_, 2, 20), MUSTER_E_TIMEOUT);
}

TEST_F(Libmuster, OneWhoDoesNotWaitIsToldWhyBothBuffersAreInUseAndGetsOneSoon) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDelayed(2, MUSTER_E_STORE, "only the newer one");
  EXPECT_EQ(muster_wait(m_, 2, 20), MUSTER_E_TIMEOUT);
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_E_BUSY);
  EXPECT_THAT(Said(), HasSubstr("only the newer one"));
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  musterd_.SendDelayed(1, MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_E_BUSY) << "the store takes it again";
  musterd_.Look([](const auto& m) { EXPECT_TRUE(m.given_up.empty()); });
  musterd_.SendDelayed(2, MUSTER_OK);
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_E_BUSY);
  EXPECT_THAT(Said(), HasSubstr("the pool is full"));
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_E_STORE) << "it was given up for the next one";
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_OK) << Said();
}

TEST_F(Libmuster, ARestartedMusterdIsNotToldToGiveUpWhatItHasNotDelayed) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDelayed(1, MUSTER_E_STORE, "the pool is full");
  EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
  musterd_.Stop();
  musterd_.Start();
  size_t handed_over = 0;
  for (int i = 0; i < 1000 && handed_over < 4; ++i) {
    EXPECT_EQ(muster_wait(m_, 1, 20), MUSTER_E_TIMEOUT);
    musterd_.Look([&](const auto& m) { handed_over = m.saves.size(); });
  }
  EXPECT_EQ(handed_over, 4U) << "twice";
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_E_BUSY);
  musterd_.Look([](const auto& m) { EXPECT_TRUE(m.given_up.empty()); });
}

TEST_F(Libmuster, WaitSaysHowASaveFailed) {
  musterd_.Change([](auto& rules) {
    rules.save_status = MUSTER_E_STORE;
    rules.save_text = "the pool is full";
  });
  Open();
  EXPECT_EQ(muster_wait(m_, MUSTER_LATEST, 0), MUSTER_E_NOT_FOUND);
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("the pool is full"));
  EXPECT_EQ(muster_committed(m_), MUSTER_LATEST);
  musterd_.Change([](auto& rules) { rules.save_status = 0; });
  ASSERT_EQ(Save(2), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 2, 10000), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_E_STORE);
  EXPECT_EQ(muster_wait(m_, 77, 10000), MUSTER_E_NOT_FOUND);
}

TEST_F(Libmuster, AShardThatCouldNotBeWrittenFreesItsBufferAndFailsTheSave) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(Save(2), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.SendDurable(1, MUSTER_E_STORE, "no OSD answers");
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_E_STORE);
  EXPECT_THAT(Said(), HasSubstr("no OSD answers"));
  EXPECT_EQ(muster_save_begin_nowait(m_, 3, 0), MUSTER_OK);
}

}  // namespace
}  // namespace muster
