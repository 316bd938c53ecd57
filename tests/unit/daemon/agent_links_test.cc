// A node's agent as its coordinator sees it, message by message, on joined links and in time that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/worker.h"
#include "daemon/agent/gang_state.h"
#include "daemon/proto/muster.pb.h"
#include "tests/support/door_processes.h"
#include "tests/support/loop_gate.h"
#include "tests/support/virtual_clock.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/daemon/daemon_rig.h"
#include "tests/unit/daemon/link_net.h"
#include "tests/unit/daemon/link_peer.h"
#include "tests/unit/daemon/packet_builder.h"
#include "tests/unit/daemon/packet_socket.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using Kind = v1::AgentMessage::KindCase;
using wire::Type;

constexpr int kExitSeven = 7 << 8;

// The daemon is that of n1, the test is the coordinator on n2.
class AgentLinks : public ::testing::Test {
 protected:
  AgentLinks() {
    listener_ = net_.Listen("n2", [this](std::shared_ptr<Link> link) {
      coordinator_.Opened(std::move(link));
      return coordinator_.Events();
    });
    daemon_ = std::make_unique<TestDaemon>(
        "n1", "127.0.0.1", uint16_t{1}, directory_.path(), EngineOptions(), std::make_shared<MemoryStore>(),
        TestLinks{net_.DialFrom("n1"),
                  [this](AcceptLink accept) { return net_.Listen("n1", std::move(accept)); }},
        std::nullopt, clock_);
  }

  std::optional<v1::AgentMessage> Take(Kind kind) {
    return coordinator_.Take([kind](const v1::AgentMessage& message) { return message.kind_case() == kind; });
  }
  static v1::CoordinatorMessage Message() {
    v1::CoordinatorMessage message;
    message.set_term(1);
    message.set_gang("12.0");
    return message;
  }
  void Join(const std::string& options = "") {
    ASSERT_TRUE(member_.Join(daemon_->socket(), "n[1-2]", options));
  }
  void Start(uint64_t generation, uint64_t term = 1) {
    auto message = Message();
    message.set_term(term);
    v1::Start* start = message.mutable_start();
    start->set_term(term);
    start->set_generation(generation);
    start->set_key("job-12.0");
    for (const uint32_t node : {0, 1}) {
      v1::NodeSpec* spec = start->add_nodes();
      spec->set_name(node == 0 ? "n1" : "n2");
      spec->set_node(node);
      spec->add_ranks(node);
      spec->add_tasks(node);
      spec->set_lease_port(19'500);
    }
    coordinator_.Send(message);
  }

  VirtualClock clock_;
  LinkNet net_;
  TemporaryDirectory directory_;
  LinkPeer<v1::AgentMessage> coordinator_;
  std::shared_ptr<void> listener_;
  std::unique_ptr<TestDaemon> daemon_;
  TestSupervisor member_{StepHello(12, 0, 2)};
};

TEST_F(AgentLinks, ANodeSaysWhatItHasRunsWhatItIsToldAndSaysHowThatEnded) {
  Join();
  const auto registered = Take(Kind::kRegister);
  ASSERT_TRUE(registered);
  EXPECT_EQ(registered->register_().node_name(), "n1");
  EXPECT_EQ(registered->register_().members_size(), 1);
  EXPECT_EQ(registered->register_().coordinator(), 1U);
  Start(1);
  const auto start = member_.Next(Type::kStart);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->environment.at("RANK"), "0");
  member_.Executed(1);
  const auto executed = Take(Kind::kExecuted);
  ASSERT_TRUE(executed);
  EXPECT_EQ(executed->executed().generation(), 1U);
  member_.Exited(1, kExitSeven);
  const auto exited = Take(Kind::kExited);
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->exited().status(), kExitSeven);
  auto stop = Message();
  stop.mutable_stop()->set_generation(1);
  coordinator_.Send(stop);
  ASSERT_TRUE(member_.Next(Type::kStop));
  member_.Stopped(1);
  const auto stopped = Take(Kind::kStopped);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->stopped().generation(), 1U);
}

