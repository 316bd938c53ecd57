// What a daemon answers the muster command of the gangs that it coordinates, and of those that only the store has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "ceph/store/store.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/service/node_report.h"
#include "daemon/service/queries.h"
#include "daemon/slurm/slurm.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/daemon/daemon_rig.h"
#include "tests/unit/daemon/link_net.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using wire::Type;
using Question = v1::Question;

constexpr uint32_t kUser = 1000;  // as StepHello has it

// The daemon of n1, and a gang of one task there.
class QueriesTest : public ::testing::Test {
 protected:
  explicit QueriesTest(std::shared_ptr<Store> store = nullptr)
      : store_(store ? std::move(store) : *OpenStore({.url = "dir:" + directory_.path() + "/store"})) {
    daemon_ = std::make_unique<TestDaemon>("n1", "127.0.0.1", uint16_t{1}, directory_.path(), EngineOptions(),
                                           store_, TestLinks{net_.DialFrom("n1"), [this](AcceptLink accept) {
                                                               return net_.Listen("n1", std::move(accept));
                                                             }});
    daemon_->On([this] {
      slurm_ = std::make_unique<Slurm>(daemon_->loop(), SlurmOptions{.helper = "/no/such/helper"});
      queries_ = std::make_unique<Queries>(daemon_->loop(), config_, "n1", store_, engine_,
                                           daemon_->coordinators(), daemon_->agent(), *slurm_);
    });
  }
  ~QueriesTest() override {
    daemon_->On([this] {
      queries_.reset();
      slurm_.reset();
    });
    daemon_.reset();
  }

  void Run() {
    ASSERT_TRUE(member_.Join(daemon_->socket(), "n1", ""));
    ASSERT_TRUE(member_.Next(Type::kStart));
    member_.Executed(1);
  }
  v1::Answer Ask(const Question& question, uint32_t uid = kUser) {
    std::promise<std::string> reply;
    queries_->Ask({uid}, question.SerializeAsString(),
                  [&reply](std::string answer) { reply.set_value(std::move(answer)); });
    v1::Answer answer;
    EXPECT_TRUE(answer.ParseFromString(reply.get_future().get()));
    return answer;
  }
  v1::Answer Ask(Question::Kind kind, const std::string& gang = "", uint32_t uid = kUser) {
    Question question;
    question.set_kind(kind);
    question.set_gang(gang);
    return Ask(question, uid);
  }

  LinkNet net_;
  TemporaryDirectory directory_;
  const Config config_;
  const std::shared_ptr<Store> store_;
  Engine engine_{store_, EngineOptions()};
  std::unique_ptr<TestDaemon> daemon_;
  std::unique_ptr<Slurm> slurm_;
  std::unique_ptr<Queries> queries_;
  TestSupervisor member_{StepHello(12, 0, 1)};
};

TEST_F(QueriesTest, AGangThatRunsHereIsLiveToItsUserAndNotThereToOthers) {
  Run();
  const auto status = json::parse(Ask(Question::STATUS).json());
  ASSERT_EQ(status["gangs"].size(), 1U) << status;
  EXPECT_EQ(status["gangs"][0]["gang"], "12.0");
  EXPECT_EQ(status["gangs"][0]["live"], true);
  EXPECT_TRUE(json::parse(Ask(Question::STATUS, "", kUser + 1).json())["gangs"].empty());
  EXPECT_EQ(Ask(Question::STATUS, "12", kUser + 1).exit_code(), 1U);
  const auto events = json::parse(Ask(Question::EVENTS, "12").json());
  EXPECT_EQ(events["gang"], "12.0");
  EXPECT_FALSE(events["events"].empty());
  const auto checkpoints = Ask(Question::CHECKPOINT_LIST, "12.0");
  EXPECT_EQ(checkpoints.exit_code(), 0U) << checkpoints.error();
}

class WithoutStore : public QueriesTest {
 protected:
  WithoutStore() : WithoutStore(std::make_shared<MemoryStore>()) {}
  explicit WithoutStore(const std::shared_ptr<MemoryStore>& memory) : QueriesTest(memory), memory_(memory) {}

