// A gang's second copies and parity on several nodes, from generation to generation: real sockets, a real munged.
#include "daemon/partner/gang_partner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <optional>
#include <thread>

#include "tests/unit/daemon/partner_peers.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kBytes = 6 * kTestChunk;

std::string Address(size_t node) {
  return "127.0.0." + std::to_string(node + 1);
}

class GangPartnerTest : public PartnerPeers {
 protected:
  struct Node {
    std::unique_ptr<PartnerTier> tier;
    std::unique_ptr<GangPartner> gang;  // before its tier
    std::vector<std::shared_ptr<StagedMemory>> memories;
    std::string content;
  };

  // `groups`: the configuration of each node.
  void Start(const std::vector<int64_t>& groups) {
    for (int attempt = 0; nodes_.size() < groups.size() && attempt < 50; ++attempt) {
      nodes_.clear();
      uint16_t port = 0;
      for (size_t i = 0; i < groups.size(); ++i) {
        Config config;
        config.listen_address = Address(i);
        config.partner_port = port != 0 ? port : 23'000 + ::getpid() % 7'000 + 7 * attempt;
        config.partner_group = groups[i];
        auto tier = PartnerTier::Start(config, Address(i), ::geteuid(),
                                       std::make_shared<TopologyFile>(config.slurm_topology));
        if (!tier) break;  // another process has the port there
        port = (*tier)->port();
        nodes_.push_back({*std::move(tier), nullptr, {}, ""});
        nodes_.back().gang = std::make_unique<GangPartner>(*nodes_.back().tier, "g");
      }
    }
    ASSERT_EQ(nodes_.size(), groups.size());
  }
  // On these nodes, one rank each in this order.
  void Begin(uint64_t generation, const std::vector<size_t>& places, uint64_t restore_generation = 0,
             uint64_t restore_step = 0) {
    running_ = places;
    generation_ = generation;
    Roster roster;
    for (uint32_t rank = 0; rank < places.size(); ++rank)
      roster.nodes.push_back({Address(places[rank]), true, {rank}});
    for (const size_t place : places)
      nodes_[place].gang->Begin(generation, roster, Address(place), restore_generation, restore_step);
  }
  void Commit(uint64_t step) {
    for (uint32_t rank = 0; rank < running_.size(); ++rank) {
      Node& node = nodes_[running_[rank]];
      node.content = Content(kBytes, static_cast<int>(10 * step + rank));
      node.memories.push_back(Staged(node.content));
      Tell(rank, step, node.content, node.memories.back());
    }
  }
  void Tell(uint32_t rank, uint64_t step, const std::string& content, std::shared_ptr<StagedMemory> memory) {
    nodes_[running_[rank]].gang->Committed(generation_, step,
                                           {{generation_, step, ShardOf(rank, content), std::move(memory)}});
  }
  [[nodiscard]] bool HasParity(size_t node, uint64_t generation, uint64_t step, uint32_t rank) const {
    const ParityOf parity = nodes_[node].tier->stock().parity->Find({"g", generation, step, rank});
    return parity.shard && ChunkRuns(parity.rows, false).empty();
  }
  [[nodiscard]] bool AllHaveParity(uint64_t step) const {
    for (size_t i = 0; i < running_.size(); ++i) {
      for (uint32_t rank = 0; rank < running_.size(); ++rank) {
        if (rank != i && !HasParity(running_[i], generation_, step, rank)) return false;
      }
    }
    return true;
  }
  // As a node that runs now gets it; nothing: it is not known from whom.
  std::optional<Result<FetchedCopy>> Fetch(size_t node, uint32_t rank, uint64_t generation, uint64_t step,
                                           uint32_t savers) {
    std::promise<Result<FetchedCopy>> promise;
    const bool known = nodes_[node].gang->Fetch(
        rank, generation, step, savers, [&promise, this](const std::string& from, Result<FetchedCopy> copy) {
          from_ = from;
          promise.set_value(std::move(copy));
        });
    if (!known) return std::nullopt;
    return promise.get_future().get();
  }

  std::vector<Node> nodes_;
  std::vector<size_t> running_;
  uint64_t generation_ = 0;
  std::string from_;
};

