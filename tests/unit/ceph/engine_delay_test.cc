// Writes that a store does not take for a while: it is full, or does not answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ceph/catalog/object_names.h"
#include "tests/unit/ceph/engine_rig.h"
#include "tests/unit/ceph/memory_store.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::chrono::seconds kLong{60};

// Where operations wait until it is opened.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  bool WaitFor(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

// A write that is told of delays.
class Delayed {
 public:
  void Start(Engine& engine, const std::string& bytes, uint32_t rank = 0) {
    memory_ = *StagedMemory::Take(Memory(bytes));
    write_ = engine.WriteShard(
        "u1", ShardPrefix("k", 100, kFence, rank), rank, *memory_, bytes.size(), {},
        [this](Result<Shard> shard) { done_.set_value(std::move(shard)); },
        [this](const Status& status) {
          const std::lock_guard lock(mutex_);
          told_.push_back(status);
          changed_.notify_all();
        });
  }
  bool WaitTold(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [&] { return told_.size() >= count; });
  }
  std::vector<Status> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }
  void Stop() { write_->Stop({Errc::kConflict, "not wanted any more"}); }
  void GiveUp() { write_->GiveUp({Errc::kConflict, "not wanted any more"}); }
  bool ended() { return end_.wait_for(milliseconds(0)) == std::future_status::ready; }
  Result<Shard> End() {
    if (end_.wait_for(kLong) != std::future_status::ready) return Error{Errc::kInternal, "it does not end"};
    return end_.get();
  }

 private:
  std::shared_ptr<StagedMemory> memory_;
  std::shared_ptr<ShardWrite> write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Status> told_;
  std::promise<Result<Shard>> done_;
  std::future<Result<Shard>> end_ = done_.get_future();
};

class EngineDelay : public testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options = Small();
    options.longest_pause = milliseconds(5);
    return options;
  }
  // Writes fail with this until nothing is set any more.
  void FailWith(std::optional<Error> error) {
    store_->SetFault([this, error](const std::string& operation, const std::string&) {
      if (operation != "write") return Status();
      ++writes_;
      return error ? Status(*error) : Status();
    });
  }
  // Writes wait until it is opened.
  void HoldWrites(Gate& gate) {
    store_->SetFault([&gate](const std::string& operation, const std::string&) {
      if (operation == "write") gate.Pass();
      return Status();
    });
  }
  bool WaitForWrites(int more) {
    const int until = writes_ + more;
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (writes_ < until && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(milliseconds(1));
    return writes_ >= until;
  }

  std::atomic<int> writes_{0};
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::optional<Engine> engine_{std::in_place, store_, Options()};
};

