// What every store must do, whatever is below it. A test program instantiates it for its store.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ceph/store/store.h"

namespace muster {

// Gives an open store; the space "u1" of it is empty.
using MakeStore = std::function<std::unique_ptr<Store>()>;

class StoreContract : public testing::TestWithParam<MakeStore> {
 protected:
  void SetUp() override {
    store_ = GetParam()();
    ASSERT_TRUE(store_);
  }
  void TearDown() override {
    if (!store_) return;
    const auto names = store_->List("u1", "");
    if (!names) return;
    for (const std::string& name : *names) (void)store_->Remove({"u1", name});
  }

  // Heads are kept apart by name: some stores list them with the objects, some do not.
  ObjectName Name(const std::string& name) const { return {"u1", name}; }

  Status WriteAndWait(const std::string& name, const std::string& data) {
    auto done = std::make_shared<std::promise<Status>>();
    const auto buffer = store_->NewBuffer(data.size() + 1);
    std::memcpy(buffer->memory().data(), data.data(), data.size());
    store_->WriteAsync(Name(name), *buffer, data.size(), [done](Status s) { done->set_value(std::move(s)); });
    return done->get_future().get();
  }
  Result<std::string> ReadAndWait(const std::string& name, size_t most) {
    auto done = std::make_shared<std::promise<Result<StoreData>>>();
    store_->ReadAsync(Name(name), most, [done](Result<StoreData> data) { done->set_value(std::move(data)); });
    const Result<StoreData> data = done->get_future().get();
    if (!data) return data.error();
    return std::string(reinterpret_cast<const char*>(data->bytes.data()), data->bytes.size());
  }

  std::unique_ptr<Store> store_;
};

TEST_P(StoreContract, ABufferIsWrittenAgainWithOtherContent) {
  constexpr size_t kBytes = 100000;
  const auto buffer = store_->NewBuffer(kBytes);
  for (const char letter : {'a', 'b', 'c'}) {
    std::memset(buffer->memory().data(), letter, kBytes);
    auto done = std::make_shared<std::promise<Status>>();
    store_->WriteAsync(Name("data/k/1.1.1/0.0"), *buffer, kBytes,
                       [done](Status s) { done->set_value(std::move(s)); });
    const Status written = done->get_future().get();
    ASSERT_TRUE(written) << written.error().message;
    const auto read = ReadAndWait("data/k/1.1.1/0.0", 2 * kBytes);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, std::string(kBytes, letter));
  }
}

TEST_P(StoreContract, ReadsWhatWasWritten) {
  ASSERT_TRUE(store_->Write(Name("data/k/1.1.1/manifest"), "text"));
  const auto text = store_->Read(Name("data/k/1.1.1/manifest"));
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, "text");
}

TEST_P(StoreContract, WritesReplaceTheWholeObject) {
  ASSERT_TRUE(store_->Write(Name("o"), "a long first content"));
  ASSERT_TRUE(store_->Write(Name("o"), "short"));
  EXPECT_EQ(*store_->Read(Name("o")), "short");
}

TEST_P(StoreContract, AsynchronousOperationsDoTheSame) {
  const std::string data(3 << 20, 'x');
  ASSERT_TRUE(WriteAndWait("data/k/2.1.1/0.0", data));
  const auto all = ReadAndWait("data/k/2.1.1/0.0", data.size() + 1);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(*all, data);
  const auto some = ReadAndWait("data/k/2.1.1/0.0", 1000);
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_EQ(some->size(), 1000u);
}

TEST_P(StoreContract, AnEmptyObjectIsAnObject) {
  ASSERT_TRUE(store_->Write(Name("empty"), ""));
  EXPECT_EQ(*store_->Read(Name("empty")), "");
}

TEST_P(StoreContract, SaysWhatIsNotThere) {
  EXPECT_EQ(store_->Read(Name("none")).error().code, Errc::kNotFound);
  EXPECT_EQ(ReadAndWait("none", 10).error().code, Errc::kNotFound);
  EXPECT_EQ(store_->ReadHead(Name("gang/none")).error().code, Errc::kNotFound);
  EXPECT_TRUE(store_->Remove(Name("none")));
}

TEST_P(StoreContract, ListsByPrefixSorted) {
  for (const char* name :
       {"data/k/10.1.1/0.0", "data/k/10.1.1/0.1", "data/k/9.1.1/0.0", "data/kk/9.1.1/0.0", "o"}) {
    ASSERT_TRUE(store_->Write(Name(name), "x"));
  }
  using Names = std::vector<std::string>;
  EXPECT_EQ(*store_->List("u1", "data/k/"),
            (Names{"data/k/10.1.1/0.0", "data/k/10.1.1/0.1", "data/k/9.1.1/0.0"}));
  EXPECT_EQ(*store_->List("u1", "data/k/10.1.1/0."), (Names{"data/k/10.1.1/0.0", "data/k/10.1.1/0.1"}));
  EXPECT_EQ(*store_->List("u1", "data/none/"), Names{});
  EXPECT_EQ(*store_->List("u2", ""), Names{});
}

TEST_P(StoreContract, SpacesDoNotSeeEachOther) {
  ASSERT_TRUE(store_->Write({"u1", "o"}, "mine"));
  EXPECT_EQ(store_->Read({"u2", "o"}).error().code, Errc::kNotFound);
}

