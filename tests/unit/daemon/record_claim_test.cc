// How a coordinator comes to its gang's record, with a store in memory and a script in the place of muster-slurm.
#include "daemon/coordinator/record_claim.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/slurm/messages.h"
#include "tests/support/loop_thread.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/daemon/ordered.h"
#include "tests/unit/slurm/helper_script.h"

namespace muster {
namespace {

using std::chrono::seconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using After = TakeOver::Swap::After;

constexpr seconds kJoin(600);

// Keeps what is sent.
class ToldLink final : public Link {
 public:
  void Send(std::string payload) override {
    v1::CoordinatorMessage message;
    EXPECT_TRUE(message.ParseFromString(payload));
    told.push_back(std::move(message));
  }
  void Close(const std::string& /*why*/) override {}
  void CloseWhenSent(const std::string& /*why*/) override {}
  [[nodiscard]] std::string key() const override { return "key"; }

  std::vector<v1::CoordinatorMessage> told;
};

struct ClaimingParts {
  ClaimingParts(Loop& loop, Worker& writer, const std::shared_ptr<Catalog>& catalog,
                const std::string& helper, const GangJob& job, std::vector<std::string>* said)
      : nodes(job, core),
        core({orders, orders, orders, orders, orders}, Terms(0, {0, 1}, {}), true),
        history(job.Id()),
        slurm(loop, {.helper = helper}),
        claim(loop, BeatClock::OfThisHost(), writer, catalog, &slurm, job, core, nodes, history,
              {.self = "n0", .store = "memory", .silence_ms = 3'600'000},
              {.record =
                   [this, &job] {
                     GangRecord record = core.Record(job, "");
                     history.WriteInto(&record);
                     return record;
                   },
               .taken =
                   [this, said](const RecordClaim::Taken& record) {
                     taken = record;
                     said->push_back(
                         fmt::format("taken {}.{}", record.head.fence.term, record.head.fence.generation));
                   },
               .not_taken = [said] { said->emplace_back("not taken"); },
               .step_down =
                   [said](const std::string& successor, uint64_t term) {
                     said->push_back(fmt::format("for '{}' in term {}", successor, term));
                   },
               .refuse =
                   [said](const std::string& why, bool job_is_over) {
                     said->push_back((job_is_over ? "over: " : "refused: ") + why);
                   }}) {}

  Ordered orders;
  NodeLinks nodes;
  CoordinatorCore core;
  History history;
  Slurm slurm;
  RecordClaim claim;
  std::optional<RecordClaim::Taken> taken;
};

// Node 0 of a gang of two asks its own host to coordinate.
class RecordClaimTest : public ::testing::Test {
 protected:
  RecordClaimTest() {
    script_.Write(R"sh(while ask; do
  if [ $do == job ]; then ok "$(cat job)"; else ok '{"changed":true,"requeued":false,"released":true}'; fi
done)sh");
    job_.job_id = 12;
    job_.hosts = {"n0", "n1"};
    job_.options.join_seconds = static_cast<uint32_t>(kJoin.count());
    store_->SetFault([this](const std::string& operation, const std::string& /*name*/) -> Status {
      if (operation == "update_head" && before_swap_) std::exchange(before_swap_, nullptr)();
      return down_ ? Status(Error{Errc::kUnavailable, "no answer"}) : Status();
    });
    Make();
  }
  ~RecordClaimTest() override {
    loop_.Do([&] { parts_.reset(); });
  }