TEST_F(EngineDelay, AFullStoreIsTriedUntilThereIsRoom) {
  const std::string bytes = RandomBytes(20'500);
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  Delayed write;
  write.Start(*engine_, bytes);
  ASSERT_TRUE(write.WaitTold(1));
  ASSERT_TRUE(WaitForWrites(100));
  EXPECT_FALSE(write.ended());
  EXPECT_EQ(write.told().size(), 1U) << "once";
  EXPECT_EQ(write.told()[0].error().code, Errc::kExhausted);
  EXPECT_THAT(write.told()[0].error().message, HasSubstr("full"));
  FailWith({});
  const auto shard = write.End();
  ASSERT_TRUE(shard) << shard.error().message;
  // What was under way when there was room again may be told of after what was not.
  const auto told = write.told();
  ASSERT_EQ(told.size() % 2, 0U);
  for (size_t i = 0; i < told.size(); ++i)
    EXPECT_EQ(told[i].ok(), i % 2 == 1) << i << ": full and taken, in turn";
  EXPECT_EQ(Contents(*Read(*engine_, *shard)), bytes);
}

TEST_F(EngineDelay, AStoreThatIsAwayAndThenFullIsToldOfTwice) {
  FailWith(Error{Errc::kUnavailable, "timed out"});
  Delayed write;
  write.Start(*engine_, RandomBytes(900));
  ASSERT_TRUE(WaitForWrites(Options().attempts + 3)) << "more often than without a delay";
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  ASSERT_TRUE(write.WaitTold(2));
  EXPECT_FALSE(write.ended());
  FailWith({});
  EXPECT_TRUE(write.End());
  ASSERT_EQ(write.told().size(), 3U);
  EXPECT_EQ(write.told()[0].error().code, Errc::kUnavailable);
  EXPECT_EQ(write.told()[1].error().code, Errc::kExhausted);
  EXPECT_TRUE(write.told()[2].ok());
}

TEST_F(EngineDelay, WhatWouldNotPassIsTheEnd) {
  FailWith(Error{Errc::kDenied, "the key's capabilities do not cover this namespace"});
  Delayed write;
  write.Start(*engine_, RandomBytes(5'000));
  const auto shard = write.End();
  ASSERT_FALSE(shard);
  EXPECT_EQ(shard.error().code, Errc::kDenied);
  EXPECT_TRUE(write.told().empty());
}

TEST_F(EngineDelay, AStoreThatSaysNothingIsToldOf) {
  EngineOptions options = Options();
  options.silence = milliseconds(30);
  Gate gate;
  store_->SetFault([&](const std::string&, const std::string&) {
    gate.Pass();
    return Status();
  });
  engine_.emplace(store_, options);
  Delayed write;
  write.Start(*engine_, RandomBytes(5'000));
  ASSERT_TRUE(write.WaitTold(1));
  EXPECT_EQ(write.told()[0].error().code, Errc::kUnavailable);
  EXPECT_THAT(write.told()[0].error().message, HasSubstr("has not answered for"));
  gate.Open();
  EXPECT_TRUE(write.End());
  ASSERT_EQ(write.told().size(), 2U);
  EXPECT_TRUE(write.told()[1].ok());
}

TEST_F(EngineDelay, AWriteThatIsStoppedEndsThoughTheStoreSaysNothing) {
  Gate gate;
  HoldWrites(gate);
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  ASSERT_TRUE(gate.WaitFor(1));
  write.Stop();
  write.Stop();
  const auto shard = write.End();
  ASSERT_FALSE(shard);
  EXPECT_EQ(shard.error().code, Errc::kConflict);
  EXPECT_THAT(shard.error().message, HasSubstr("not wanted"));
  gate.Open();
  engine_.reset();
  EXPECT_LE(store_->objects().size(), Small().window) << "nothing was begun any more";
}

TEST_F(EngineDelay, AWriteThatIsStoppedWhileItWaitsEnds) {
  EngineOptions options = Options();
  options.first_pause = options.longest_pause = kLong * 10;
  engine_.emplace(store_, options);
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  ASSERT_TRUE(write.WaitTold(1));
  write.Stop();
  EXPECT_EQ(write.End().error().code, Errc::kConflict);
}

TEST_F(EngineDelay, AWriteThatIsGivenUpEndsWithWhatIsUnderWay) {
  Gate gate;
  HoldWrites(gate);
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  ASSERT_TRUE(gate.WaitFor(1));
  write.GiveUp();
  write.GiveUp();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(write.ended());
  gate.Open();
  const auto shard = write.End();
  const size_t written = store_->List("u1", "data/")->size();
  ASSERT_FALSE(shard);
  EXPECT_EQ(shard.error().code, Errc::kConflict);
  EXPECT_LE(written, Small().window) << "nothing was begun any more";
  engine_.reset();
  EXPECT_EQ(store_->objects().size(), written) << "nor written after the end";
}

TEST_F(EngineDelay, AWriteThatIsGivenUpWhileItWaitsEnds) {
  EngineOptions options = Options();
  options.first_pause = options.longest_pause = kLong * 10;
  engine_.emplace(store_, options);
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  ASSERT_TRUE(write.WaitTold(1));
  write.GiveUp();
  EXPECT_EQ(write.End().error().code, Errc::kConflict);
}

TEST_F(EngineDelay, StoppingAWriteThatHasEndedDoesNothing) {
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  EXPECT_TRUE(write.End());
  write.Stop();
  write.GiveUp();
}

TEST_F(EngineDelay, OthersAreReadMeanwhile) {
  const std::string bytes = RandomBytes(30'000);
  const auto shard = Write(*engine_, Memory(bytes), bytes.size(), 77);
  ASSERT_TRUE(shard);
  EngineOptions options = Options();
  options.first_pause = options.longest_pause = kLong * 10;
  engine_.emplace(store_, options);
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  std::vector<Delayed> writes(options.buffers);  // together they could take all buffers, and more
  for (uint32_t rank = 0; rank < writes.size(); ++rank)
    writes[rank].Start(*engine_, RandomBytes(20'000), rank);
  for (Delayed& write : writes) ASSERT_TRUE(write.WaitTold(1));
  EXPECT_EQ(Contents(*Read(*engine_, *shard)), bytes);
  for (Delayed& write : writes) write.Stop();
  for (Delayed& write : writes) EXPECT_FALSE(write.End());
}

TEST_F(EngineDelay, TheEnginesEndIsTheEndOfADelay) {
  FailWith(Error{Errc::kExhausted, "the pool is full"});
  Delayed write;
  write.Start(*engine_, RandomBytes(20'000));
  ASSERT_TRUE(write.WaitTold(1));
  engine_.reset();
  EXPECT_EQ(write.End().error().code, Errc::kExhausted);
}

}  // namespace
}  // namespace muster
