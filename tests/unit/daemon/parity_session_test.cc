// Parity of a group's shards: every node of it a server on the loopback, real sockets, a real munged, and nodes that die,
// differ or have been written over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "daemon/beat/address.h"
#include "daemon/partner/group_fetch.h"
#include "daemon/partner/parity_builder.h"
#include "daemon/partner/partner_server.h"
#include "tests/unit/daemon/partner_peers.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kChunk = kTestChunk;
constexpr uint64_t kLimit = 64 << 20;
constexpr uint64_t kStep = 10;

std::string Address(size_t node) {
  return "127.0.0." + std::to_string(node + 1);
}

// One node: two ranks each, 2 i and 2 i + 1.
struct Node {
  PartnerStock stock = MakeStock(kLimit);
  std::unique_ptr<PartnerServer> server;
  std::unique_ptr<ParityBuilder> builder;
  std::vector<std::string> contents;
  std::vector<std::shared_ptr<StagedMemory>> memories;
};

class ParitySession : public PartnerPeers {
 protected:
  // All listen on one port, each on its own address.
  void Start(size_t count) {
    for (int attempt = 0; nodes_.size() < count && attempt < 50; ++attempt) {
      nodes_.clear();
      port_ = 0;
      for (size_t i = 0; i < count; ++i) {
        Node node;
        auto server = PartnerServer::Start({Address(i), port_, Address(i), ::geteuid()}, node.stock);
        if (!server) break;  // another process has the port there
        node.server = *std::move(server);
        port_ = node.server->port();
        nodes_.push_back(std::move(node));
      }
    }
    ASSERT_EQ(nodes_.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(nodes_[i].stock.parity->Begin("g", 1, 0, 0).empty());
      nodes_[i].builder = std::make_unique<ParityBuilder>("g", Group(i), port_, kLimit,
                                                          nodes_[i].stock.parity, std::make_shared<Cancel>());
    }
  }
  [[nodiscard]] ParityGroup Group(size_t self) const {
    ParityGroup group;
    for (uint32_t i = 0; i < nodes_.size(); ++i) group.nodes.push_back({Address(i), {2 * i, 2 * i + 1}});
    group.self = self;
    return group;
  }

  // The members of a node have saved these.
  void Save(size_t node, std::vector<std::string> contents, uint64_t step = kStep) {
    Node& at = nodes_[node];
    at.contents = std::move(contents);
    at.memories.clear();
    std::vector<CommittedShard> shards;
    for (size_t i = 0; i < at.contents.size(); ++i) {
      at.memories.push_back(Staged(at.contents[i]));
      shards.push_back(
          {1, step, ShardOf(static_cast<uint32_t>(2 * node + i), at.contents[i]), at.memories[i]});
    }
    at.stock.own->Committed("g", shards);
  }
  void SaveAll(uint64_t bytes, uint64_t step = kStep) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const int seed = static_cast<int>(100 * step + 2 * i);
      Save(i, {Content(bytes, seed), Content(bytes, seed + 1)}, step);
    }
  }
  void BuildAll(uint64_t step = kStep) {
    for (Node& node : nodes_) {
      if (node.builder) node.builder->Build(1, step);
    }
  }
  [[nodiscard]] bool Has(size_t node, uint32_t rank, uint64_t step) const {
    const ParityOf parity = nodes_[node].stock.parity->Find({"g", 1, step, rank});
    return parity.shard && std::all_of(parity.rows.begin(), parity.rows.end(),
                                       [](const auto& row) { return row != nullptr; });
  }
  // Every node has its parity of all the others' shards.
  [[nodiscard]] bool AllBuilt(uint64_t step = kStep) const {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      for (uint32_t rank = 0; rank < 2 * nodes_.size(); ++rank) {
        if (rank / 2 != node && !Has(node, rank, step)) return false;
      }
    }
    return true;
  }
  void Kill(size_t node) {
    nodes_[node].builder.reset();
    nodes_[node].server.reset();
    nodes_[node].memories.clear();
  }
  [[nodiscard]] Result<FetchedCopy> Fetch(uint32_t rank, uint64_t step = kStep) const {
    return FetchFromGroup(Group(rank / 2), port_, {"g", 1, step, rank}, kLimit, std::make_shared<Cancel>());
  }
  void ExpectAgain(uint32_t rank, uint64_t step = kStep) const {
    const auto copy = Fetch(rank, step);
    ASSERT_TRUE(copy) << copy.error().message;
    EXPECT_EQ(copy->problem, "");
    ASSERT_TRUE(copy->Whole());
    const std::string& content = nodes_[rank / 2].contents[rank % 2];
    EXPECT_TRUE(Read(copy->memory, content.size()) == content) << "rank " << rank;
    EXPECT_EQ(::fcntl(copy->memory.get(), F_GET_SEALS) & F_SEAL_WRITE, F_SEAL_WRITE);
  }

  std::vector<Node> nodes_;
  uint16_t port_ = 0;
};