  void Make() {
    loop_.Do([&] {
      parts_.reset();
      said_.clear();
      parts_ = std::make_unique<ClaimingParts>(loop_.loop(), writer_,
                                               std::make_shared<Catalog>(store_, job_.Space(), job_.Key()),
                                               script_.path(), job_, &said_);
      parts_->nodes.Attach(0, link_);
    });
    others_ = std::make_unique<Catalog>(store_, job_.Space(), job_.Key());
  }
  // The gang's name is another gang's, which runs.
  void NameIsTaken(bool wait) {
    std::strcpy(job_.options.name, "exp");
    job_.options.name_wait = wait;
    Make();
    GangRecord holder = RecordIn(gang::State::kRunning);
    holder.gang = "11.0";
    holder.job_id = 11;
    Takes(holder);
  }
  [[nodiscard]] GangRecord RecordIn(gang::State state) const {
    GangRecord record;
    record.gang = job_.Id();
    record.key = job_.Key();
    record.job_id = job_.job_id;
    record.state = gang::ToString(state);
    record.term = 1;
    record.coordinator = "n1";
    record.nodes = job_.hosts;
    return record;
  }
  // In the store before this coordinator comes.
  void Takes(const GangRecord& record) {
    EXPECT_TRUE(others_->TakeOver(record.Encode(), record.IndexEntry()));
  }
  void Begin(const TakeOver::Origin& origin) {
    loop_.Do([&] { parts_->claim.Begin(origin); });
  }
  // Waits until the store, and Slurm, have answered what was asked.
  void Answered() {
    for (const bool slurm : {false, job_.options.name[0] != '\0', false}) {
      bool answered = false;
      const auto note = [&] { answered = true; };
      loop_.Do([&] {
        if (slurm) return parts_->slurm.NodeResume("n0", [note](const Status& /*status*/) { note(); });
        writer_.Do([this, note] { loop_.loop().Post(note); });
      });
      EXPECT_TRUE(loop_.Eventually([&] { return answered; }));
    }
  }
  // What has been said, moving the time until it is so much.
  std::vector<std::string> Said(size_t so) {
    for (int moved = 0; moved < 100; ++moved) {
      Answered();
      if (loop_.Do([&] { return said_.size() >= so; })) break;
      loop_.Move(seconds(1));
    }
    return loop_.Do([&] { return said_; });
  }
  void Registers(uint32_t node, const std::shared_ptr<Link>& link, bool waited = false) {
    loop_.Do([&] {
      v1::Register registration;
      registration.set_waited(waited);
      parts_->nodes.Attach(node, link);
      parts_->claim.Registered(node, link, registration);
    });
  }
  void SlurmSays(const std::string& state) {
    SlurmJob job;
    job.job_id = 11;
    job.state = state;
    std::ofstream(script_.directory() / "next") << slurm::ToJson(job).dump();
    std::filesystem::rename(script_.directory() / "next", script_.directory() / "job");
  }
  // What the node was told last that the gang waits for.
  std::string WaitsFor() {
    Answered();
    return loop_.Do([&] { return link_->told.empty() ? "" : link_->told.back().waiting().report().text(); });
  }

