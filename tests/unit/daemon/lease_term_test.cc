// Who coordinates: how the next one takes over, and what is obeyed of the one before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "daemon/proto/muster.pb.h"
#include "tests/support/virtual_clock.h"
#include "tests/unit/daemon/beat_rig.h"

namespace muster {
namespace {

class LeaseTerm : public BeatRig {
 protected:
  static constexpr char kNodeList[] = "127.0.0.[1-3]";
  static std::string StopOf(uint64_t term, uint64_t generation) {
    v1::CoordinatorMessage message;
    message.set_gang("12.0");
    message.set_term(term);
    message.mutable_stop()->set_generation(generation);
    return message.SerializeAsString();
  }
  // The coordinator's musterd ends, and the next node has the second term.
  void Succeed() {
    EndDaemon(kCoordinator);
    AdvanceUntil("the next node takes over", 3 * times_.reconnect / 4,
                 [&] { return RecordIn(kSuccessor).has_value(); });
    ASSERT_TRUE(InTime([&] { return Follow({kBatch, kSuccessor}, 2); }));
  }
  // These have heard of the successor, and it acknowledges them.
  bool Follow(const std::vector<uint32_t>& nodes, uint64_t term) {
    const auto record = RecordIn(kSuccessor);
    return record && record->term == term && std::all_of(nodes.begin(), nodes.end(), [&](uint32_t node) {
             const KnownCoordinator known = KnownIn(node);
             return known.node == kSuccessor && known.term == term && known.heard;
           });
  }

  // A node is lost, the others go on as the second generation, and the second term has witnesses that live.
  void LoseAWitness() {
    RunFirst();
    CutOff(kSuccessor);
    AdvanceUntil("the node is lost", 2 * times_.silence, [&] { return Lost(kSuccessor); });
    ExpectStopAndStop(1, {kBatch, kCoordinator});
    ExpectStart(2, {kBatch, kCoordinator});
    ASSERT_TRUE(InTime([&] { return WitnessesOf(2) == std::vector<uint32_t>{kCoordinator, kBatch}; }));
  }
  // As the coordinator's record has them, if that is of this term.
  std::vector<uint32_t> WitnessesOf(uint64_t term) {
    const auto record = RecordIn(kCoordinator);
    return record && record->term == term ? record->witnesses : std::vector<uint32_t>();
  }