TEST_F(AgentLinks, WhatStillExitsWhenItsGangHasSucceededEndsWithZero) {
  Join("");
  ASSERT_TRUE(Take(Kind::kRegister));
  Start(1);
  ASSERT_TRUE(member_.Next(Type::kStart));
  member_.Executed(1);
  auto stop = Message();
  stop.mutable_stop()->set_generation(1);
  coordinator_.Send(stop);
  ASSERT_TRUE(member_.Next(Type::kStop));
  member_.Exiting(1);
  ASSERT_TRUE(Take(Kind::kExiting));
  // Another generation has run without this node.
  auto finish = Message();
  finish.mutable_finish()->set_succeeded(true);
  coordinator_.Send(finish);
  const auto finished = member_.Next(Type::kFinish);
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->As<wire::Finish>().as, static_cast<uint32_t>(wire::FinishAs::kZero));
}

TEST_F(AgentLinks, EachOrderToStopIsAnsweredWhileWhatIsLeftExits) {
  Join("");
  ASSERT_TRUE(Take(Kind::kRegister));
  Start(1);
  ASSERT_TRUE(member_.Next(Type::kStart));
  member_.Executed(1);
  auto stop = Message();
  stop.mutable_stop()->set_generation(1);
  coordinator_.Send(stop);
  ASSERT_TRUE(member_.Next(Type::kStop));
  member_.Exiting(1);
  auto exiting = Take(Kind::kExiting);
  ASSERT_TRUE(exiting);
  EXPECT_EQ(exiting->exiting().generation(), 1U);
  // Another generation begins without this node, and is stopped.
  stop.mutable_stop()->set_generation(2);
  coordinator_.Send(stop);
  exiting = Take(Kind::kExiting);
  ASSERT_TRUE(exiting);
  EXPECT_EQ(exiting->exiting().generation(), 2U);
  member_.Stopped(1);
  const auto stopped = Take(Kind::kStopped);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->stopped().generation(), 2U);
}

TEST_F(AgentLinks, AMemberIsStoppedWithTheLastWordsThatTheGangHas) {
  Join("last_words=5:USR1");
  ASSERT_TRUE(Take(Kind::kRegister));
  Start(1);
  ASSERT_TRUE(member_.Next(Type::kStart));
  member_.Executed(1);
  auto stop = Message();
  stop.mutable_stop()->set_generation(1);
  stop.mutable_stop()->set_last_words(true);
  coordinator_.Send(stop);
  auto order = member_.Next(Type::kStop);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->As<wire::Stop>().last_words_ms, 5'000U);
  EXPECT_EQ(order->As<wire::Stop>().signal, static_cast<uint32_t>(SIGUSR1));
  // Again it says nothing new; without last words it ends those.
  coordinator_.Send(stop);
  stop.mutable_stop()->set_last_words(false);
  coordinator_.Send(stop);
  order = member_.Next(Type::kStop);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->As<wire::Stop>().last_words_ms, 0U);
  member_.Stopped(1, 1'234);
  const auto stopped = Take(Kind::kStopped);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->stopped().last_words_ms(), 1'234U);
}

TEST_F(AgentLinks, AProgramThatHasLastWordsIsNotLetInByACoordinatorThatHasTakenOver) {
  Join("last_words=5");
  ASSERT_TRUE(Take(Kind::kRegister));
  Start(1);
  const auto start = member_.Next(Type::kStart);
  ASSERT_TRUE(start);
  auto stop = Message();
  stop.mutable_stop()->set_generation(1);
  stop.mutable_stop()->set_last_words(true);
  coordinator_.Send(stop);
  ASSERT_TRUE(member_.Next(Type::kStop));
  Start(1, 2);
  auto report = Message();
  report.set_term(2);
  report.mutable_report()->set_text("behind the start");
  coordinator_.Send(report);
  ASSERT_TRUE(member_.Next(Type::kReport));
  wire::ClientHello hello{};
  const std::string token = start->environment.at("MUSTER_TOKEN");
  for (size_t i = 0; i < sizeof hello.token; ++i)
    hello.token[i] = static_cast<uint8_t>(std::stoi(token.substr(2 * i, 2), nullptr, 16));
  hello.generation = 1;
  const std::string gang = start->environment.at("MUSTER_GANG");
  hello.gang_bytes = static_cast<uint32_t>(gang.size());
  PacketSocket program(daemon_->socket());
  program.Send(BuildPacket(hello, Type::kClientHello, gang));
  const auto refused = program.Expect<wire::Refused>(static_cast<uint16_t>(Type::kRefused));
  EXPECT_EQ(refused.reason, static_cast<uint32_t>(wire::Refusal::kStaleGeneration)) << program.rest;
}

