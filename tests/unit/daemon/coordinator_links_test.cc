// Coordinators as agents see them, message by message, on joined links and in time that the test moves.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/loop.h"
#include "base/worker.h"
#include "ceph/catalog/catalog.h"
#include "daemon/config/config.h"
#include "daemon/coordinator/record.h"
#include "daemon/gang/gang.h"
#include "daemon/gang_job/gang_job.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/proto/node_table.h"
#include "daemon/service/coordinators.h"
#include "tests/support/virtual_clock.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/sample_manifest.h"
#include "tests/unit/daemon/link_net.h"
#include "tests/unit/daemon/link_peer.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using CoordinatorKind = v1::CoordinatorMessage::KindCase;

constexpr char kSelf[] = "n2";
constexpr char kGang[] = "12.0";
constexpr int kExitWithSeven = 7 << 8;

// The daemon of n2, which coordinates; the test has the agents of n1 and n2.
class CoordinatorLinks : public ::testing::Test {
 protected:
  CoordinatorLinks() {
    config_.node_name = kSelf;
    coordinators_ =
        std::make_unique<Coordinators>(CoordinatorContext{loop_, config_, kSelf, store_, &reader_});
    listener_ = net_.Listen(
        kSelf, [this](std::shared_ptr<Link> link) { return coordinators_->Accept(std::move(link)); });
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~CoordinatorLinks() override {
    loop_.Stop();
    thread_.join();
    listener_.reset();
    coordinators_.reset();
  }

  void Dial(uint32_t node) {
    agents_[node].Opened(
        net_.DialFrom(fmt::format("n{}", node + 1))(kSelf, "n2:1", agents_[node].Events(), {}));
  }
  static v1::AgentMessage Message() {
    v1::AgentMessage message;
    message.set_gang(kGang);
    return message;
  }
  static v1::AgentMessage Registration(uint32_t node, const std::string& options = "") {
    auto message = Message();
    v1::Register* r = message.mutable_register_();
    r->set_job_id(12);
    r->set_uid(1000);
    r->set_gid(1000);
    r->set_node(node);
    r->set_node_count(2);
    r->set_task_count(2);
    r->set_node_name(fmt::format("n{}", node + 1));
    r->set_node_list("n[1-2]");
    r->set_options(options);
    r->set_coordinator(1);
    r->set_lease_port(19'000);
    r->add_members()->set_task(node);
    return message;
  }
  void Register(uint32_t node, const std::string& options = "") {
    agents_[node].Send(Registration(node, options));
  }
  void Join(const std::string& options = "") {
    for (const uint32_t node : {0, 1}) {
      Dial(node);
      Register(node, options);
    }
  }
  std::optional<v1::CoordinatorMessage> Take(uint32_t node, CoordinatorKind kind) {
    return agents_[node].Take(
        [kind](const v1::CoordinatorMessage& message) { return message.kind_case() == kind; });
  }
  void ExpectStart(uint64_t generation) {
    for (const uint32_t node : {0, 1}) {
      auto message = Take(node, CoordinatorKind::kStart);
      ASSERT_TRUE(message) << "node " << node;
      ASSERT_TRUE(UnpackNodes(message->mutable_start()));
      EXPECT_EQ(message->start().generation(), generation);
      EXPECT_EQ(message->start().nodes_size(), 2);
    }
    for (const uint32_t node : {0, 1}) {
      auto executed = Message();
      executed.mutable_executed()->set_generation(generation);
      executed.mutable_executed()->add_tasks(node);
      agents_[node].Send(executed);
    }
  }
  void Exited(uint32_t node, uint64_t generation, int status) {
    auto message = Message();
    v1::MemberExited* exited = message.mutable_exited();
    exited->set_task(node);
    exited->set_generation(generation);
    exited->set_status(status);
    exited->set_pid(4711);
    exited->set_program("train");
    agents_[node].Send(message);
  }
  void Stopped(uint32_t node, uint64_t generation) {
    auto message = Message();
    message.mutable_stopped()->set_generation(generation);
    message.mutable_stopped()->set_lease_port(19'100);
    agents_[node].Send(message);
  }
  template <typename Asked>
  auto On(Asked asked) {
    std::promise<decltype(asked())> answer;
    loop_.Post([&] { answer.set_value(asked()); });
    return answer.get_future().get();
  }
  std::string State() {
    return On([this] {
      const auto coordinator = coordinators_->Find(kGang);
      return coordinator ? coordinator->Record().state : std::string("not there");
    });
  }
  static GangRecord RecordIn(gang::State state) {
    GangRecord record;
    record.gang = kGang;
    record.key = "job-12.0";
    record.job_id = 12;
    record.uid = 1000;
    record.state = gang::ToString(state);
    record.term = 1;
    record.coordinator = "n1";
    record.task_count = 2;
    record.nodes = {"n1", kSelf};
    return record;
  }
  // The name is another job's gang's, which runs.
  static GangRecord RecordOfAnother(Catalog* named) {
    GangRecord record = RecordIn(gang::State::kRunning);
    record.gang = "11.0";
    record.job_id = 11;
    record.key = "name-exp";
    EXPECT_TRUE(named->TakeOver(record.Encode(), record.IndexEntry()));
    return record;
  }
  // The store does not say what is in a record.
  void HeadsAreNotRead() {
    store_->SetFault([](const std::string& operation, const std::string&) {
      return operation == "read_head" ? Status(Error{Errc::kUnavailable, "no answer"}) : Status();
    });
  }
  void SayThatSlurmEndsTheJob(uint32_t node) {
    auto message = Message();
    message.mutable_terminating()->set_task(node);
    message.mutable_terminating()->set_signal(SIGTERM);
    agents_[node].Send(message);
  }

  VirtualClock clock_;
  LinkNet net_;
  Loop loop_{clock_};
  Config config_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Catalog catalog_{store_, SpaceOf(1000), "job-12.0"};  // as another coordinator has it
  Worker reader_;
  std::unique_ptr<Coordinators> coordinators_;
  std::shared_ptr<void> listener_;
  std::array<LinkPeer<v1::CoordinatorMessage>, 2> agents_;
  std::thread thread_;
};

TEST_F(CoordinatorLinks, AGangStartsWhenAllAreThereAndAFailureStopsAllOfItBeforeTheNextGeneration) {
  Join();
  ExpectStart(1);
  Exited(0, 1, kExitWithSeven);
  for (const uint32_t node : {0, 1}) {
    const auto stop = Take(node, CoordinatorKind::kStop);
    ASSERT_TRUE(stop) << "node " << node;
    EXPECT_EQ(stop->stop().generation(), 1U);
  }
  for (const uint32_t node : {0, 1}) Stopped(node, 1);
  ExpectStart(2);
  for (const uint32_t node : {0, 1}) Exited(node, 2, 0);
  for (const uint32_t node : {0, 1}) {
    const auto finish = Take(node, CoordinatorKind::kFinish);
    ASSERT_TRUE(finish) << "node " << node;
    EXPECT_TRUE(finish->finish().succeeded());
  }
}

TEST_F(CoordinatorLinks, TheJoinTimeoutIsOneOfTheLoopsClock) {
  Dial(1);
  Register(1, "join=1h");
  ASSERT_TRUE(Take(1, CoordinatorKind::KIND_NOT_SET));
  EXPECT_EQ(State(), "joining");
  clock_.Move(std::chrono::hours(1) - std::chrono::milliseconds(1));
  EXPECT_EQ(State(), "joining");
  clock_.Move(std::chrono::milliseconds(1));
  const auto report = Take(1, CoordinatorKind::kReport);
  ASSERT_TRUE(report);
  EXPECT_THAT(report->report().text(), HasSubstr("these have not joined: n1"));
  const auto finish = Take(1, CoordinatorKind::kFinish);
  ASSERT_TRUE(finish);
  EXPECT_FALSE(finish->finish().succeeded());
}

TEST_F(CoordinatorLinks, AStoreThatIsAwayIsWaitedForByTheLoopsClock) {
  HeadsAreNotRead();
  Dial(1);
  Register(1, "join=1h");
  auto refused = std::async(std::launch::async, [this] { return Take(1, CoordinatorKind::kRefused); });
  std::chrono::minutes moved{0};
  while (refused.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    clock_.Move(std::chrono::minutes(1));
    moved += std::chrono::minutes(1);
  }
  EXPECT_GE(moved, std::chrono::hours(1));
  const auto message = refused.get();
  ASSERT_TRUE(message);
  EXPECT_THAT(message->refused().text(), HasSubstr("no answer"));
}

// This daemon has no access to Slurm, which it would ask.
TEST_F(CoordinatorLinks, ANameThatAnotherGangHasIsWaitedForAndNotTaken) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  GangRecord record = RecordOfAnother(&named);
  Join("name=exp:wait");
  for (const uint32_t node : {0, 1}) {
    const auto waiting = Take(node, CoordinatorKind::kWaiting);
    ASSERT_TRUE(waiting) << "node " << node;
    EXPECT_THAT(waiting->waiting().report().text(), HasSubstr("name=exp is that of gang 11.0, job 11"));
  }
  EXPECT_EQ(State(), "waiting") << "and the timer of the next look is set";
  auto head = named.Load();
  ASSERT_TRUE(head);
  EXPECT_EQ(head->fence.term, 1U);
  record.state = gang::ToString(gang::State::kFinished);
  ASSERT_TRUE(named.Advance(head->fence, head->fence, record.Encode()));
  clock_.Move(std::chrono::seconds(5));
  ExpectStart(1);
  head = named.Load();
  ASSERT_TRUE(head);
  EXPECT_EQ(head->fence.term, 2U);
}

TEST_F(CoordinatorLinks, AGangIsRefusedTheNameOfOneOfWhichSlurmSaysNothing) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  RecordOfAnother(&named);
  Dial(1);
  Register(1, "name=exp,join=1h");
  auto refused = std::async(std::launch::async, [this] { return Take(1, CoordinatorKind::kRefused); });
  std::chrono::minutes moved{0};
  while (refused.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    clock_.Move(std::chrono::minutes(1));
    moved += std::chrono::minutes(1);
  }
  EXPECT_GE(moved, std::chrono::hours(1));
  EXPECT_THAT(refused.get()->refused().text(), HasSubstr("Slurm does not say whether it lives"));
  EXPECT_EQ(named.Load()->fence.term, 1U);
}

TEST_F(CoordinatorLinks, AGangThatWaitsForANameEndsWhenSlurmEndsIt) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  RecordOfAnother(&named);
  Dial(1);
  Register(1, "name=exp:wait");
  ASSERT_TRUE(Take(1, CoordinatorKind::kWaiting));
  SayThatSlurmEndsTheJob(1);
  const auto refused = Take(1, CoordinatorKind::kRefused);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused().text(), HasSubstr("ended before it began"));
  Dial(0);
  Register(0, "name=exp:wait");
  const auto later = Take(0, CoordinatorKind::kRefused);
  ASSERT_TRUE(later) << "a node that comes later";
  EXPECT_EQ(later->refused().text(), refused->refused().text());
}