TEST_F(ParitySession, ALostNodesShardsAreMadeAgain) {
  for (const size_t count : {3U, 5U}) {
    Start(count);
    SaveAll(7 * kChunk + 17);
    BuildAll();
    ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
    Kill(1);
    ExpectAgain(2);
    ExpectAgain(3);
    nodes_.clear();
  }
}

TEST_F(ParitySession, TheMemoryIsOnePartOfAShardForEach) {
  Start(4);
  SaveAll(30 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  for (const Node& node : nodes_) EXPECT_EQ(node.stock.copies->bytes(), 2 * 10 * kChunk);
}

TEST_F(ParitySession, ShardsOfDifferentSizesShareRows) {
  Start(3);
  Save(0, {Content(5 * kChunk, 1), Content(1, 2)});
  Save(1, {Content(1, 3), Content(9 * kChunk + 5, 4)});
  Save(2, {Content(4 * kChunk - 1, 5), Content(3 * kChunk, 6)});
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  for (uint32_t rank = 0; rank < 6; ++rank) ExpectAgain(rank);  // whoever it is that dies
}

TEST_F(ParitySession, ANodeWithFewerMembersHasFewerSlots) {
  Start(3);
  Save(0, {Content(5 * kChunk, 1), Content(6 * kChunk, 2)});
  Save(1, {Content(5 * kChunk, 3)});
  Save(2, {Content(5 * kChunk, 4), Content(6 * kChunk, 5)});
  ParityGroup group = Group(0);
  group.nodes[1].ranks = {2};
  for (size_t i = 0; i < 3; ++i) {
    group.self = i;
    nodes_[i].builder = std::make_unique<ParityBuilder>("g", group, port_, kLimit, nodes_[i].stock.parity,
                                                        std::make_shared<Cancel>());
  }
  BuildAll();
  ASSERT_TRUE(Eventually(
      [&] { return Has(1, 1, kStep) && Has(2, 1, kStep) && Has(0, 5, kStep) && Has(1, 5, kStep); }));
  group.self = 2;
  const auto copy = FetchFromGroup(group, port_, {"g", 1, kStep, 5}, kLimit, std::make_shared<Cancel>());
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_EQ(copy->problem, "");
  EXPECT_TRUE(Read(copy->memory, 6 * kChunk) == nodes_[2].contents[1]);
}

TEST_F(ParitySession, TheNextCheckpointMakesTheRowsThatHaveChanged) {
  Start(3);
  SaveAll(8 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  const CopyChunks before = nodes_[0].stock.parity->Find({"g", 1, kStep, 2}).rows;
  ASSERT_EQ(before.size(), 4U);
  for (size_t node = 0; node < 3; ++node) {
    std::vector<std::string> contents = nodes_[node].contents;
    // Node 1's part at node 0 is the second one of its shard.
    if (node == 1) contents[0][6 * kChunk] ^= 1;
    Save(node, contents, kStep + 1);
  }
  BuildAll(kStep + 1);
  ASSERT_TRUE(Eventually([&] { return AllBuilt(kStep + 1); }));
  const CopyChunks after = nodes_[0].stock.parity->Find({"g", 1, kStep + 1, 2}).rows;
  ASSERT_EQ(after.size(), 4U);
  for (const size_t row : {0U, 1U, 3U}) EXPECT_EQ(after[row], before[row]);
  EXPECT_NE(after[2], before[2]);
  EXPECT_FALSE(nodes_[0].stock.parity->Find({"g", 1, kStep, 2}).shard);
  for (uint32_t rank = 0; rank < 6; ++rank) ExpectAgain(rank, kStep + 1);
}

TEST_F(ParitySession, ANodeThatHearsOfTheCommitLaterIsWaitedFor) {
  Start(3);
  Save(0, {Content(3 * kChunk, 1), Content(3 * kChunk, 2)});
  Save(1, {Content(3 * kChunk, 3), Content(3 * kChunk, 4)});
  BuildAll();
  std::this_thread::sleep_for(milliseconds(150));
  Save(2, {Content(3 * kChunk, 5), Content(3 * kChunk, 6)});
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  ExpectAgain(4);
}

TEST_F(ParitySession, WhatAProgramHasWrittenOverIsInNoParityAndTheNextIs) {
  Start(3);
  SaveAll(4 * kChunk);
  const char other = static_cast<char>(nodes_[1].contents[0][0] ^ 1);
  ASSERT_EQ(::pwrite(nodes_[1].memories[0]->fd(), &other, 1, 0), 1);
  BuildAll();
  // The part of rank 2 that begins with its first chunk is at node 2.
  ASSERT_TRUE(Eventually([&] { return Has(0, 2, kStep) && Has(1, 0, kStep) && Has(1, 4, kStep); }));
  EXPECT_FALSE(Has(2, 2, kStep));
  SaveAll(4 * kChunk, kStep + 1);
  BuildAll(kStep + 1);
  ASSERT_TRUE(Eventually([&] { return AllBuilt(kStep + 1); }));
  for (uint32_t rank = 0; rank < 6; ++rank) ExpectAgain(rank, kStep + 1);
}

TEST_F(ParitySession, WithTwoLostThePartsNeedBothAndNothingComes) {
  Start(4);
  SaveAll(9 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  Kill(1);
  Kill(2);
  const auto copy = Fetch(2);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().code, Errc::kUnavailable);
  EXPECT_THAT(copy.error().message, HasSubstr("127.0.0.3"));
}

// A survivor whose memory was written over after the parity was made: the parts that are made without it are good.
TEST_F(ParitySession, ASurvivorsDamageCostsThePartsThatNeedIt) {
  Start(3);
  SaveAll(6 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  Kill(1);
  // Every chunk of node 2's first member.
  for (off_t chunk = 0; chunk < 6; ++chunk) {
    const char other = static_cast<char>(nodes_[2].contents[0][chunk * kChunk] ^ 1);
    ASSERT_EQ(::pwrite(nodes_[2].memories[0]->fd(), &other, 1, chunk * static_cast<off_t>(kChunk)), 1);
  }
  const auto copy = Fetch(2);
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_NE(copy->problem, "");
  // Node 2 has the first part; node 0's would need node 2's shard.
  EXPECT_EQ(copy->have, (std::vector<bool>{true, true, true, false, false, false}));
  EXPECT_TRUE(Read(copy->memory, 3 * kChunk) == nodes_[1].contents[0].substr(0, 3 * kChunk));
  ExpectAgain(3);
}

TEST_F(ParitySession, DamagedParityIsFoundByTheDigest) {
  Start(3);
  SaveAll(6 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  const ParityOf parity = nodes_[2].stock.parity->Find({"g", 1, kStep, 2});
  std::byte byte{};
  ASSERT_TRUE(parity.rows[1]->Read(7, {&byte, 1}));
  byte ^= std::byte{1};
  ASSERT_EQ(::pwrite(parity.rows[1]->fd(), &byte, 1, static_cast<off_t>(parity.rows[1]->at() + 7)), 1);
  const auto copy = Fetch(2);
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_THAT(copy->problem, HasSubstr("damaged"));
  EXPECT_EQ(copy->have, (std::vector<bool>{true, false, true, true, true, true}));
}

TEST_F(ParitySession, WhoCountsOtherNodesIntoTheGroupGetsNothingWrong) {
  Start(4);
  SaveAll(6 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  ParityGroup smaller = Group(1);
  smaller.nodes.pop_back();
  const auto copy = FetchFromGroup(smaller, port_, {"g", 1, kStep, 2}, kLimit, std::make_shared<Cancel>());
  ASSERT_FALSE(copy);
  EXPECT_THAT(copy.error().message, HasSubstr("partner_group"));
  // Nor who takes it for a whole copy.
  const auto whole = FetchCopy(Address(0), port_, {"g", 1, kStep, 2}, kLimit, std::make_shared<Cancel>());
  ASSERT_FALSE(whole);
  EXPECT_THAT(whole.error().message, HasSubstr("partner_group"));
}

// One that answers, and has nothing; one that refuses; one that has stopped.
TEST_F(ParitySession, ABuilderEndsWhateverItWaitsFor) {
  Start(4);
  for (size_t node = 0; node < 2; ++node) Save(node, {Content(kChunk, 1), Content(kChunk, 2)});
  nodes_[3].server.reset();
  const UniqueFd stopped(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = ResolveBeatAddress(Address(3), port_, AF_INET);
  ASSERT_TRUE(address);
  ASSERT_EQ(::bind(stopped.get(), address->get(), address->size), 0);
  ASSERT_EQ(::listen(stopped.get(), 16), 0);
  BuildAll();
  std::this_thread::sleep_for(milliseconds(100));
  const auto begun = std::chrono::steady_clock::now();
  for (Node& node : nodes_) node.builder.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));  // of 10 and of 3
}

TEST_F(ParitySession, AFetchThatIsNotWantedAnyMoreEnds) {
  Start(3);
  SaveAll(4 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  const auto cancel = std::make_shared<Cancel>();
  cancel->Now();
  const auto copy = FetchFromGroup(Group(1), port_, {"g", 1, kStep, 2}, kLimit, cancel);
  ASSERT_FALSE(copy);
  EXPECT_EQ(copy.error().code, Errc::kUnavailable);
}

TEST_F(ParitySession, AnOlderCheckpointDoesNotTakeANewerOnesPlace) {
  Start(3);
  SaveAll(4 * kChunk, kStep + 1);
  BuildAll(kStep + 1);
  ASSERT_TRUE(Eventually([&] { return AllBuilt(kStep + 1); }));
  std::vector<uint64_t> rows;
  ParityParts::Dropped dropped;
  EXPECT_EQ(nodes_[0].stock.parity->Take("g", 1, kStep, 0, {}, &rows, &dropped).error().code,
            Errc::kConflict);
  EXPECT_TRUE(AllBuilt(kStep + 1));
}

TEST_F(ParitySession, MemoryThatIsNotThereIsAClearRefusal) {
  Start(3);
  nodes_[0].stock = MakeStock(3 * kChunk);
  EXPECT_TRUE(nodes_[0].stock.parity->Begin("g", 1, 0, 0).empty());
  const auto shard = [](uint32_t rank) {
    return std::make_shared<const Shard>(ShardOf(rank, Content(8 * kChunk, static_cast<int>(rank))));
  };
  std::vector<uint64_t> rows;
  ParityParts::Dropped dropped;
  const Status taken = nodes_[0].stock.parity->Take(
      "g", 1, kStep, 0, {{shard(2), {0, 4}}, {shard(4), {4, 4}}}, &rows, &dropped);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Errc::kExhausted);
  EXPECT_THAT(taken.error().message, HasSubstr("partner_memory"));
}

TEST_F(ParitySession, ANewGenerationKeepsTheParityOfWhatItStartsFrom) {
  Start(3);
  SaveAll(4 * kChunk);
  BuildAll();
  ASSERT_TRUE(Eventually([&] { return AllBuilt(); }));
  ParityParts& parity = *nodes_[0].stock.parity;
  EXPECT_TRUE(parity.Begin("g", 2, 1, kStep).empty());
  EXPECT_TRUE(parity.Find({"g", 1, kStep, 2}).shard);
  std::vector<uint64_t> rows;
  ParityParts::Dropped dropped;
  EXPECT_EQ(parity.Take("g", 1, kStep + 1, 0, {}, &rows, &dropped).error().code, Errc::kConflict);
  EXPECT_EQ(parity.Begin("g", 3, 0, 0).size(), 4U);
  EXPECT_FALSE(parity.Find({"g", 1, kStep, 2}).shard);
  EXPECT_TRUE(parity.End("g").empty());
  EXPECT_EQ(parity.Put("g", 1, kStep, 0, 0, nullptr).error().code, Errc::kConflict);
}

}  // namespace
}  // namespace muster