TEST_P(StoreContract, RefusesNamesThatCouldLeaveTheSpace) {
  for (const char* name : {"", "/", "../x", "a/../b", "a//b", "/a", "a/", ".hidden", "a/.b", "a b", "a\nb"}) {
    EXPECT_EQ(store_->Write(Name(name), "x").error().code, Errc::kInvalid) << name;
    EXPECT_EQ(store_->Read(Name(name)).error().code, Errc::kInvalid) << name;
    EXPECT_EQ(WriteAndWait(name, "x").error().code, Errc::kInvalid) << name;
    EXPECT_EQ(ReadAndWait(name, 1).error().code, Errc::kInvalid) << name;
    EXPECT_EQ(store_->Remove(Name(name)).error().code, Errc::kInvalid) << name;
    EXPECT_EQ(store_->ReadHead(Name(name)).error().code, Errc::kInvalid) << name;
    EXPECT_EQ(store_->UpdateHead(Name(name), {}).error().code, Errc::kInvalid) << name;
  }
  for (const char* space : {"", "..", "a/b", "/"}) {
    EXPECT_EQ(store_->Write({space, "o"}, "x").error().code, Errc::kInvalid) << space;
    EXPECT_EQ(store_->List(space, "").error().code, Errc::kInvalid) << space;
  }
  EXPECT_EQ(store_->List("u1", "../").error().code, Errc::kInvalid);
}

TEST_P(StoreContract, AHeadIsMadeOnce) {
  HeadUpdate make;
  make.new_fence = "f1";
  make.set["record"] = "r";
  ASSERT_TRUE(store_->UpdateHead(Name("gang/a"), make));
  EXPECT_EQ(store_->UpdateHead(Name("gang/a"), make).error().code, Errc::kConflict);
  const auto head = store_->ReadHead(Name("gang/a"));
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->fence, "f1");
  EXPECT_EQ(head->entries, (std::map<std::string, std::string>{{"record", "r"}}));
}

TEST_P(StoreContract, AHeadChangesOnlyUnderTheExpectedFence) {
  ASSERT_TRUE(store_->UpdateHead(Name("gang/b"), {std::nullopt, "f1", {{"a", "1"}, {"b", "2"}}, {}}));
  EXPECT_EQ(store_->UpdateHead(Name("gang/b"), {"f0", "f2", {{"a", "x"}}, {"b"}}).error().code,
            Errc::kConflict);
  EXPECT_EQ(store_->UpdateHead(Name("gang/none"), {"f0", "f2", {}, {}}).error().code, Errc::kConflict);
  auto head = store_->ReadHead(Name("gang/b"));
  EXPECT_EQ(head->fence, "f1");
  EXPECT_EQ(head->entries.size(), 2u);
  ASSERT_TRUE(store_->UpdateHead(Name("gang/b"), {"f1", "f2", {{"a", "3"}, {"c", ""}}, {"b", "never"}}));
  head = store_->ReadHead(Name("gang/b"));
  EXPECT_EQ(head->fence, "f2");
  EXPECT_EQ(head->entries, (std::map<std::string, std::string>{{"a", "3"}, {"c", ""}}));
}

TEST_P(StoreContract, OfManyWhoExpectTheSameFenceOneWins) {
  ASSERT_TRUE(store_->UpdateHead(Name("gang/c"), {std::nullopt, "start", {}, {}}));
  std::atomic<int> won{0};
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const Status status = store_->UpdateHead(Name("gang/c"), {"start", "by" + std::to_string(i), {}, {}});
      ++(status ? won : lost);
      if (!status) {
        EXPECT_EQ(status.error().code, Errc::kConflict) << status.error().message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 1);
  EXPECT_EQ(lost, 7);
}

TEST_P(StoreContract, AHeadChangesOnlyWhenItsEntriesAreAsExpected) {
  HeadUpdate make{std::nullopt, "f1", {{"a", "1"}, {"b", "2"}}, {}};
  ASSERT_TRUE(store_->UpdateHead(Name("gang/e"), make));
  const auto change = [&](const std::map<std::string, std::string>& expect, const std::string& fence = "f1") {
    HeadUpdate update{fence, fence, {{"a", "3"}}, {"b"}};
    update.expect = expect;
    return store_->UpdateHead(Name("gang/e"), update);
  };
  const std::map<std::string, std::string> wrong[] = {
      {{"a", "2"}}, {{"a", "1"}, {"b", "1"}}, {{"a", ""}}, {{"c", "1"}}, {{"a", "1x"}}};
  for (const auto& expect : wrong) EXPECT_EQ(change(expect).error().code, Errc::kConflict);
  EXPECT_EQ(change({{"a", "1"}}, "f0").error().code, Errc::kConflict);
  EXPECT_EQ(store_->ReadHead(Name("gang/e"))->entries, make.set);
  // What is not there counts as empty.
  ASSERT_TRUE(change({{"a", "1"}, {"b", "2"}, {"c", ""}}));
  EXPECT_EQ(store_->ReadHead(Name("gang/e"))->entries, (std::map<std::string, std::string>{{"a", "3"}}));
}

TEST_P(StoreContract, ListsTheSpacesThatHaveSomething) {
  ASSERT_TRUE(store_->Write(Name("data/k/1.1.1/manifest"), "text"));
  const auto spaces = store_->ListSpaces();
  ASSERT_TRUE(spaces) << spaces.error().message;
  EXPECT_EQ(std::count(spaces->begin(), spaces->end(), "u1"), 1);
  EXPECT_TRUE(std::is_sorted(spaces->begin(), spaces->end()));
}

TEST_P(StoreContract, AHeadMayHaveMoreEntriesThanOnePage) {
  HeadUpdate make;
  make.new_fence = "f";
  for (int i = 0; i < 1500; ++i) make.set["checkpoint/" + std::to_string(i)] = std::string(100, 'v');
  ASSERT_TRUE(store_->UpdateHead(Name("gang/d"), make));
  const auto head = store_->ReadHead(Name("gang/d"));
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->entries, make.set);
}

}  // namespace muster