TEST_F(CoordinatorLinks, AGangThatWaitsForANameEndsWhenAllItsTasksHaveEnded) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  RecordOfAnother(&named);
  Join("name=exp:wait");
  for (const uint32_t node : {0, 1}) ASSERT_TRUE(Take(node, CoordinatorKind::kWaiting));
  EXPECT_EQ(State(), "waiting") << "and the timer of the next look is set";
  for (const uint32_t node : {0, 1}) {
    auto message = Message();
    message.mutable_exited()->set_task(node);
    message.mutable_exited()->set_supervisor_lost(true);
    agents_[node].Send(message);
    if (node == 0) {
      EXPECT_EQ(State(), "waiting") << "a spare may take its place";
    }
  }
  EXPECT_EQ(State(), "waiting");
  clock_.Move(std::chrono::milliseconds(100));
  const auto refused = Take(1, CoordinatorKind::kRefused);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused().text(), HasSubstr("ended before it began"));
  EXPECT_EQ(named.Load()->fence.term, 1U) << "the record of the gang before is as it was";
}

TEST_F(CoordinatorLinks, ACoordinatorThatIsStartedAnewSaysAtOnceThatItsGangWaits) {
  HeadsAreNotRead();
  Dial(1);
  auto registration = Registration(1, "name=exp:wait");
  registration.mutable_register_()->set_waited(true);
  agents_[1].Send(registration);
  const auto waiting = Take(1, CoordinatorKind::kWaiting);
  ASSERT_TRUE(waiting);
  EXPECT_FALSE(waiting->waiting().has_report()) << "nobody has said yet whose the name is";
}

