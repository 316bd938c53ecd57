// What a coordinator writes into its gang's record, and what it learns from the store's answers.
#include "daemon/coordinator/record_side.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/loop_thread.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"
#include "tests/unit/daemon/gang_rig.h"
#include "tests/unit/daemon/ordered.h"

namespace muster {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint32_t kWriters = 2;  // nodes

// Also keeps what the state machine notes, and which checkpoint is being marked.
class Recorded : public Ordered {
 public:
  void Do(const gang::Note& action) override { said.push_back(action.kind); }
  void StoreConfirmed(int64_t /*asked_at*/) override { ++confirmed; }

  int confirmed = 0;
};

struct WritingParts {
  WritingParts(Loop& loop, Worker* reader, const std::shared_ptr<Catalog>& catalog, const GangJob& job,
               std::vector<std::string>* ended)
      : side(loop, BeatClock::OfThisHost(), reader, catalog, order, job, core,
             {.record = [this, &job] { return core.Record(job, "n0"); },
              .step_down = [ended](const std::string& successor) { ended->push_back("for " + successor); },
              .refuse =
                  [ended](const std::string& why, bool job_is_over) {
                    ended->push_back((job_is_over ? "over: " : "refused: ") + why);
                  }}),
        core({orders, side, orders, orders, orders}, Terms(0, {0, 1}, {}), true) {
    core.Take({1, 0}, {}, std::nullopt);
    core.Begin(gang::Rig::SettingsOf(kWriters, 1), nullptr, {}, {});
    core.Go();
    orders.lease = true;
  }
  void Join() {
    for (uint32_t node = 0; node < kWriters; ++node) {
      core.Registered(node, 0, std::nullopt);
      core.Feed(gang::NodeJoined{
          .node = node, .name = fmt::format("n{}", node), .members = {{.task = node, .local_id = 0}}});
    }
  }

  Recorded orders;
  std::shared_ptr<CommitOrder> order = std::make_shared<CommitOrder>();
  RecordSide side;
  CoordinatorCore core;
};

// A gang of two nodes that have not joined, whose record this coordinator has taken in term 1.
class RecordSideTest : public ::testing::Test {
 protected:
  RecordSideTest() {
    job_.job_id = 12;
    job_.hosts = {"n0", "n1"};
    catalog_ = std::make_shared<Catalog>(store_, job_.Space(), job_.Key());
    EXPECT_TRUE(catalog_->TakeOver("record", "entry"));
    store_->SetFault([this](const std::string& operation, const std::string& /*name*/) -> Status {
      if (operation == "read_head") ++reads_;
      if (operation != "update_head" || !down_) return {};
      ++refused_;
      return Error{Errc::kUnavailable, "no answer"};
    });
    loop_.Do(
        [&] { parts_ = std::make_unique<WritingParts>(loop_.loop(), &reader_, catalog_, job_, &ended_); });
  }
  ~RecordSideTest() override {
    loop_.Do([&] {
      parts_->core.Lose();
      parts_.reset();
    });
  }

  // Waits until the thread that writes has done what was ordered, and its answers are known.
  void Written() {
    std::promise<void> done;
    loop_.Do([&] { parts_->side.writer().Do([&] { done.set_value(); }); });
    done.get_future().wait();
    loop_.Do([] {});
  }
  void Join() {
    loop_.Do([&] { parts_->Join(); });
    Written();
  }
  [[nodiscard]] GangRecord Stored() { return *GangRecord::Decode(catalog_->Load()->record); }
  std::vector<std::string> Ended() {
    EXPECT_TRUE(loop_.Eventually([&] { return !ended_.empty(); }));
    return loop_.Do([&] { return ended_; });
  }
  std::vector<std::string> Said() {
    return loop_.Do([&] { return parts_->orders.Take(); });
  }
  // Another gang, or another coordinator of this one, takes the record.
  void Takes(const GangRecord& record) { EXPECT_TRUE(catalog_->TakeOver(record.Encode(), "entry")); }
  void Commit(uint64_t step) {
    EXPECT_TRUE(catalog_->Commit(SampleManifest(job_.Key(), step, {1, 1}, kWriters), 5));
  }
  // What a member says of the newest checkpoint.
  [[nodiscard]] gang::CheckpointBad DoesNotVerify() {
    const CheckpointInfo newest = catalog_->Load()->checkpoints.back();
    return {.task = 1, .generation = 1, .step = newest.step, .reason = "torn", .manifest = newest.manifest};
  }
  // This coordinator has a reason to write.
  void Persist() {
    loop_.Do([&] { parts_->core.Persist(); });
  }