TEST_F(AgentLinks, WhatComesBehindTheEndOfAGangKeepsNoFileOfIt) {
  Join();
  ASSERT_TRUE(Take(Kind::kRegister));
  Start(1);
  ASSERT_TRUE(member_.Next(Type::kStart));
  member_.Executed(1);
  member_.Exited(1, 0);
  ASSERT_TRUE(Take(Kind::kExited));
  auto finish = Message();
  finish.mutable_finish()->set_succeeded(true);
  coordinator_.Send(finish);
  ASSERT_TRUE(member_.Next(Type::kFinish));
  const std::string file = GangStatePath(directory_.path() + "/n1", "12.0");
  EXPECT_TRUE(std::filesystem::exists(file));
  // Only when the door has all its processes again does one less say that the supervisor's has ended.
  constexpr size_t kWithSupervisor = kDoorWithoutConnections + 1;
  ASSERT_EQ(WaitForDoorProcesses(daemon_->socket(), kWithSupervisor), kWithSupervisor);
  // In one turn the loop sees the second gate and then that the last supervisor has left; what the coordinator says is before
  // what follows from that.
  LoopGate first(daemon_->loop());
  first.Wait();
  LoopGate second(daemon_->loop());
  member_.Leave();
  // The door has handed that on.
  ASSERT_EQ(WaitForDoorProcesses(daemon_->socket(), kDoorWithoutConnections), kDoorWithoutConnections);
  first.Open();
  second.Wait();
  auto failed = Message();
  failed.mutable_committed()->set_generation(1);
  failed.mutable_committed()->set_step(5);
  failed.mutable_committed()->set_error("another member has saved nothing");
  coordinator_.Send(failed);
  second.Open();
  EXPECT_TRUE(coordinator_.Closed());
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(AgentLinks, ALinkThatEndsIsDialledAgainWhenItsTimeHasComeAndNotBefore) {
  Join();
  ASSERT_TRUE(Take(Kind::kRegister));
  for (const milliseconds pause : {milliseconds(50), milliseconds(100), milliseconds(200)}) {
    const int before = coordinator_.opened();
    coordinator_.Close();
    daemon_->On([] {});  // its loop has come to that
    clock_.Move(pause - std::chrono::nanoseconds(1));
    daemon_->On([] {});
    EXPECT_EQ(coordinator_.opened(), before);
    clock_.Move(std::chrono::nanoseconds(1));
    ASSERT_TRUE(coordinator_.WaitOpened(before + 1));
    ASSERT_TRUE(Take(Kind::kRegister));
  }
}

TEST_F(AgentLinks, ACoordinatorThatSaysNothingForTenSecondsIsHungUpOn) {
  Join();
  ASSERT_TRUE(Take(Kind::kRegister));
  clock_.Move(std::chrono::seconds(10) - std::chrono::nanoseconds(1));
  daemon_->On([] {});
  EXPECT_TRUE(coordinator_.open());
  clock_.Move(std::chrono::nanoseconds(1));
  EXPECT_TRUE(coordinator_.Closed());
}

TEST_F(AgentLinks, ACoordinatorThatHasSaidSomethingIsKept) {
  Join();
  ASSERT_TRUE(Take(Kind::kRegister));
  coordinator_.Send(Message());
  daemon_->On([] {});
  clock_.Move(std::chrono::seconds(30));
  daemon_->On([] {});
  daemon_->On([] {});
  EXPECT_TRUE(coordinator_.open());
  EXPECT_EQ(coordinator_.opened(), 1);
}

}  // namespace
}  // namespace muster