TEST_F(CoordinatorLinks, AGangThatHasWaitedLongAgoIsNotToldToWaitWhenItRuns) {
  HeadsAreNotRead();
  Dial(1);
  auto registration = Registration(1, "name=exp:wait");
  registration.mutable_register_()->set_waited(true);
  registration.mutable_register_()->set_term(3);
  agents_[1].Send(registration);
  EXPECT_EQ(State(), "joining");
  store_->SetFault({});
  auto taken = std::async(std::launch::async, [this] {
    return agents_[1].Take([](const v1::CoordinatorMessage& /*message*/) { return true; });
  });
  while (taken.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready)
    clock_.Move(std::chrono::seconds(1));
  const auto first = taken.get();
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->has_waiting()) << "it would look for no other coordinator";
}

TEST_F(CoordinatorLinks, AGangThatSlurmEndsBeforeItIsKnownWhoseItsNameIsDoesNotWaitForIt) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  RecordOfAnother(&named);
  HeadsAreNotRead();
  Dial(1);
  Register(1, "name=exp:wait");
  SayThatSlurmEndsTheJob(1);
  EXPECT_EQ(State(), "joining");
  store_->SetFault({});
  auto taken = std::async(std::launch::async, [this] { return Take(1, CoordinatorKind::kRefused); });
  while (taken.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready)
    clock_.Move(std::chrono::seconds(1));
  const auto refused = taken.get();
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused().text(), HasSubstr("ended before it began"));
}

