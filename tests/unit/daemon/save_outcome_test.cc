// How saves end, and who is told: through two musterds, one of which may be restarted meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ceph/muster.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class SaveOutcome : public TwoDaemons {
 protected:
  void SetUp() override {
    TwoDaemons::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    first_ = std::make_unique<TestMember>(daemons_[0]->socket(), StepHello(31, 0, 2), "n[1-2]");
    second_ = std::make_unique<TestMember>(daemons_[1]->socket(), StepHello(31, 1, 2), "n[1-2]");
    first_->Run();
    second_->Run();
  }
  // The first member's musterd: the coordinator is the other one.
  void RestartTheFirst() {
    daemons_[0].reset();
    StartDaemon(0);
    first_->Return();
  }
  void Commit(uint64_t step) {
    first_->Save(step, "part zero");
    second_->Save(step, "part one");
    first_->ExpectCommitted();
    second_->ExpectCommitted();
  }

  std::unique_ptr<TestMember> first_;
  std::unique_ptr<TestMember> second_;
};

// Else it would wait for the others for ever.
TEST_F(SaveOutcome, AMemberWhoseShardComesAfterAnothersSaveHasFailedIsTold) {
  first_->Save(10, "part zero", 1);
  first_->ExpectDurable(MUSTER_E_INVALID);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  second_->ExpectTold(MUSTER_E_STORE);
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(second_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 10 that were announced"));
  first_->ExpectTold(MUSTER_E_STORE);
  // For good.
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  first_->ExpectTold(MUSTER_E_STORE);
  second_->ExpectTold(MUSTER_E_STORE);
  Commit(11);
}

TEST_F(SaveOutcome, AMemberWhoseMusterdWasRestartedIsToldOfACommit) {
  Commit(10);
  RestartTheFirst();
  first_->AskOutcome(10);
  first_->ExpectTold(MUSTER_OK);
  second_->ExpectTold(MUSTER_OK);  // all are told again
  Commit(11);
}

TEST_F(SaveOutcome, AShardThatARestartedMusterdHadReportedStillCounts) {
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  Commit(11);  // reports come in order: that of 10 is there
  RestartTheFirst();
  first_->AskOutcome(10);
  Commit(12);  // the question has come, and has failed nothing
  second_->Save(10, "part one");
  second_->ExpectCommitted();
  first_->ExpectTold(MUSTER_OK);
}

TEST_F(SaveOutcome, AShardThatWasLostWithItsMusterdFailsTheSaveForAll) {
  second_->Save(10, "part one");
  second_->ExpectDurable(MUSTER_OK);
  RestartTheFirst();
  first_->AskOutcome(10);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE), HasSubstr("musterd on n1 was restarted"));
  first_->AskOutcome(10);
  for (TestMember* member : {first_.get(), second_.get()})
    EXPECT_THAT(member->ExpectTold(MUSTER_E_STORE), HasSubstr("musterd on n1 was restarted"));
  Commit(11);
}

TEST_F(SaveOutcome, AFailureThatWasMissedInARestartIsToldToWhoSavesAgain) {
  first_->Save(10, "part zero");
  first_->ExpectDurable(MUSTER_OK);
  Commit(11);  // reports come in order: that of 10 is there
  second_->Save(10, "part one", 1);
  second_->ExpectDurable(MUSTER_E_INVALID);
  second_->ExpectTold(MUSTER_E_STORE);
  first_->ExpectTold(MUSTER_E_STORE);
  RestartTheFirst();
  first_->Save(10, "part zero");  // as one that was not told
  first_->ExpectDurable(MUSTER_OK);
  EXPECT_THAT(first_->ExpectTold(MUSTER_E_STORE), HasSubstr("not the 9 that were announced"));
}

}  // namespace
}  // namespace muster