  GangJob job_;
  std::atomic<bool> down_ = false;
  std::atomic<int> refused_ = 0;
  std::atomic<int> reads_ = 0;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<Catalog> catalog_;
  std::vector<std::string> ended_;
  Worker reader_;
  LoopThread loop_;
  std::unique_ptr<WritingParts> parts_;
};

TEST_F(RecordSideTest, TheRecordIsWrittenUnderItsFenceAndTheGenerationStartsThen) {
  Written();
  EXPECT_EQ(catalog_->Load()->fence, (Fence{1, 0}));
  EXPECT_EQ(Stored().state, "joining");
  Join();
  EXPECT_EQ(catalog_->Load()->fence, (Fence{1, 1}));
  const GangRecord stored = Stored();
  EXPECT_EQ(stored.generation, 1U);
  EXPECT_EQ(stored.coordinator, "n0");
  EXPECT_THAT(Said(), Contains("start 0,1"));
  loop_.Do([&] {
    EXPECT_EQ(parts_->core.fence().durable(), 1U);
    EXPECT_EQ(parts_->orders.confirmed, 2) << "the store has the term with each record";
  });
  EXPECT_TRUE(parts_->order->AwaitRecord(1, [] { return false; })) << "commits of the generation may follow";
}

TEST_F(RecordSideTest, AStoreThatDoesNotAnswerIsAskedUntilItDoes) {
  Written();
  down_ = true;
  loop_.Do([&] { parts_->Join(); });
  ASSERT_TRUE(loop_.Eventually([&] { return refused_ > 0; }));
  EXPECT_THAT(Said(), Not(Contains("start 0,1")));
  down_ = false;
  Written();
  EXPECT_EQ(Stored().generation, 1U);
  EXPECT_THAT(Said(), Contains("start 0,1"));
}

TEST_F(RecordSideTest, WhoIsNotObeyedAnyMoreWritesNothing) {
  Written();
  down_ = true;
  loop_.Do([&] { parts_->Join(); });
  ASSERT_TRUE(loop_.Eventually([&] { return refused_ > 0; }));
  loop_.Do([&] { parts_->core.Lose(); });
  down_ = false;
  Written();
  EXPECT_EQ(Stored().generation, 0U) << "the write is given up before its next try";
}

TEST_F(RecordSideTest, ANewTermIsInTheStoreWithItsWitnessesBeforeItBegins) {
  Join();
  loop_.Do([&] {
    parts_->core.RaiseTerm();
    EXPECT_EQ(parts_->core.fence().term(), 1U);
  });
  Written();
  loop_.Do([&] { EXPECT_EQ(parts_->core.fence().term(), 2U); });
  Written();  // the record of the new term
  EXPECT_EQ(catalog_->Load()->fence, (Fence{2, 1}));
  const GangRecord stored = Stored();
  EXPECT_EQ(stored.term, 2U);
  EXPECT_THAT(stored.witnesses, ElementsAre(0U, 1U));
  EXPECT_THAT(stored.former, ElementsAre(ElementsAre(0U, 1U)));
}

TEST_F(RecordSideTest, ARecordOfTheGangThatAnotherHasNamesTheSuccessor) {
  Join();
  GangRecord taken = Stored();
  taken.coordinator = "n1";
  Takes(taken);
  Persist();
  EXPECT_THAT(Ended(), ElementsAre("for n1"));
}

TEST_F(RecordSideTest, AGangWhoseJobRunsAnewElsewhereIsOver) {
  Join();
  GangRecord taken = Stored();
  taken.gang = "12.0-r1";
  taken.restart_count = 1;
  Takes(taken);
  Persist();
  EXPECT_THAT(Ended(), ElementsAre("over: the job was requeued; its gang is 12.0-r1 now"));
}

TEST_F(RecordSideTest, AGangWhoseRecordAnotherJobHasIsRefused) {
  Join();
  GangRecord taken = Stored();
  taken.gang = "11.0";
  taken.job_id = 11;
  Takes(taken);
  Persist();
  const auto ended = Ended();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_THAT(ended[0], ::testing::StartsWith("refused: another coordinator has taken over job-12.0"));
}

TEST_F(RecordSideTest, WithoutAnAnswerNobodyKnowsTheSuccessor) {
  Join();
  store_->SetFault([](const std::string& operation, const std::string&) -> Status {
    return operation == "read_head" ? Status(Error{Errc::kUnavailable, "no answer"}) : Status();
  });
  loop_.Do([&] { parts_->core.Deposed("conflict"); });
  EXPECT_THAT(Ended(), ElementsAre("for "));
}

TEST_F(RecordSideTest, TheTermIsAskedForOnceAtATime) {
  Join();
  reads_ = 0;
  std::promise<void> go;
  reader_.Do([&] { go.get_future().wait(); });
  loop_.Do([&] {
    parts_->orders.confirmed = 0;
    parts_->side.AskTerm();
    parts_->side.AskTerm();
  });
  go.set_value();
  ASSERT_TRUE(loop_.Eventually([&] { return parts_->orders.confirmed == 1; }));
  EXPECT_EQ(reads_, 1);
  Takes(Stored());
  Said();
  loop_.Do([&] { parts_->side.AskTerm(); });
  EXPECT_TRUE(loop_.Eventually([&] { return !parts_->orders.said.empty(); }));
  EXPECT_THAT(Said(), Contains("depose"));
}

TEST_F(RecordSideTest, ABadCheckpointIsMarkedAndIsNotStartedFrom) {
  Join();
  for (const uint64_t step : {10, 11}) Commit(step);
  loop_.Do([&] { parts_->core.Feed(DoesNotVerify()); });
  Written();
  EXPECT_FALSE(catalog_->Load()->checkpoints[1].good);
  EXPECT_EQ(catalog_->Load()->checkpoints[1].reason, "torn");
  loop_.Do([&] { EXPECT_EQ(parts_->core.starts().newest(), 10U); });
}

TEST_F(RecordSideTest, AMarkThatANewTermHasOvertakenIsMadeAgainLater) {
  Join();
  Commit(10);
  const gang::CheckpointBad bad = DoesNotVerify();
  loop_.Do([&] {
    parts_->core.RaiseTerm();
    parts_->core.Feed(bad);
  });
  Written();
  loop_.Move(std::chrono::milliseconds(999));
  Written();
  EXPECT_TRUE(catalog_->Load()->checkpoints[0].good);
  loop_.Move(std::chrono::milliseconds(1));
  Written();
  EXPECT_FALSE(catalog_->Load()->checkpoints[0].good);
}

}  // namespace
}  // namespace muster