  AheadClock clock_;
};

TEST_F(LeaseTerm, WhenTheCoordinatorDiesTheNextTakesItsTermAndMembersRunOn) {
  RunFirst();
  Succeed();
  EXPECT_EQ(InStore().fence.term, 2U);
  EXPECT_EQ(GangRecord::Decode(InStore().record)->coordinator, BeatNet::HostOf(kSuccessor));
  StartDaemon(kCoordinator);
  ASSERT_TRUE(
      members_[kCoordinator].Rejoin(daemons_[kCoordinator]->socket(), wire::MemberState::kRunning, 1));
  ASSERT_TRUE(InTime([&] {
    return Follow({kBatch, kCoordinator, kSuccessor}, 2) && RecordIn(kSuccessor)->state == "running";
  }));
  Advance(times_.reconnect + 2 * times_.silence);
  EXPECT_TRUE(Follow({kBatch, kCoordinator, kSuccessor}, 2));
  for (uint32_t node = 0; node < kNodes; ++node) EXPECT_FALSE(HasStop(node)) << "node " << node;
}

TEST_F(LeaseTerm, WhoFindsThatTheRecordHasAnotherTermDoesNotTakeIt) {
  RunFirst();
  EndDaemon(kCoordinator);
  // Another was faster, and has ended before it said so.
  auto record = *GangRecord::Decode(InStore().record);
  record.term = 2;
  record.coordinator = BeatNet::HostOf(kCoordinator);
  ASSERT_TRUE(Catalog(store_, SpaceOf(1000), "job-12.0").Advance({1, 1}, {2, 1}, record.Encode()));
  AdvanceUntil("the next node tries to take over", times_.reconnect / 2,
               [&] { return RecordIn(kSuccessor).has_value(); });
  ASSERT_TRUE(Eventually([&] { return KnownIn(kSuccessor).term > 1; }));
  EXPECT_EQ(KnownIn(kSuccessor).node, kCoordinator);
  EXPECT_EQ(InStore().fence.term, 2U);
  EXPECT_FALSE(HasStop(kSuccessor));
}

TEST_F(LeaseTerm, ACoordinatorWithoutAMajorityCallsNobodySilentAndStepsDown) {
  RunFirst();
  CutOff(kCoordinator);
  AdvanceUntil("the next node takes over", times_.reconnect / 2,
               [&] { return RecordIn(kSuccessor).has_value(); });
  ASSERT_TRUE(InTime([&] { return Follow({kBatch, kSuccessor}, 2); }));
  AdvanceUntil("the old coordinator's node is lost", times_.reconnect / 2, [&] {
    const bool lost = Lost(kCoordinator, kSuccessor);
    EXPECT_TRUE(!lost || HasStop(kCoordinator)) << "it is lost before its members are killed";
    return lost;
  });
  if (const auto old = RecordIn(kCoordinator)) {
    EXPECT_TRUE(old->lost.empty());
    EXPECT_EQ(old->generation, 1U);
  }
  ExpectStopAndStop(1, {kBatch, kCoordinator, kSuccessor});
  ExpectStart(2, {kBatch, kSuccessor});
  MendAll(kCoordinator);
  ASSERT_TRUE(
      InTime([&] { return KnownIn(kCoordinator).node == kSuccessor && KnownIn(kCoordinator).heard; }));
  EXPECT_FALSE(HasStart(kCoordinator));
  EXPECT_TRUE(Eventually([&] { return !RecordIn(kCoordinator); }))
      << "it still takes itself for the coordinator";
}

// As in a pool that is full: heads can be read, and what is to be written is tried again for as long as it takes.
TEST_F(LeaseTerm, ACoordinatorWhoseRecordIsNotTakenStepsDownAllTheSame) {
  RunFirst();
  store_->SetFault([test = std::this_thread::get_id()](const std::string& operation,
                                                       const std::string& name) {
    const bool full = operation == "update_head" && name.starts_with("gang/");
    return full && std::this_thread::get_id() != test ? Status(Error{Errc::kExhausted, "the pool is full"})
                                                      : Status();
  });
  members_[kBatch].Exited(1, SIGKILL);
  ExpectStopAndStop(1, {kBatch, kCoordinator, kSuccessor});
  ExpectStart(2);
  ASSERT_EQ(InStore().fence.generation, 1U) << "the record of the second generation waits";
  // Another has the term meanwhile.
  auto record = *GangRecord::Decode(InStore().record);
  record.term = 2;
  record.coordinator = BeatNet::HostOf(kSuccessor);
  ASSERT_TRUE(Catalog(store_, SpaceOf(1000), "job-12.0").Advance({1, 1}, {2, 1}, record.Encode()));
  // Without its witnesses it asks the store.
  net_->SetFilter([](uint32_t from, uint32_t to, lease::Type /*type*/) { return from == to; });
  Advance(times_.lease);
  EXPECT_TRUE(Eventually([&] { return KnownIn(kCoordinator).node == kSuccessor; }))
      << "its own node still follows it";
  // What is left to be written is nobody's any more: this node may be asked to take over again.
  EXPECT_TRUE(Eventually([&] { return !RecordIn(kCoordinator); }))
      << "it still takes itself for the coordinator";
}

TEST_F(LeaseTerm, ACoordinatorOfAnOlderTermIsNotObeyed) {
  RunFirst();
  Succeed();
  ASSERT_TRUE(net_->SayToAgent(kSuccessor, kBatch, StopOf(1, 1)));
  Settle();
  EXPECT_FALSE(HasStop(kBatch));
  ASSERT_TRUE(net_->SayToAgent(kSuccessor, kBatch, StopOf(2, 1)));
  Settle();
  EXPECT_TRUE(HasStop(kBatch)) << "the newest is";
}

// The one before may have ordered what the record does not say.
TEST_F(LeaseTerm, AStopOfAnOlderTermBindsNoMore) {
  RunFirst();
  for (const uint32_t node : {kBatch, kSuccessor})
    ASSERT_TRUE(net_->SayToAgent(kCoordinator, node, StopOf(1, 5)));
  ExpectStopAndStop(1, {kBatch, kSuccessor});
  Settle();
  EndDaemon(kCoordinator);
  AdvanceUntil("the next node takes over", times_.reconnect / 2,
               [&] { return RecordIn(kSuccessor).has_value(); });
  ASSERT_TRUE(InTime([&] { return KnownIn(kBatch).term == 2 && KnownIn(kBatch).heard; }));
  StartDaemon(kCoordinator);
  ASSERT_TRUE(
      members_[kCoordinator].Rejoin(daemons_[kCoordinator]->socket(), wire::MemberState::kRunning, 1));
  ASSERT_TRUE(InTime([&] { return HasStop(kCoordinator); }));
  ExpectStopAndStop(1, {kCoordinator});
  ExpectStart(2);
}

// musterd is restarted while its coordinator is dead. It has the gang's key, and its members run without a lease until the successor
// knows of them.
TEST_F(LeaseTerm, AMusterdThatIsBackHearsTheSuccessorThoughItsAgentDialsADeadHost) {
  RunFirst();
  HoldRecord();
  CutOff(kCoordinator);
  AdvanceUntil("the successor asks for the record", times_.reconnect / 2, [&] { return RecordWaits(); });
  EndDaemon(kBatch);
  clock_.Stop();
  StartDaemon(kBatch, clock_);
  ASSERT_TRUE(members_[kBatch].Rejoin(daemons_[kBatch]->socket(), wire::MemberState::kRunning, 1));
  ReleaseRecord();
  EXPECT_TRUE(InTime([&] { return Follow({kBatch, kSuccessor}, 2); }));
  EXPECT_FALSE(HasStop(kBatch));
}

// The node's agent dials a host that does not answer, and would do so for longer than a coordinator waits for a node.
TEST_F(LeaseTerm, ANodeThatIsAskedToCoordinateFollowsItselfThoughItsAgentDialsAnotherHost) {
  EndDaemon(kSuccessor);
  clock_.Stop();
  StartDaemon(kSuccessor, clock_);
  CutOff(kCoordinator);
  ASSERT_TRUE(members_[kSuccessor].Join(daemons_[kSuccessor]->socket(), kNodeList, "min=2,join=1h"));
  ASSERT_TRUE(Eventually([&] {
    return daemons_[kSuccessor]->On([&] { return daemons_[kSuccessor]->agent().Find("12.0") != nullptr; });
  }));
  EXPECT_EQ(KnownIn(kSuccessor).node, kCoordinator);
  const GangJob job =
      daemons_[kSuccessor]->On([&] { return daemons_[kSuccessor]->agent().Find("12.0")->job(); });
  v1::AgentMessage asks;
  asks.set_gang("12.0");
  v1::Register* r = asks.mutable_register_();
  r->set_job_id(job.job_id);
  r->set_step_id(job.step_id);
  r->set_submission(job.submission);
  r->set_uid(job.uid);
  r->set_gid(job.gid);
  r->set_node(kBatch);
  r->set_node_name(job.hosts[kBatch]);
  r->set_node_list(job.node_list);
  r->set_task_count(job.task_count);
  r->set_options(job.options_text);
  r->set_coordinator(kSuccessor);
  const auto link = net_->DialFrom(kBatch)(job.hosts[kSuccessor],
                                           fmt::format("{}:{}", job.hosts[kSuccessor], port_->port()),
                                           {[](const std::string&) {}, [](const std::string&) {}},
                                           [](const std::function<void()>& work) { work(); });
  link->Send(asks.SerializeAsString());
  EXPECT_TRUE(
      Eventually([&] { return KnownIn(kSuccessor).node == kSuccessor && KnownIn(kSuccessor).term == 1; }));
}

TEST_F(LeaseTerm, TheSetOfWitnessesFollowsALossAndAReturnAndTheOthersKeepTheirLinks) {
  LoseAWitness();
  // The beats tell of the third term first.
  net_->HoldLinks(kCoordinator, kBatch);
  MendAll(kSuccessor);
  ASSERT_TRUE(InTime([&] { return KnownIn(kBatch).term == 3; }));
  EXPECT_EQ(WitnessesOf(3), (std::vector<uint32_t>{kCoordinator, kSuccessor, kBatch}));
  EXPECT_TRUE(KnownIn(kBatch).heard);
  net_->ReleaseLinks(kCoordinator, kBatch);
  Advance(2 * times_.silence);
  for (const uint32_t node : {kBatch, kCoordinator}) {
    EXPECT_EQ(KnownIn(node).term, 3U);
    EXPECT_TRUE(KnownIn(node).heard);
    EXPECT_FALSE(HasStop(node)) << "node " << node;
  }
  const auto record = RecordIn(kCoordinator);
  for (const HistoryEvent& event : record->events) {
    EXPECT_FALSE(event.kind == "node_back" && event.text.find(BeatNet::HostOf(kBatch)) != std::string::npos)
        << event.text;
  }
}

TEST_F(LeaseTerm, TwoOfThreeWitnessesMayBeLostOneAfterTheOther) {
  LoseAWitness();
  Advance(2 * times_.beat);
  // A host that dies: nothing is heard of it, nor does it ask the store.
  CutOff(kBatch);
  EndDaemon(kBatch);
  ASSERT_TRUE(InTime([&] { return Lost(kBatch); }));
}

TEST_F(LeaseTerm, ASuccessWaitsForItsRecordWhileTheTermIsRaised) {
  LoseAWitness();
  Advance(2 * times_.beat);
  HoldRecord();
  MendAll(kSuccessor);
  ASSERT_TRUE(InTime([&] { return RecordWaits() && KnownIn(kSuccessor).heard; }));
  Advance(2 * times_.beat);
  for (const uint32_t node : {kBatch, kCoordinator}) members_[node].Exited(2, 0);
  ASSERT_TRUE(Eventually([&] { return RecordIn(kCoordinator)->state == "finished"; }));
  for (const uint32_t node : {kBatch, kCoordinator})
    EXPECT_FALSE(members_[node].Has(wire::Type::kFinish)) << "node " << node;
  ReleaseRecord();
  for (const uint32_t node : {kBatch, kCoordinator})
    ASSERT_TRUE(Eventually([&] { return members_[node].Has(wire::Type::kFinish); })) << "node " << node;
  EXPECT_EQ(GangRecord::Decode(InStore().record)->state, "finished");
  EXPECT_EQ(InStore().fence.term, 3U);
}

}  // namespace
}  // namespace muster
