// What a user's checkpoints take is asked of the store when it has to be, and told whenever it is known.
#include "daemon/coordinator/storage_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/loop_thread.h"
#include "tests/unit/ceph/memory_store.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Room = std::vector<uint64_t>;  // limit, use, need

class StorageLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    store_->SetFault([this](const std::string& operation, const std::string& /*name*/) -> Status {
      if (operation != "read_head") return {};
      ++asked_;
      if (down_) return Error{Errc::kUnavailable, "no answer"};
      return {};
    });
    Make(100);
  }
  void TearDown() override {
    loop_.Do([&] { limit_.reset(); });
  }
  void Make(uint64_t bytes) {
    loop_.Do([&] {
      limit_.emplace(loop_.loop(), reader_, store_,
                     StorageLimit::Settings{.gang = "1.0", .uid = 1, .space = "u1", .limit = bytes},
                     [this](const StorageLimit::Room& room) {
                       told_.push_back({room.limit, room.use, room.need});
                     });
    });
  }
  // What was told meanwhile, once the store has answered.
  std::vector<Room> Told() {
    std::promise<void> done;
    reader_.Do([&] { done.set_value(); });
    done.get_future().wait();
    return loop_.Do([&] { return std::exchange(told_, {}); });
  }
  std::vector<Room> Look() {
    loop_.Do([&] { limit_->Look(); });
    return Told();
  }
  std::vector<Room> Committed(uint64_t bytes) {
    loop_.Do([&] { limit_->Committed(bytes); });
    return Told();
  }
  std::vector<Room> Refused() {
    loop_.Do([&] { limit_->Refused(); });
    return Told();
  }
  int Asked() { return asked_.exchange(0); }

  std::atomic<int> asked_ = 0;
  std::atomic<bool> down_ = false;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  LoopThread loop_;
  std::vector<Room> told_;
  Worker reader_;
  std::optional<StorageLimit> limit_;
};

TEST_F(StorageLimitTest, WithoutALimitNothingIsAskedOrTold) {
  Make(0);
  EXPECT_THAT(Look(), IsEmpty());
  EXPECT_THAT(Committed(10), IsEmpty());
  EXPECT_EQ(Asked(), 0);
}

TEST_F(StorageLimitTest, TheStoreIsAskedOnceAndCommitsCountWhileThereIsRoom) {
  EXPECT_THAT(Look(), ElementsAre(Room{100, 0, 0}));
  EXPECT_GT(Asked(), 0);
  EXPECT_THAT(Committed(40), ElementsAre(Room{100, 40, 40}));
  EXPECT_EQ(Asked(), 0);
}

TEST_F(StorageLimitTest, WhatIsOldOrLeavesNoRoomIsAskedAgain) {
  Look();
  Committed(40);
  Asked();
  // By what was committed there is no room for another one; the store says that they share chunks.
  EXPECT_THAT(Committed(40), ElementsAre(Room{100, 0, 40}));
  EXPECT_GT(Asked(), 0);
  loop_.Move(seconds(30));
  Look();
  EXPECT_GT(Asked(), 0);
}

TEST_F(StorageLimitTest, AfterARefusalItIsAskedAgainButNotEachTime) {
  Look();
  Asked();
  EXPECT_THAT(Refused(), IsEmpty());
  EXPECT_EQ(Asked(), 0);
  loop_.Move(seconds(1));
  EXPECT_THAT(Refused(), ElementsAre(Room{100, 0, 0}));
  EXPECT_GT(Asked(), 0);
}

TEST_F(StorageLimitTest, AStoreThatDoesNotAnswerIsAskedAgain) {
  down_ = true;
  EXPECT_THAT(Look(), IsEmpty());
  down_ = false;
  EXPECT_THAT(Look(), ElementsAre(Room{100, 0, 0}));
}

TEST_F(StorageLimitTest, AnAnswerAfterTheEndIsNotTold) {
  std::promise<void> go;
  reader_.Do([&] { go.get_future().wait(); });
  loop_.Do([&] {
    limit_->Look();
    limit_->End();
  });
  go.set_value();
  EXPECT_THAT(Told(), IsEmpty());
}

}  // namespace
}  // namespace muster
