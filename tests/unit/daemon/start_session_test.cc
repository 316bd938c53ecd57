// Starts that contradict the one that runs: what an agent makes of a coordinator's word.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "client/muster.h"
#include "daemon/proto/muster.pb.h"
#include "tests/unit/daemon/beat_rig.h"
#include "tests/unit/daemon/test_member.h"

namespace muster {
namespace {

class StartSession : public BeatRig {
 protected:
  void SetUp() override {
    BeatRig::SetUp();
    if (HasFatalFailure()) return;
    for (uint32_t node = 0; node < kNodes; ++node)
      trainers_.push_back(
          std::make_unique<TestMember>(daemons_[node]->socket(), StepHello(12, node, 3), "127.0.0.[1-3]"));
    ASSERT_TRUE(InTime([&] {
      const auto record = RecordIn(kCoordinator);
      return record && record->state == "starting";
    }));
    Advance(2 * times_.beat);
    for (const auto& trainer : trainers_) trainer->Run();
    ASSERT_TRUE(InTime([&] { return RecordIn(kCoordinator)->state == "running"; }));
  }
  // As the coordinator, of the generation that runs.
  static v1::CoordinatorMessage Start() {
    v1::CoordinatorMessage message;
    message.set_gang("12.0");
    message.set_term(1);
    message.mutable_start()->set_term(1);
    message.mutable_start()->set_generation(1);
    return message;
  }
  // It is not carried out: the agent leaves that link, and finds its coordinator again.
  void ExpectNotTaken(const v1::CoordinatorMessage& message) {
    ASSERT_TRUE(net_->SayToAgent(kCoordinator, kBatch, message.SerializeAsString()));
    ASSERT_TRUE(InTime([&] { return Noted(kCoordinator, "node_back"); }));
    for (const auto& trainer : trainers_) trainer->Save(10, "content");
    for (const auto& trainer : trainers_) trainer->ExpectCommitted();
  }

  std::vector<std::unique_ptr<TestMember>> trainers_;
};

TEST_F(StartSession, OneWithoutThisNodeLeavesItsMembersWhatTheyAre) {
  ExpectNotTaken(Start());
}

TEST_F(StartSession, OneWithOtherRanksLeavesItsMembersWhatTheyAre) {
  v1::CoordinatorMessage message = Start();
  v1::NodeSpec* mine = message.mutable_start()->add_nodes();
  mine->set_node(kBatch);
  mine->add_tasks(0);
  mine->add_ranks(2);
  ExpectNotTaken(message);
}

TEST_F(StartSession, OneOfTasksWithoutRanksIsNotTaken) {
  v1::CoordinatorMessage message = Start();
  message.mutable_start()->set_generation(2);
  v1::NodeSpec* mine = message.mutable_start()->add_nodes();
  mine->set_node(kBatch);
  mine->add_tasks(0);
  ExpectNotTaken(message);
}

}  // namespace
}  // namespace muster