  const std::shared_ptr<MemoryStore> memory_;
};

TEST_F(WithoutStore, GangsHereAreKnownWhenTheStoreDoesNotAnswer) {
  Run();
  memory_->SetFault([](const std::string& /*operation*/, const std::string& /*name*/) {
    return Status(Error{Errc::kUnavailable, "the store is away"});
  });
  EXPECT_EQ(json::parse(Ask(Question::STATUS).json())["gangs"].size(), 1U);
  EXPECT_THAT(Ask(Question::STATUS, "13").error(), HasSubstr("the store is away"));
}

TEST_F(QueriesTest, WhatOnlyRootMayAskIsRefusedToOthers) {
  Question question;
  question.set_kind(Question::STATUS);
  question.set_has_uid(true);
  question.set_uid(kUser + 1);
  EXPECT_THAT(Ask(question).error(), HasSubstr("only root"));
  EXPECT_EQ(Ask(question, 0).error(), "");
  EXPECT_THAT(Ask(Question::NODE_DRAIN).error(), HasSubstr("only root"));
  question.set_has_uid(false);
  question.set_all(true);
  EXPECT_THAT(Ask(question).error(), HasSubstr("only root"));
}

TEST_F(QueriesTest, ANodeIsShownToEverybodyAndAGangToItsUserAndRoot) {
  Run();
  Question question;
  question.set_kind(Question::NODE_SHOW);
  question.set_node("n1");
  const auto shown = Ask(question);
  const auto document = json::parse(shown.json());
  EXPECT_EQ(document["node"], "n1");
  EXPECT_EQ(shown.exit_code(), document["fit"] == true ? 0U : 1U);
  EXPECT_EQ(document["gangs"], json::array({{{"gang", "12.0"}, {"uid", kUser}}}));
  EXPECT_EQ(json::parse(Ask(question, 0).json())["gangs"].size(), 1U);
  const auto other = json::parse(Ask(question, kUser + 1).json());
  EXPECT_EQ(other["gangs"], json::array());
  EXPECT_EQ(other["findings"], document["findings"]);
  question.set_node("n2");
  EXPECT_THAT(Ask(question).ask_instead(), HasSubstr("n2:"));
}

TEST(NodeReport, ANodeIsFitUntilItsHealthOrAPortSaysOtherwise) {
  NodeView view;
  EXPECT_EQ(NodeReport("n1", view)["fit"], true);
  EXPECT_TRUE(NodeReport("n1", view)["findings"].is_null());
  view.health.emplace().findings = {{"disk /tmp", "has 1 % free", HealthSeverity::kWarning}};
  view.ports = {{"roce0", true, 2, "", {"roce0 retransmits"}}};
  view.links = {{kUser, "12.0 1.1", true, std::chrono::milliseconds(1500)}};
  auto report = NodeReport("n1", view);
  EXPECT_EQ(report["fit"], true);
  EXPECT_EQ(report["good_links"][0]["age_ms"], 1500);
  EXPECT_EQ(report["ports"][0]["holding"], json::array({"roce0 retransmits"}));
  view.ports[0].sick = "roce0 has had no link for 12 s";
  EXPECT_EQ(NodeReport("n1", view)["fit"], false);
  view.ports.clear();
  view.health->findings[0].severity = HealthSeverity::kSick;
  EXPECT_EQ(NodeReport("n1", view)["fit"], false);
}

TEST_F(QueriesTest, ADrainedNodeTellsItsGangsAndSaysThatSlurmDoesNotKnow) {
  Run();
  Question question;
  question.set_kind(Question::NODE_DRAIN);
  question.set_node("n1");
  const auto drained = Ask(question, 0);
  const auto document = json::parse(drained.json());
  EXPECT_EQ(document["gangs"], json::array({"12.0"}));
  EXPECT_NE(document["slurm"], "done");
  EXPECT_EQ(drained.exit_code(), 1U);
  question.set_node("n9");
  EXPECT_EQ(Ask(question, 0).ask_instead(), "n9:303");
}

}  // namespace
}  // namespace muster
