// What torn saves have left is removed: at once, again when the store may have carried out what was late, and not too often.
#include "daemon/coordinator/orphans.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>

#include "ceph/catalog/object_names.h"
#include "tests/support/loop_thread.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"

namespace muster {
namespace {

using std::chrono::milliseconds;

class OrphansTest : public testing::Test {
 protected:
  static constexpr milliseconds kPause{1000};
  static constexpr milliseconds kStoreTimeout{300};

  void SetUp() override {
    ASSERT_TRUE(catalog_->TakeOver("record", "entry"));
    ASSERT_TRUE(catalog_->Advance({1, 0}, {1, 2}, "record"));
    loop_.Do([&] {
      orphans_.emplace(
          loop_.loop(), catalog_,
          [] {
            return Fence{1, 2};
          },
          Orphans::Settings{"1.0", kPause, kStoreTimeout});
    });
  }
  void TearDown() override {
    loop_.Do([&] { orphans_.reset(); });
  }
  // An object of a save of this generation that nothing lists.
  void Tear(uint64_t generation) {
    const Manifest manifest = SampleManifest("k", ++step_, Fence{1, generation}, 1);
    ASSERT_TRUE(store_->Write({"u1", manifest.shards[0].ObjectOf(0)}, "chunk"));
  }
  void Collect() {
    loop_.Do([&] { orphans_->Collect(); });
  }
  // Once the thread has done what it was given.
  size_t Left() {
    std::promise<void> done;
    loop_.Do([&] { orphans_->worker().Do([&] { done.set_value(); }); });
    done.get_future().wait();
    return store_->Locked([](const auto& objects) {
      return static_cast<size_t>(std::count_if(
          objects.begin(), objects.end(), [](const auto& item) { return item.first.starts_with("data/"); }));
    });
  }
  void End(bool all) {
    std::promise<void> done;
    loop_.Do([&] { orphans_->AtTheEnd(all, [&] { done.set_value(); })(); });
    done.get_future().wait();
  }

  uint64_t step_ = 0;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<Catalog> catalog_ = std::make_shared<Catalog>(store_, "u1", "k");
  LoopThread loop_;
  std::optional<Orphans> orphans_;
};

TEST_F(OrphansTest, AreCollectedWhenAnotherThreadWantsIt) {
  std::function<void()> collect;
  loop_.Do([&] { collect = orphans_->CollectSoon(); });
  Tear(1);
  collect();
  loop_.Do([] {});
  EXPECT_EQ(Left(), 0U);
  loop_.Do([&] { orphans_.reset(); });
  collect();
  loop_.Do([] {});
}

TEST_F(OrphansTest, AreOfOlderGenerationsAndGoAtOnceAndOnceMore) {
  Tear(1);
  Tear(2);
  Collect();
  EXPECT_EQ(Left(), 1U);
  Tear(1);  // lands late
  EXPECT_EQ(Left(), 2U);
  loop_.Move(kStoreTimeout);
  EXPECT_EQ(Left(), 1U);
}

TEST_F(OrphansTest, AreCollectedOnceAPauseHoweverOftenItIsAskedFor) {
  Collect();
  loop_.Move(kStoreTimeout);
  EXPECT_EQ(Left(), 0U);
  Tear(1);
  Collect();
  Collect();
  EXPECT_EQ(Left(), 1U);
  loop_.Move(kPause - kStoreTimeout - milliseconds(1));
  EXPECT_EQ(Left(), 1U);
  loop_.Move(milliseconds(1));
  EXPECT_EQ(Left(), 0U);
}

TEST_F(OrphansTest, AtTheEndTheNewestGenerationsGoTooAndNothingIsCollectedAnyMore) {
  Tear(2);
  End(true);
  EXPECT_EQ(Left(), 0U);
  Tear(1);
  Collect();
  loop_.Move(kPause);
  EXPECT_EQ(Left(), 1U);
}

TEST_F(OrphansTest, OfAJobThatIsRequeuedTheNewestGenerationsStay) {
  Tear(2);
  End(false);
  EXPECT_EQ(Left(), 1U);
}

TEST_F(OrphansTest, StayAtTheEndWhileTheStoreMayStillCarryOutACommit) {
  Tear(2);
  loop_.Do([&] { orphans_->CommitOver()(Error{Errc::kUnavailable, "no answer"}); });
  End(true);
  EXPECT_EQ(Left(), 1U);
}

TEST_F(OrphansTest, GoAtTheEndWhenALaterCommitWasAnswered) {
  Tear(2);
  loop_.Do([&] {
    orphans_->CommitOver()(Error{Errc::kUnavailable, "no answer"});
    orphans_->CommitOver()(Status());
  });
  End(true);
  EXPECT_EQ(Left(), 0U);
}

}  // namespace
}  // namespace muster
