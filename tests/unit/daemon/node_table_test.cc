// The nodes of a Start as columns, and back.
#include "daemon/proto/node_table.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace muster {
namespace {

using google::protobuf::util::MessageDifferencer;

v1::NodeSpec* Add(v1::Start* start, const std::string& name, uint32_t node, uint32_t port,
                  const std::vector<uint32_t>& tasks, const std::string& role = "worker") {
  uint32_t rank = 0;
  for (const v1::NodeSpec& before : start->nodes()) rank += static_cast<uint32_t>(before.ranks_size());
  v1::NodeSpec* spec = start->add_nodes();
  spec->set_name(name);
  spec->set_node(node);
  spec->set_lease_port(port);
  spec->set_role(role);
  for (const uint32_t task : tasks) {
    spec->add_tasks(task);
    spec->add_ranks(rank++);
  }
  return spec;
}

void ExpectTheSameAgain(const v1::Start& start) {
  v1::Start packed = start;
  PackNodes(&packed);
  EXPECT_EQ(packed.nodes_size(), 0);
  v1::Start received;
  ASSERT_TRUE(received.ParseFromString(packed.SerializeAsString()));
  const Status whole = UnpackNodes(&received);
  ASSERT_TRUE(whole) << whole.error().message;
  EXPECT_TRUE(MessageDifferencer::Equals(start, received));
}

v1::Start Large() {
  v1::Start start;
  start.set_generation(2);
  for (uint32_t i = 0; i < 2048; ++i) {
    std::vector<uint32_t> tasks;
    for (uint32_t k = 0; k < 8; ++k) tasks.push_back(8 * i + k);
    Add(&start, fmt::format("gpu{:04}", i), i, 20'000 + i * 7919 % 10'000, tasks);
  }
  return start;
}

TEST(NodeTable, SaysTheSameAsAList) {
  v1::Start start;
  start.set_term(7);
  start.set_generation(3);
  Add(&start, "n3", 2, 20'010, {4, 9});
  Add(&start, "n1", 0, 29'999, {0, 1});
  Add(&start, "login", 5, 0, {10}, "evaluator");
  Add(&start, "n07", 4, 65'535, {}, "");
  Add(&start, "n08", 3, 1024, {6, 7, 8}, "ps");
  ExpectTheSameAgain(start);
  ExpectTheSameAgain(Large());
}

TEST(NodeTable, SaysThatThereAreNone) {
  v1::Start start;
  start.set_generation(3);
  ExpectTheSameAgain(start);
}

TEST(NodeTable, IsAFewBytesANode) {
  v1::Start start = Large();
  PackNodes(&start);
  EXPECT_LT(start.ByteSizeLong(), 2048U * 5);
}

TEST(NodeTable, AListWithoutATableStaysAsItIs) {
  v1::Start start;
  Add(&start, "n1", 0, 20'000, {0});
  const v1::Start before = start;
  ASSERT_TRUE(UnpackNodes(&start));
  EXPECT_TRUE(MessageDifferencer::Equals(before, start));
}

TEST(NodeTable, ThatContradictsItselfIsRefused) {
  v1::Start good;
  Add(&good, "n1", 0, 20'000, {0, 1});
  Add(&good, "n2", 1, 20'010, {2, 3});
  PackNodes(&good);
  const std::vector<std::function<void(v1::NodeTable*)>> damages = {
      [](v1::NodeTable* t) { t->set_names("n[1-3]"); },
      [](v1::NodeTable* t) { t->set_names("n["); },
      [](v1::NodeTable* t) { t->add_nodes(4); },
      [](v1::NodeTable* t) { t->set_nodes(0, -1); },
      [](v1::NodeTable* t) { t->set_nodes(0, INT64_MIN); },
      [](v1::NodeTable* t) { t->set_nodes(1, INT64_MAX); },
      [](v1::NodeTable* t) { t->set_sizes(0, UINT32_MAX); },
      [](v1::NodeTable* t) { t->set_sizes(1, UINT32_MAX); },
      [](v1::NodeTable* t) { t->clear_ranks(); },
      [](v1::NodeTable* t) { t->set_tasks(1, 3); },
      [](v1::NodeTable* t) { t->set_lease_ports(1, -30'000); },
      [](v1::NodeTable* t) { t->clear_lease_ports(); },
      [](v1::NodeTable* t) { t->clear_roles(); },
      [](v1::NodeTable* t) { t->set_role_counts(0, 1); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    v1::Start start = good;
    damages[i](start.mutable_table());
    EXPECT_FALSE(UnpackNodes(&start)) << i;
    EXPECT_EQ(start.nodes_size(), 0);
  }
}

TEST(NodeTable, AnyBytesAreReadOrRefused) {
  std::mt19937 random(1);
  v1::Start good = Large();
  PackNodes(&good);
  const std::string bytes = good.SerializeAsString();
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = bytes;
    for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    v1::Start start;
    if (start.ParseFromString(damaged)) (void)UnpackNodes(&start);
  }
}

}  // namespace
}  // namespace muster
