#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/slurm/topology.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
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

TEST(Topology, SaysWhichSwitchesAreAboveANode) {
  const Topology topology = Parsed(
      "SwitchName=core switches=spine[1-2]\n"
      "SwitchName=spine1 Switches=leaf[1-2] LinkSpeed=400\n"
      "SwitchName=spine2 Switches=leaf[2-3]\n"
      "SwitchName=leaf1 Nodes=n[1-2]\n"
      "SwitchName=leaf2 Nodes=n3\n"
      "SwitchName=leaf3 Nodes=n4\n"
      "SwitchName=alone Nodes=n5\n");
  EXPECT_THAT(topology.SwitchesOf("n2"), ElementsAre("core", "spine1", "leaf1"));
  EXPECT_THAT(topology.SwitchesOf("n3"), ElementsAre("core", "spine1", "leaf2"))
      << "of two above it the first";
  EXPECT_THAT(topology.SwitchesOf("n4"), ElementsAre("core", "spine2", "leaf3"));
  EXPECT_THAT(topology.SwitchesOf("n5"), ElementsAre("alone"));
  EXPECT_THAT(topology.SwitchesOf("n6"), ElementsAre());
}

TEST(Topology, SwitchesInACircleEnd) {
  const Topology topology = Parsed(
      "SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Switches=c Nodes=n2\nSwitchName=a "
      "Nodes=n1\n");
  EXPECT_EQ(topology.SwitchesOf("n1").size(), Topology::kMaxSwitches);
  EXPECT_EQ(topology.SwitchesOf("n2").size(), Topology::kMaxSwitches);
}

TEST(Topology, SaysOfWhichBlockANodeIs) {
  const Topology topology = Parsed("BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8");
  EXPECT_THAT(topology.SwitchesOf("n4"), ElementsAre("b1"));
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
  EXPECT_THAT(Refused("SwitchName=s1 Switches=s[2-\n"), HasSubstr("line 1: "));
  EXPECT_THAT(Refused("Switches=s2\n"), HasSubstr("line 1: nodes without"));
  EXPECT_THAT(Refused("SwitchName=s1 \\\nNodes=n[2-1]\n"), HasSubstr("line 2: "));
  EXPECT_THAT(Refused(std::string((1 << 20) + 1, ' ')), HasSubstr("1 MiB"));
}

TEST(Topology, MayBeYaml) {
  const auto topology = Topology::ParseYaml(
      "---\n"
      "- topology: blocks  # the other partition's\n"
      "  block:\n"
      "    block_sizes: [4, 16]\n"
      "    blocks:\n"
      "    - {block: b1, nodes: 'gpu[001-004],big[1-2]'}\n"
      "- topology: tree\n"
      "  cluster_default: True\n"
      "  tree:\n"
      "    switches:\n"
      "    - switch: spine\n"
      "      children: leaf[1-2]\n"
      "    - switch: leaf1\n"
      "      nodes: gpu[001-016]\n"
      "    - switch: leaf2\n"
      "      nodes: gpu[017-032]\n"
      "- topology: rest\n"
      "  flat: true\n");
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_EQ(topology->DomainOf("gpu001"), "tree/leaf1");
  EXPECT_EQ(topology->DomainOf("gpu032"), "tree/leaf2");
  EXPECT_EQ(topology->DomainOf("big2"), "blocks/b1");
  EXPECT_EQ(topology->DomainOf("gpu033"), "");
  EXPECT_THAT(topology->SwitchesOf("gpu032"), ElementsAre("tree/spine", "tree/leaf2"));
  EXPECT_THAT(topology->SwitchesOf("big2"), ElementsAre("blocks/b1"));
}

TEST(Topology, WhatIsNoTopologyInYamlIsRefused) {
  for (const auto& [text, why] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "no list"},
           {"tree: {}\n", "no list"},
           {"- [\n", "line "},
           {"- 5\n", "line "},
           {"- tree: {switches: [{switch: a, nodes: n1}]}\n", "line "},
           {"- topology: t\n  tree: {switches: [{nodes: n1}]}\n", "line "},
           {"- topology: t\n  cluster_default: perhaps\n  tree:\n    switches:\n    - switch: a\n      "
            "nodes: n[1-\n",
            "line 6: "},
           {"- topology: t\n  tree: {switches: [{switch: a, nodes: [n1]}]}\n", "line "},
           {"- topology: t\n  tree: {switches: [{switch: a, children: 's[1-'}]}\n", "line 2: "}}) {
    const auto topology = Topology::ParseYaml(text);
    ASSERT_FALSE(topology) << text;
    EXPECT_THAT(topology.error().message, HasSubstr(why)) << text;
  }
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

TEST_F(TopologyFileTest, MayBeYaml) {
  const std::string path = path_ + ".yaml";
  std::ofstream(path) << "- topology: t\n  block: {blocks: [{block: b, nodes: n1}]}\n";
  TopologyFile file(path);
  file.Refresh();
  std::filesystem::remove(path);
  EXPECT_EQ(file.Now()->DomainOf("n1"), "t/b");
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