TEST_F(CoordinatorLinks, ANodeThatHasGoneWhileItsGangWaitedHasJoined) {
  Catalog named(store_, SpaceOf(1000), "name-exp");
  GangRecord record = RecordOfAnother(&named);
  Join("name=exp:wait");
  for (const uint32_t node : {0, 1}) ASSERT_TRUE(Take(node, CoordinatorKind::kWaiting));
  EXPECT_EQ(State(), "waiting") << "and the timer of the next look is set";
  auto message = Message();
  message.mutable_fabric()->add_texts("said before it went");
  agents_[0].Send(message);
  agents_[0].Close();
  auto head = named.Load();
  ASSERT_TRUE(head);
  record.state = gang::ToString(gang::State::kFinished);
  ASSERT_TRUE(named.Advance(head->fence, head->fence, record.Encode()));
  clock_.Move(std::chrono::seconds(5));
  ASSERT_TRUE(Take(1, CoordinatorKind::KIND_NOT_SET));
  std::string fabric;
  for (const HistoryEvent& event : On([this] { return coordinators_->Find(kGang)->Record().events; })) {
    if (event.kind == "fabric") fabric = event.text;
  }
  EXPECT_EQ(fabric, "node n1: said before it went") << "with the name from its registration";
}

// As of a node that stands still while Slurm runs the job anew elsewhere.
TEST_F(CoordinatorLinks, ACoordinatorWhoseJobWasRequeuedMeanwhileSaysSoAndNotThatAnotherJobHasItsName) {
  Join();
  ExpectStart(1);
  GangRecord record = RecordIn(gang::State::kRunning);
  record.gang = "12.0-r1";
  record.restart_count = 1;
  ASSERT_TRUE(catalog_.TakeOver(record.Encode(), record.IndexEntry()));
  Exited(0, 1, kExitWithSeven);
  // The coordinator may have written that generation 1 runs before the other gang took the record. It writes again when that has stopped.
  for (const uint32_t node : {0, 1}) Stopped(node, 1);
  for (const uint32_t node : {0, 1}) {
    const auto refused = Take(node, CoordinatorKind::kRefused);
    ASSERT_TRUE(refused) << "node " << node;
    EXPECT_TRUE(refused->refused().job_is_over());
    EXPECT_THAT(refused->refused().text(), HasSubstr("the job was requeued; its gang is 12.0-r1 now"));
  }
}

TEST_F(CoordinatorLinks, ALinkWhoseFirstMessageIsNoRegistrationIsClosed) {
  Dial(0);
  Stopped(0, 1);
  EXPECT_TRUE(agents_[0].Closed());
  EXPECT_TRUE(On([this] { return coordinators_->gangs().empty(); }));
}