  HelperScript script_;
  GangJob job_;
  std::atomic<bool> down_ = false;
  std::function<void()> before_swap_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::unique_ptr<Catalog> others_;
  std::shared_ptr<ToldLink> link_ = std::make_shared<ToldLink>();
  std::vector<std::string> said_;
  LoopThread loop_;
  std::unique_ptr<ClaimingParts> parts_;
  Worker writer_;
};

TEST_F(RecordClaimTest, TheRecordOfANewGangIsMade) {
  Begin({.fresh = true});
  EXPECT_THAT(Said(1), ElementsAre("taken 1.0"));
  EXPECT_EQ(parts_->taken->after, After::kNothing);
  EXPECT_FALSE(parts_->taken->record);
  const auto stored = GangRecord::Decode(others_->Load()->record);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->coordinator, "n0");
  EXPECT_EQ(stored->state, "joining");
}

TEST_F(RecordClaimTest, AGangThatRunsGoesOnFromItsRecord) {
  Takes(RecordIn(gang::State::kRunning));
  Begin({.known_term = 1});
  EXPECT_THAT(Said(1), ElementsAre("taken 2.0"));
  EXPECT_EQ(parts_->taken->after, After::kGang);
  ASSERT_TRUE(parts_->taken->record);
  EXPECT_EQ(parts_->taken->record->coordinator, "n1") << "as it was";
  EXPECT_GT(parts_->taken->asked_at, 0);
}

TEST_F(RecordClaimTest, AGangThatHasEndedIsOver) {
  Takes(RecordIn(gang::State::kFinished));
  Begin({.known_term = 1});
  EXPECT_THAT(Said(1), ElementsAre("taken 2.0"));
  EXPECT_EQ(parts_->taken->after, After::kEnd);
}

TEST_F(RecordClaimTest, AnotherCoordinatorOfANewerTermIsTheSuccessor) {
  Takes(RecordIn(gang::State::kRunning));
  Begin({});
  EXPECT_THAT(Said(1), ElementsAre("for 'n1' in term 1"));
}

TEST_F(RecordClaimTest, ATermThatHasPassedIsNotTaken) {
  Takes(RecordIn(gang::State::kRunning));
  Takes(RecordIn(gang::State::kRunning));
  Begin({.promised = true, .after_term = 1});
  EXPECT_THAT(Said(2), ElementsAre("not taken", "for '' in term 0"));
}

TEST_F(RecordClaimTest, ThePromisedTermIsTakenThoughTheAnswerIsLost) {
  Takes(RecordIn(gang::State::kRunning));
  store_->LoseAnswers(1);
  Begin({.promised = true, .after_term = 1});
  EXPECT_THAT(Said(1), ElementsAre("taken 2.0"));
}

TEST_F(RecordClaimTest, WhatTheCoordinatorBeforeWritesDuringTheTakeOverIsRead) {
  Takes(RecordIn(gang::State::kRunning));
  before_swap_ = [&] {
    EXPECT_TRUE(others_->Advance({1, 0}, {1, 0}, RecordIn(gang::State::kFinished).Encode()));
  };
  Begin({.known_term = 1});
  EXPECT_THAT(Said(2), ElementsAre("not taken", "taken 2.0"));
  EXPECT_EQ(parts_->taken->after, After::kEnd);
}

TEST_F(RecordClaimTest, AGangThatRunsWaitsForTheStoreHoweverLongThatTakes) {
  Takes(RecordIn(gang::State::kRunning));
  down_ = true;
  Begin({.known_term = 1});
  EXPECT_THAT(Said(1), ElementsAre("not taken"));
  loop_.Move(std::chrono::hours(1));
  EXPECT_THAT(Said(2), Each("not taken"));
  down_ = false;
  EXPECT_EQ(Said(3).back(), "taken 2.0");
}

TEST_F(RecordClaimTest, ANewGangWaitsForTheStoreUntilTheJoinTimeoutIsOver) {
  down_ = true;
  Begin({.fresh = true});
  EXPECT_THAT(Said(1), ElementsAre("not taken"));
  loop_.Move(kJoin);
  EXPECT_THAT(Said(2), Each("not taken"));
  EXPECT_EQ(Said(4).back(), "refused: cannot take its record over in memory: no answer");
}

TEST_F(RecordClaimTest, ATryIsNotMadeAgainWhenNobodyAsksForItAnyMore) {
  down_ = true;
  Begin({.known_term = 1});
  EXPECT_THAT(Said(1), ElementsAre("not taken"));
  loop_.Do([&] { parts_->nodes.Detach(0, link_.get()); });
  EXPECT_THAT(Said(2), ElementsAre("not taken", "for '' in term 0"));
}

TEST_F(RecordClaimTest, AJobThatRunsAnewElsewhereIsOver) {
  GangRecord newer = RecordIn(gang::State::kRunning);
  newer.gang = "12.0-r1";
  newer.restart_count = 1;
  Takes(newer);
  Begin({.known_term = 1});
  const auto said = Said(2);
  ASSERT_THAT(said, SizeIs(2));
  EXPECT_THAT(said[1], StartsWith("over: cannot take its record over in memory: the job was requeued"));
}

TEST_F(RecordClaimTest, ANameIsWaitedForUntilItsJobIsOver) {
  NameIsTaken(true);
  SlurmSays("RUNNING");
  Begin({.fresh = true});
  EXPECT_THAT(WaitsFor(), HasSubstr("waits: name=exp is that of gang 11.0, job 11 (RUNNING)"));
  loop_.Do([&] {
    EXPECT_TRUE(parts_->claim.waits());
    GangRecord record;
    parts_->history.WriteInto(&record);
    ASSERT_THAT(record.events, SizeIs(1));
    EXPECT_EQ(record.events[0].kind, "waiting");
  });
  const auto late = std::make_shared<ToldLink>();
  Registers(1, late);
  loop_.Do([&] {
    ASSERT_THAT(late->told, SizeIs(1));
    EXPECT_THAT(late->told[0].waiting().report().text(), HasSubstr("job 11 (RUNNING)"));
  });
  SlurmSays("COMPLETED");
  EXPECT_THAT(Said(1), ElementsAre("taken 2.0"));
  EXPECT_FALSE(loop_.Do([&] { return parts_->claim.waits(); }));
}

TEST_F(RecordClaimTest, ANameWhoseJobLivesIsRefused) {
  NameIsTaken(false);
  SlurmSays("RUNNING");
  Begin({.fresh = true});
  const auto said = Said(1);
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], StartsWith("refused: name=exp is that of gang 11.0, job 11 (RUNNING)"));
  EXPECT_THAT(said[0], HasSubstr("--gang=name=exp:wait")) << "and what the user can do";
}

