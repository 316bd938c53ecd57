// libmuster against a musterd of the test's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "ceph/engine/shard_format.h"
#include "ceph/muster.h"
#include "tests/unit/ceph/fake_musterd.h"
#include "tests/unit/ceph/temporary_directory.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kToken[] = "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf";

class Libmuster : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("MUSTER_GANG", "7.0", 1);
    ::setenv("MUSTER_GENERATION", "3", 1);
    ::setenv("RANK", "2", 1);
    ::setenv("MUSTER_TOKEN", kToken, 1);
    ::setenv("MUSTER_SOCKET", path_.c_str(), 1);
  }
  void TearDown() override {
    muster_close(m_);
    for (const char* name : {"MUSTER_GANG", "MUSTER_GENERATION", "RANK", "MUSTER_TOKEN", "MUSTER_SOCKET"}) {
      ::unsetenv(name);
    }
  }

  void Open() { ASSERT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr); }
  std::string Said() const { return muster_last_error(m_); }
  int Save(uint64_t step, const std::string& data = "data") {
    if (const int status = muster_save_begin(m_, step, data.size()); status != MUSTER_OK) return status;
    if (const int status = muster_save_add(m_, "x", nullptr, data.data(), data.size()); status != MUSTER_OK) {
      return status;
    }
    return muster_save_commit(m_);
  }
  // Calls into the library until the condition holds, as a training loop does.
  bool Eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline) {
      (void)muster_should_exit(m_);
      if (condition()) return true;
      ::usleep(1000);
    }
    return false;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/musterd.sock";
  FakeMusterd musterd_{path_};
  muster_handle* m_ = nullptr;
};

TEST_F(Libmuster, SaysWhoThisMemberIs) {
  musterd_.Change([](auto& rules) { rules.restore_step = 500; });
  Open();
  EXPECT_EQ(muster_rank(m_), 2u);
  EXPECT_EQ(muster_world_size(m_), 4u);
  EXPECT_EQ(muster_generation(m_), 3u);
  EXPECT_EQ(muster_restore_step(m_), 500u);
  EXPECT_EQ(muster_committed(m_), 500u);
  EXPECT_THAT(musterd_.hellos, ElementsAre("7.0 rank 2 generation 3"));
  EXPECT_STREQ(muster_version(), "0.1.0");
}

TEST_F(Libmuster, OutsideOfAGangSaysSo) {
  ::unsetenv("MUSTER_GANG");
  EXPECT_EQ(muster_open(&m_), MUSTER_E_NO_GANG);
  EXPECT_EQ(m_, nullptr);
  EXPECT_THAT(muster_last_error(nullptr), HasSubstr("MUSTER_GANG"));
}

TEST_F(Libmuster, ABadEnvironmentIsNamed) {
  const auto refused = [&](const char* name, const char* value) {
    SetUp();
    ::setenv(name, value, 1);
    EXPECT_EQ(muster_open(&m_), MUSTER_E_INVALID) << name << "=" << value;
    EXPECT_THAT(muster_last_error(nullptr), HasSubstr(name));
  };
  refused("RANK", "");
  refused("RANK", "-1");
  refused("RANK", "4294967296");
  refused("MUSTER_GENERATION", "x");
  refused("MUSTER_GENERATION", "18446744073709551616");
  refused("MUSTER_TOKEN", "a0");
  refused("MUSTER_TOKEN", "g0a1a2a3a4a5a6a7a8a9aaabacadaeaf");
  refused("MUSTER_SOCKET", std::string(200, 'x').c_str());
  refused("MUSTER_GANG", std::string(300, 'x').c_str());
  EXPECT_TRUE(musterd_.hellos.empty());
}

TEST_F(Libmuster, TheTokenMayBeInCapitals) {
  ::setenv("MUSTER_TOKEN", "A0A1A2A3A4A5A6A7A8A9AAABACADAEAF", 1);
  Open();
}

TEST_F(Libmuster, ARefusalIsTheError) {
  musterd_.Change([](auto& rules) {
    rules.refusal = wire::Refusal::kStaleGeneration;
    rules.refusal_text = "generation 3 is over";
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_E_DENIED);
  EXPECT_STREQ(muster_last_error(nullptr), "generation 3 is over");
}

TEST_F(Libmuster, AGangThatMusterdDoesNotKnowYetIsWaitedFor) {
  musterd_.Change([](auto& rules) {
    rules.refusal = wire::Refusal::kNoGang;
    rules.refusal_text = "no such gang";
  });
  std::thread later([&] {
    EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.hellos.size() >= 2; }));
    musterd_.Change([](auto& rules) { rules.refusal = {}; });
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr);
  later.join();
}

