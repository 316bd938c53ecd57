#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/partner/topology.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

Topology Parsed(const std::string& text) {
  auto topology = Topology::Parse(text);
  EXPECT_TRUE(topology) << topology.error().message;
  return topology ? *std::move(topology) : Topology();
}

std::string Refused(const std::string& text) {
  const auto topology = Topology::Parse(text);
  EXPECT_FALSE(topology);
  return topology ? "" : topology.error().message;
}

TEST(Topology, SaysBelowWhichLeafSwitchANodeIs) {
  const Topology topology = Parsed(
      "# two racks\n"
      "SwitchName=spine Switches=leaf[1-2]\n"
      "SwitchName=leaf1 Nodes=gpu[001-016] LinkSpeed=400\n"
      "  switchname=leaf2\tNODES=gpu[017-032],login # and one more\r\n"
      "\n");
  EXPECT_EQ(topology.DomainOf("gpu001"), "leaf1");
  EXPECT_EQ(topology.DomainOf("gpu016"), "leaf1");
  EXPECT_EQ(topology.DomainOf("gpu032"), "leaf2");
  EXPECT_EQ(topology.DomainOf("login"), "leaf2");
  EXPECT_EQ(topology.DomainOf("gpu033"), "");
  EXPECT_EQ(topology.DomainOf("leaf1"), "");
}

TEST(Topology, SaysOfWhichBlockANodeIs) {
  const Topology topology = Parsed("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8");
  EXPECT_EQ(topology.DomainOf("n4"), "b1");
  EXPECT_EQ(topology.DomainOf("n5"), "b2");
}

TEST(Topology, ALineMayGoOn) {
  const Topology topology = Parsed("SwitchName=s1 \\\n  Nodes=n[1-2]\nSwitchName=s2 Nodes=n3\\");
  EXPECT_EQ(topology.DomainOf("n2"), "s1");
  EXPECT_EQ(topology.DomainOf("n3"), "s2");
}

TEST(Topology, OfTwoSwitchesTheFirstCounts) {
  EXPECT_EQ(Parsed("SwitchName=rail0 Nodes=n1\nSwitchName=rail1 Nodes=n1").DomainOf("n1"), "rail0");
}

TEST(Topology, WhatIsMalformedIsRefusedWithItsLine) {
  EXPECT_THAT(Refused("SwitchName=s1 Nodes=n1\n\nNodes=n2\n"), HasSubstr("line 3: nodes without"));
  EXPECT_THAT(Refused("SwitchName=s1 Nodes=n[1-\n"), HasSubstr("line 1: "));
  EXPECT_THAT(Refused("SwitchName=s1 \\\nNodes=n[2-1]\n"), HasSubstr("line 2: "));
  EXPECT_THAT(Refused(std::string((1 << 20) + 1, ' ')), HasSubstr("1 MiB"));
}

class TopologyFileTest : public ::testing::Test {
 protected:
  ~TopologyFileTest() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }

  const std::string path_ = ::testing::TempDir() + "topology." + std::to_string(::getpid());
};

TEST_F(TopologyFileTest, IsReadAgain) {
  TopologyFile file(path_);
  EXPECT_EQ(file.Now()->DomainOf("n1"), "");
  file.Refresh();  // there is none
  EXPECT_EQ(file.Now()->DomainOf("n1"), "");
  Write("SwitchName=s1 Nodes=n1\n");
  EXPECT_EQ(file.Now()->DomainOf("n1"), "");
  file.Refresh();
  EXPECT_EQ(file.Now()->DomainOf("n1"), "s1");
  Write("SwitchName=s2 Nodes=n1\n");
  file.Refresh();
  EXPECT_EQ(file.Now()->DomainOf("n1"), "s2");
  std::filesystem::remove(path_);
  file.Refresh();
  EXPECT_EQ(file.Now()->DomainOf("n1"), "");
}

TEST_F(TopologyFileTest, WhatIsMalformedLeavesWhatWasRead) {
  TopologyFile file(path_);
  Write("SwitchName=s1 Nodes=n1\n");
  file.Refresh();
  Write("SwitchName=s1 Nodes=n[1\n");
  file.Refresh();
  EXPECT_EQ(file.Now()->DomainOf("n1"), "s1");
}

}  // namespace
}  // namespace muster