TEST_F(CoordinatorLinks, ANodeThatIsNotOfTheStepIsRefusedAndTheOthersStart) {
  Dial(0);
  auto stranger = Message();
  stranger.mutable_register_()->set_job_id(12);
  stranger.mutable_register_()->set_uid(1000);
  stranger.mutable_register_()->set_node(0);
  stranger.mutable_register_()->set_node_count(2);
  stranger.mutable_register_()->set_task_count(2);
  stranger.mutable_register_()->set_node_name("n9");
  stranger.mutable_register_()->set_node_list("n[1-2]");
  stranger.mutable_register_()->set_coordinator(1);
  agents_[0].Send(stranger);
  const auto refused = Take(0, CoordinatorKind::kRefused);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->refused().text(), HasSubstr("n9 is not node 0"));
  Join();
  ExpectStart(1);
}

// The others have left, so it will never be in company.
TEST_F(CoordinatorLinks, ANodeThatTheOthersEndedWithoutHearsTheEnd) {
  GangRecord record = RecordIn(gang::State::kFinished);
  record.succeeded = true;
  record.task_count = 3;
  record.nodes = {"n1", kSelf, "n3"};
  record.lost = {1};
  record.witnesses = {0, 1, 2};
  ASSERT_TRUE(catalog_.TakeOver(record.Encode(), record.IndexEntry()));
  auto registration = Registration(1);
  registration.mutable_register_()->set_node_count(3);
  registration.mutable_register_()->set_task_count(3);
  registration.mutable_register_()->set_node_list("n[1-3]");
  registration.mutable_register_()->set_term(1);
  Dial(1);
  agents_[1].Send(registration);
  const auto finish = Take(1, CoordinatorKind::kFinish);
  ASSERT_TRUE(finish);
  EXPECT_TRUE(finish->finish().succeeded());
  registration = Registration(0);
  registration.mutable_register_()->set_node_count(3);
  registration.mutable_register_()->set_task_count(3);
  registration.mutable_register_()->set_node_list("n[1-3]");
  Dial(0);
  agents_[0].Send(registration);
  const auto later = Take(0, CoordinatorKind::kFinish);
  ASSERT_TRUE(later) << "a node that comes later";
  EXPECT_TRUE(later->finish().succeeded());
}

TEST_F(CoordinatorLinks, WhatIsCommittedWhileTheRecordIsTakenOverIsWhatTheGangStartsFrom) {
  const GangRecord record = RecordIn(gang::State::kRunning);
  const auto head = catalog_.TakeOver(record.Encode(), record.IndexEntry());
  ASSERT_TRUE(head);
  std::atomic<bool> looked = false;
  store_->SetFault([&](const std::string& operation, const std::string& /*name*/) {
    // The takeover's look is over, and its swap has not been made.
    if (operation == "update_head" && !looked.exchange(true)) {
      EXPECT_TRUE(catalog_.Commit(SampleManifest(record.key, 7, head->fence, 2), 2));
    }
    return Status();
  });
  Join();
  const auto start = Take(0, CoordinatorKind::kStart);
  ASSERT_TRUE(start);
  EXPECT_TRUE(start->start().restore());
  EXPECT_EQ(start->start().restore_step(), 7U);
}

TEST_F(CoordinatorLinks, AnEndThatIsRecordedWhileTheRecordIsTakenOverIsNotOverwritten) {
  GangRecord record = RecordIn(gang::State::kRunning);
  const auto head = catalog_.TakeOver(record.Encode(), record.IndexEntry());
  ASSERT_TRUE(head);
  record.state = gang::ToString(gang::State::kFinished);
  record.succeeded = true;
  std::atomic<bool> looked = false;
  store_->SetFault([&](const std::string& operation, const std::string& /*name*/) {
    if (operation == "update_head" && !looked.exchange(true)) {
      EXPECT_TRUE(catalog_.Advance(head->fence, head->fence, record.Encode()));
    }
    return Status();
  });
  Join();
  auto finish = std::async(std::launch::async, [this] { return Take(0, CoordinatorKind::kFinish); });
  while (finish.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready)
    clock_.Move(std::chrono::milliseconds(100));
  const auto message = finish.get();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->finish().succeeded());
}

TEST_F(CoordinatorLinks, WhatLinksBringWhileTheDaemonEndsComesToNothing) {
  Join();
  ExpectStart(1);
  loop_.Post([this] {
    loop_.Stop();
    for (const uint32_t node : {0, 1}) Exited(node, 1, kExitWithSeven);
  });
  for (int i = 0; i < 100; ++i) Stopped(0, 1);
}

}  // namespace
}  // namespace muster
