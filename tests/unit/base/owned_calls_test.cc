// What ends with its owner: timers, and answers of other threads.
#include "base/owned_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/timer.h"
#include "base/worker.h"
#include "tests/support/loop_thread.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

struct Owner {
  explicit Owner(Loop& loop, std::vector<std::string>* heard) : timer(loop), calls(loop), said(heard) {}
  Timer timer;
  OwnedCalls calls;
  std::vector<std::string>* said;
};

class Owned : public testing::Test {
 protected:
  LoopThread loop_;
  std::vector<std::string> said_;  // of the loop's thread
  std::unique_ptr<Owner> owner_ = std::make_unique<Owner>(loop_.loop(), &said_);
};

TEST_F(Owned, AnswersComeToTheLoopWithTheirValuesInTheirOrder) {
  const auto back = owner_->calls.Back([owner = owner_.get()](const std::string& text, int number) {
    owner->said->push_back(text + std::to_string(number));
  });
  {
    Worker worker;
    worker.Do([back] {
      back("a", 1);
      back(std::string("b"), 2);
    });
  }
  EXPECT_THAT(loop_.Do([&] { return said_; }), ElementsAre("a1", "b2"));
}

TEST_F(Owned, AnAnswerAfterTheOwnersEndComesToNothing) {
  Worker worker;
  const auto back = owner_->calls.Back([owner = owner_.get()](const std::shared_ptr<int>& value) {
    owner->said->push_back(std::to_string(*value));
  });
  back(std::make_shared<int>(1));
  loop_.Do([&] { owner_.reset(); });
  worker.Do([back] { back(std::make_shared<int>(2)); });
  worker.Do([&] { loop_.loop().Post([&] { said_.emplace_back("end"); }); });
  std::promise<void> done;
  worker.Do([&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_THAT(loop_.Do([&] { return said_; }), ElementsAre("1", "end"));
}

TEST_F(Owned, ACallHereIsAtOnceAndNotAfterTheOwnersEnd) {
  const auto here =
      owner_->calls.Here([owner = owner_.get()](const std::string& text) { owner->said->push_back(text); });
  loop_.Do([&] {
    here("a");
    EXPECT_THAT(said_, ElementsAre("a"));
    owner_.reset();
    here("b");
  });
  EXPECT_THAT(loop_.Do([&] { return said_; }), ElementsAre("a"));
}

TEST_F(Owned, ATimerFiresOnceForItsNewestOrderAndNotAfterTheOwnersEnd) {
  loop_.Do([&] {
    owner_->timer.After(milliseconds(10), [this] { said_.emplace_back("replaced"); });
    owner_->timer.After(milliseconds(20), [this] { said_.emplace_back("fired"); });
  });
  EXPECT_TRUE(loop_.Do([&] { return owner_->timer.waiting(); }));
  loop_.Move(milliseconds(15));
  loop_.Move(milliseconds(5));
  EXPECT_FALSE(loop_.Do([&] { return owner_->timer.waiting(); }));
  loop_.Do([&] { owner_->timer.After(milliseconds(10), [this] { said_.emplace_back("after the end"); }); });
  loop_.Do([&] { owner_.reset(); });
  loop_.Move(milliseconds(10));
  EXPECT_THAT(loop_.Do([&] { return said_; }), ElementsAre("fired"));
}

TEST_F(Owned, ATimerMaySetItselfAgainAndMayEndItsOwner) {
  loop_.Do([&] {
    owner_->timer.After(milliseconds(1), [this] {
      said_.emplace_back("first");
      owner_->timer.After(milliseconds(1), [this] {
        said_.emplace_back("last");
        owner_.reset();
      });
    });
  });
  loop_.Move(milliseconds(1));
  loop_.Move(milliseconds(1));
  EXPECT_THAT(loop_.Do([&] { return said_; }), ElementsAre("first", "last"));
  EXPECT_EQ(owner_, nullptr);
}

}  // namespace
}  // namespace muster