TEST_F(Libmuster, AMusterdThatStartsALittleLaterIsWaitedFor) {
  musterd_.Stop();
  std::thread later([&] {
    ::usleep(300'000);  // longer than one pause between attempts
    musterd_.Start();
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr);
  later.join();
}

TEST_F(Libmuster, AMusterdThatIsNotThereIsNamedWithItsUnit) {
  musterd_.Stop();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(muster_open(&m_), MUSTER_E_UNREACHABLE);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_THAT(muster_last_error(nullptr), HasSubstr(path_));
  EXPECT_THAT(muster_last_error(nullptr), HasSubstr("musterd.service"));
}

TEST_F(Libmuster, RestoresWhatWasSaved) {
  Open();
  const std::string big(5 << 20, 'b');
  ASSERT_EQ(muster_save_begin(m_, 100, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "weights", "float32 2x3", "abcdef", 6), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "empty", nullptr, nullptr, 0), MUSTER_OK);
  ASSERT_EQ(muster_save_add(m_, "größe/../x y", "", big.data(), big.size()), MUSTER_OK);
  ASSERT_EQ(muster_save_commit(m_), MUSTER_OK) << Said();
  ASSERT_EQ(muster_wait(m_, MUSTER_LATEST, 10000), MUSTER_OK) << Said();
  EXPECT_EQ(muster_committed(m_), 100u);

  muster_restore* r = nullptr;
  ASSERT_EQ(muster_restore_open(m_, 100, &r), MUSTER_OK) << Said();
  EXPECT_EQ(muster_restore_open_step(r), 100u);
  ASSERT_EQ(muster_restore_count(r), 3u);
  const char* name = nullptr;
  const char* meta = nullptr;
  const void* data = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(muster_restore_entry(r, 0, &name, &meta, &data, &bytes), MUSTER_OK);
  EXPECT_STREQ(name, "weights");
  EXPECT_STREQ(meta, "float32 2x3");
  EXPECT_EQ(std::string(static_cast<const char*>(data), bytes), "abcdef");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  ASSERT_EQ(muster_restore_entry(r, 1, nullptr, &meta, nullptr, &bytes), MUSTER_OK);
  EXPECT_STREQ(meta, "");
  EXPECT_EQ(bytes, 0u);
  std::string got(big.size(), '\0');
  EXPECT_EQ(muster_restore_get(r, "größe/../x y", got.data(), got.size()), MUSTER_OK);
  EXPECT_EQ(got, big);
  EXPECT_EQ(muster_restore_get(r, "weights", got.data(), 5), MUSTER_E_INVALID);
  EXPECT_THAT(Said(), HasSubstr("has 6 bytes, not 5"));
  EXPECT_EQ(muster_restore_get(r, "none", got.data(), 5), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_restore_entry(r, 3, &name, &meta, &data, &bytes), MUSTER_E_INVALID);
  muster_restore_close(r);
}

TEST_F(Libmuster, AnOpenRestoreOutlivesItsHandle) {
  Open();
  ASSERT_EQ(Save(100, "content"), MUSTER_OK);
  muster_restore* first = nullptr;
  muster_restore* second = nullptr;
  ASSERT_EQ(muster_wait(m_, 100, 10000), MUSTER_OK);
  ASSERT_EQ(muster_restore_open(m_, 100, &first), MUSTER_OK);
  ASSERT_EQ(muster_restore_open(m_, 100, &second), MUSTER_OK);
  muster_restore_close(first);
  muster_close(m_);
  m_ = nullptr;
  char got[7];
  EXPECT_EQ(muster_restore_get(second, "x", got, 7), MUSTER_OK);
  EXPECT_EQ(muster_restore_get(second, "none", got, 7), MUSTER_E_NOT_FOUND);
  muster_restore_close(second);
}

TEST_F(Libmuster, WithoutACheckpointThereIsNothingToRestore) {
  Open();
  muster_restore* r = nullptr;
  EXPECT_EQ(muster_restore_open(m_, MUSTER_LATEST, &r), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(muster_restore_open(m_, 77, &r), MUSTER_E_NOT_FOUND);
  EXPECT_EQ(r, nullptr);
}

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

TEST_F(Libmuster, AStepIsSavedOnceAndStepsGoUp) {
  Open();
  ASSERT_EQ(Save(10), MUSTER_OK);
  EXPECT_EQ(Save(10), MUSTER_E_INVALID);
  EXPECT_EQ(Save(9), MUSTER_E_INVALID);
  EXPECT_EQ(Save(MUSTER_LATEST), MUSTER_E_INVALID);
  ASSERT_EQ(muster_save_begin(m_, 11, 0), MUSTER_OK);
  muster_save_abort(m_);
  EXPECT_EQ(Save(11), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 11, 10000), MUSTER_OK);
  EXPECT_THAT(musterd_.saves, ElementsAre(10, 11));
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

TEST_F(Libmuster, NotificationsSetTheFlags) {
  Open();
  EXPECT_EQ(muster_should_checkpoint(m_), 0);
  EXPECT_EQ(muster_should_exit(m_), 0);
  musterd_.SendNotify(wire::kShouldCheckpoint | wire::kShouldExit);
  EXPECT_TRUE(Eventually([&] { return muster_should_exit(m_) == 1; }));
  EXPECT_EQ(muster_should_checkpoint(m_), 1);
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_should_checkpoint(m_), 0);  // it has been
  EXPECT_EQ(muster_should_exit(m_), 1);
}

TEST_F(Libmuster, ProgressIsSaidSeldomAndTheLastOneIsNotLost) {
  Open();
  for (uint64_t step = 1; step <= 1000; ++step) ASSERT_EQ(muster_progress(m_, step), MUSTER_OK);
  bool all = false;
  EXPECT_TRUE(Eventually([&] {
    musterd_.Look([&](const auto& m) { all = !m.progress.empty() && m.progress.back() == 1000; });
    return all;
  }));
  EXPECT_EQ(musterd_.progress.front(), 1u);
  EXPECT_LE(musterd_.progress.size(), 10u);
}

TEST_F(Libmuster, ARestartOfMusterdLosesNoSave) {
  musterd_.Change([](auto& rules) { rules.durable = rules.committed = false; });
  Open();
  ASSERT_EQ(Save(1, "first"), MUSTER_OK);
  ASSERT_EQ(Save(2, "second"), MUSTER_OK);
  ASSERT_TRUE(musterd_.Await([](const auto& m) { return m.saves.size() == 2; }));
  musterd_.Stop();
  EXPECT_EQ(muster_progress(m_, 3), MUSTER_OK);  // training goes on
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

TEST_F(Libmuster, AnOutcomeThatGotLostIsSaidOnceALaterStepIsCommitted) {
  musterd_.Change([](auto& rules) { rules.committed = false; });
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
  EXPECT_TRUE(Eventually([&] { return muster_progress(m_, 1) == MUSTER_E_DENIED; }));
  EXPECT_EQ(Said(), "generation 3 is over");
  EXPECT_EQ(muster_save_begin(m_, 1, 0), MUSTER_E_DENIED);
}

TEST_F(Libmuster, PacketsThatAreNoneEndTheHandle) {
  Open();
  musterd_.SendRaw("this is not a message of Muster's protocol");
  EXPECT_TRUE(Eventually([&] { return muster_progress(m_, 1) == MUSTER_E_PROTOCOL; }));
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

TEST_F(Libmuster, AShardThatDoesNotReadIsCorrupt) {
  Open();
  ASSERT_EQ(Save(1), MUSTER_OK);
  ASSERT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
  const std::string good = musterd_.shards[1];
  muster_restore* r = nullptr;
  musterd_.PutShard(2, "no shard at all, but long enough to have a header of sixty-four bytes");
  EXPECT_EQ(muster_restore_open(m_, 2, &r), MUSTER_E_CORRUPT);
  musterd_.PutShard(3, good.substr(0, good.size() - 8));
  EXPECT_EQ(muster_restore_open(m_, 3, &r), MUSTER_E_CORRUPT);
  musterd_.PutShard(4, good, false);
  EXPECT_EQ(muster_restore_open(m_, 4, &r), MUSTER_E_PROTOCOL);
  musterd_.PutShard(5, good);
  EXPECT_EQ(muster_restore_open(m_, 5, &r), MUSTER_OK);
  muster_restore_close(r);
}

TEST_F(Libmuster, AForkedChildCannotUseTheHandle) {
  Open();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused =
        muster_progress(m_, 1) == MUSTER_E_INVALID && muster_save_begin(m_, 1, 0) == MUSTER_E_INVALID;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
}

TEST_F(Libmuster, ClosingEndsTheConnectionAlsoWhenAForkedChildLivesOn) {
  Open();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    muster_close(m_);  // a copy: the parent's connection stays
    ::close(pipe[1]);
    char byte = 0;
    ::_exit(::read(pipe[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  musterd_.Look([](const auto& m) { EXPECT_EQ(m.clients(), 1u); });
  muster_close(m_);
  m_ = nullptr;
  EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.clients() == 0; }));
  ::close(pipe[0]);
  ::close(pipe[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Libmuster, OpeningAndClosingLeaksNoDescriptors) {
  Open();
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const auto cycle = [&] {
    muster_handle* m = nullptr;
    ASSERT_EQ(muster_open(&m), MUSTER_OK);
    ASSERT_EQ(muster_save_begin(m, 1, 0), MUSTER_OK);
    ASSERT_EQ(muster_save_commit(m), MUSTER_OK);
    ASSERT_EQ(muster_wait(m, 1, 10000), MUSTER_OK);
    muster_restore* r = nullptr;
    ASSERT_EQ(muster_restore_open(m, 1, &r), MUSTER_OK);
    muster_restore_close(r);
    muster_close(m);
  };
  // The fake shares the process: let it see the end of each connection before counting.
  const auto settled = [&](size_t wanted) { return Eventually([&] { return descriptors() <= wanted; }); };
  const size_t before = descriptors();
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_TRUE(settled(before)) << descriptors() << " descriptors, were " << before;
}

TEST_F(Libmuster, CopesWithNullArguments) {
  EXPECT_EQ(muster_open(nullptr), MUSTER_E_INVALID);
  muster_close(nullptr);
  muster_restore_close(nullptr);
  muster_save_abort(nullptr);
  EXPECT_STREQ(muster_last_error(nullptr), "");
  Open();
  EXPECT_EQ(muster_restore_open(m_, 1, nullptr), MUSTER_E_INVALID);
  EXPECT_STREQ(muster_last_error(m_), "there is nowhere to put the restore");
}

}  // namespace
}  // namespace muster