TEST_F(RecordClaimTest, AGangThatWaitsEndsWithItsTasks) {
  NameIsTaken(true);
  SlurmSays("RUNNING");
  Begin({.fresh = true});
  EXPECT_THAT(WaitsFor(), HasSubstr("job 11 (RUNNING)"));
  loop_.Do([&] {
    v1::AgentMessage message;
    message.mutable_terminating()->set_signal(SIGUSR1);
    parts_->claim.Hear(0, message);
    EXPECT_THAT(said_, IsEmpty());
    message.mutable_terminating()->set_signal(SIGTERM);
    parts_->claim.Hear(0, message);
    ASSERT_THAT(said_, SizeIs(1));
    EXPECT_THAT(said_[0], StartsWith("refused: ended before it began: name=exp is that of gang 11.0"));
  });
}

TEST_F(RecordClaimTest, AGangThatHasWaitedBeforeIsToldAtOnceThatItWaits) {
  NameIsTaken(true);
  down_ = true;
  Begin({.fresh = true});
  Registers(0, link_, true);
  loop_.Do([&] {
    ASSERT_THAT(link_->told, SizeIs(1));
    EXPECT_TRUE(link_->told[0].has_waiting());
    EXPECT_FALSE(link_->told[0].waiting().has_report()) << "nobody has said yet whose the name is";
  });
}

TEST_F(RecordClaimTest, OfWhatANodeSaysOnlyItsNewestLinkCounts) {
  down_ = true;
  Begin({.fresh = true});
  Registers(0, link_);
  v1::AgentMessage message;
  message.mutable_exiting()->set_generation(7);
  loop_.Do([&] { parts_->claim.Hear(0, message); });
  Registers(1, std::make_shared<ToldLink>());
  const auto newer = std::make_shared<ToldLink>();
  Registers(0, newer);
  loop_.Do([&] {
    const auto early = parts_->claim.TakeEarly();
    ASSERT_THAT(early, SizeIs(2));
    EXPECT_EQ(early[0].node, 1U);
    EXPECT_TRUE(early[0].message.has_register_());
    EXPECT_EQ(early[1].node, 0U);
    EXPECT_EQ(early[1].link, newer);
    EXPECT_THAT(parts_->claim.TakeEarly(), IsEmpty());
  });
}

}  // namespace
}  // namespace muster