TEST_F(GangPartnerTest, ASpareGetsALostNodesShardOutOfParity) {
  Start({3, 3, 3, 3});
  nodes_[3].gang->Begin(
      1,
      {{{Address(0), true, {0}}, {Address(1), true, {1}}, {Address(2), true, {2}}, {Address(3), false, {3}}}},
      Address(3), 0, 0);
  Begin(1, {0, 1, 2});
  Commit(5);
  ASSERT_TRUE(Eventually([&] { return AllHaveParity(5); }));
  const std::string content = nodes_[1].content;
  nodes_[1].gang.reset();
  nodes_[1].tier.reset();
  Begin(2, {0, 3, 2}, 1, 5);
  const auto copy = Fetch(3, 1, 1, 5, 3);
  ASSERT_TRUE(copy);
  ASSERT_TRUE(*copy) << copy->error().message;
  EXPECT_EQ((*copy)->problem, "");
  EXPECT_TRUE(Read((*copy)->memory, kBytes) == content);
  EXPECT_EQ(from_, "127.0.0.1, 127.0.0.3");
}

TEST_F(GangPartnerTest, AnOlderStepThatIsToldAgainChangesNothing) {
  for (const int64_t group : {0, 3}) {
    Start({group, group, group});
    Begin(1, {0, 1, 2});
    Commit(1);
    Commit(2);
    const std::string old = Content(kBytes, 77);
    const auto memory = Staged(old);
    for (uint32_t rank = 0; rank < 3; ++rank) Tell(rank, 1, old, memory);
    ASSERT_TRUE(Eventually([&] {
      if (group != 0) return AllHaveParity(2);
      const ShardCopy copy = nodes_[1].tier->stock().copies->Find({"g", 1, 2, 0});
      return copy.shard && ChunkRuns(copy.chunks, false).empty();
    }));
    const auto copy = Fetch(2, 0, 1, 2, 3);
    ASSERT_TRUE(copy);
    ASSERT_TRUE(*copy) << copy->error().message;
    EXPECT_TRUE(Read((*copy)->memory, kBytes) == nodes_[0].content);
    nodes_.clear();
  }
}

TEST_F(GangPartnerTest, AGangThatIsTooSmallForAGroupKeepsCopiesAndItsParityGoes) {
  Start({3, 3, 3});
  Begin(1, {0, 1, 2});
  Commit(5);
  ASSERT_TRUE(Eventually([&] { return AllHaveParity(5); }));
  Begin(2, {0, 1}, 1, 5);
  EXPECT_TRUE(HasParity(0, 1, 5, 2));  // who still restores from it
  Commit(6);
  ASSERT_TRUE(Eventually([&] {
    const ShardCopy copy = nodes_[0].tier->stock().copies->Find({"g", 2, 6, 1});
    return copy.shard && ChunkRuns(copy.chunks, false).empty();
  }));
  EXPECT_FALSE(HasParity(0, 1, 5, 2));
  EXPECT_TRUE(Eventually([&] { return nodes_[0].tier->stock().copies->bytes() == kBytes; }));
  // And back.
  Begin(3, {0, 1, 2}, 2, 6);
  Commit(7);
  ASSERT_TRUE(Eventually([&] { return AllHaveParity(7); }));
  EXPECT_TRUE(Eventually([&] { return nodes_[0].tier->stock().copies->bytes() == kBytes / 2; }));
}

TEST_F(GangPartnerTest, NodesOfAnotherMindAboutGroupsGiveNothingWrong) {
  Start({3, 0, 3});
  Begin(1, {0, 1, 2});
  Commit(5);
  // Node 1 keeps copies, of the rank half of the roster further: nobody looks for parity there.
  ASSERT_TRUE(Eventually([&] {
    return nodes_[2].tier->stock().copies->Find({"g", 1, 5, 1}).shard != nullptr ||
           nodes_[0].tier->stock().copies->bytes() == 0;
  }));
  for (size_t node = 0; node < 3; ++node) {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == node) continue;
      const auto copy = Fetch(node, rank, 1, 5, 3);
      ASSERT_TRUE(copy);
      if (*copy) {
        EXPECT_TRUE(Read((*copy)->memory, kBytes) == nodes_[rank].content);
      }
    }
  }
}

TEST_F(GangPartnerTest, AGenerationThatEndsInTheMiddleOfABuildIsLeft) {
  Start({3, 3, 3});
  Begin(1, {0, 1, 2});
  // Node 2 does not hear of it.
  for (uint32_t rank = 0; rank < 2; ++rank) {
    nodes_[rank].content = Content(kBytes, 1);
    nodes_[rank].memories.push_back(Staged(nodes_[rank].content));
    Tell(rank, 5, nodes_[rank].content, nodes_[rank].memories.back());
  }
  const auto begun = std::chrono::steady_clock::now();
  Begin(2, {0, 1, 2});
  Commit(6);
  ASSERT_TRUE(Eventually([&] { return AllHaveParity(6); }));
  nodes_.clear();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(8));  // a builder asks for 10
}

}  // namespace
}  // namespace muster
