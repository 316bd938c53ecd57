// What `muster net test` says, or a program in its place.
#include "daemon/coordinator/link_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<uint32_t> kNodes{2, 0, 1};
const std::vector<std::string> kNames{"a", "b", "c", "d"};
constexpr int kNotGood = 1 << 8;

json Good() {
  return {{"ok", true},
          {"nodes", 3},
          {"seconds", 1.25},
          {"mbit_s", 940.2},
          {"measurements", 12},
          {"transport", "tcp"},
          {"findings", json::array()},
          {"gone", json::array()},
          {"missing", json::array()}};
}

gang::LinkVerdict Read(const json& said, int status = 0) {
  auto verdict = ReadLinkVerdict(status, said.dump(), kNodes, kNames);
  EXPECT_TRUE(verdict) << (verdict ? "" : verdict.error().message);
  return verdict ? *std::move(verdict) : gang::LinkVerdict{};
}
std::string WhyNot(int status, const std::string& text) {
  const auto verdict = ReadLinkVerdict(status, text, kNodes, kNames);
  return verdict ? "there is a verdict" : verdict.error().message;
}

TEST(LinkVerdict, OfAGoodFabricIsOneSentence) {
  const gang::LinkVerdict verdict = Read(Good());
  EXPECT_THAT(verdict.bad, IsEmpty());
  EXPECT_THAT(verdict.warnings, IsEmpty());
  EXPECT_EQ(
      verdict.summary,
      "12 measurements by tcp between 3 nodes in 1.2 s: a good link carries 940 Mbit/s; no link is bad");
}

TEST(LinkVerdict, WhatIsANodesIsLaidToThatNode) {
  json said = Good();
  said["findings"] = {{{"node", "c"}, {"text", "9.6 of 20 Mbit/s arrive from c (eth0)."}},
                      {{"node", "c"}, {"text", "10 of 20 Mbit/s arrive to c (eth0)."}},
                      {{"pair", {"a", "b"}}, {"text", "Nothing arrives from a to b."}},
                      {{"switch", "leaf1"}, {"text", "1 of 20 Mbit/s arrive from leaf1."}}};
  const gang::LinkVerdict verdict = Read(said, kNotGood);
  ASSERT_THAT(verdict.bad, SizeIs(1));
  EXPECT_EQ(verdict.bad[0].node, 2U);
  EXPECT_EQ(verdict.bad[0].why, "9.6 of 20 Mbit/s arrive from c (eth0); 10 of 20 Mbit/s arrive to c (eth0)");
  EXPECT_THAT(verdict.warnings,
              ElementsAre("Nothing arrives from a to b", "1 of 20 Mbit/s arrive from leaf1"));
  EXPECT_THAT(verdict.summary, HasSubstr("4 findings"));
}

TEST(LinkVerdict, AFindingWithoutATextNamesItsNodeAllTheSame) {
  json said = Good();
  said["findings"] = {{{"node", "a"}},
                      {{"node", "c"}, {"text", "9.6 of 20 Mbit/s arrive from c."}},
                      {{"node", "c"}, {"text", 7}},
                      {{"node", "b"}, {"text", " . "}},
                      {{"pair", {"a", "b"}}},
                      json::object()};
  const gang::LinkVerdict verdict = Read(said, kNotGood);
  const std::string nothing = "the test of the links does not say what is wrong";
  ASSERT_THAT(verdict.bad, SizeIs(3));
  EXPECT_EQ(verdict.bad[0].node, 0U);
  EXPECT_EQ(verdict.bad[0].why, nothing);
  EXPECT_EQ(verdict.bad[1].node, 2U);
  EXPECT_EQ(verdict.bad[1].why, "9.6 of 20 Mbit/s arrive from c; " + nothing);
  EXPECT_EQ(verdict.bad[2].why, nothing);
  EXPECT_THAT(verdict.warnings, IsEmpty());
  EXPECT_THAT(verdict.summary, HasSubstr("6 findings"));
}

TEST(LinkVerdict, SaysWhereToLookAndWhyTcpWasMeasured) {
  json said = Good();
  said["findings"] = {
      {{"node", "c"}, {"text", "Nothing arrives from c (eth0)."}, {"fix", "ip -s link show eth0"}},
      {{"pair", {"a", "b"}}, {"text", "It is slow."}, {"fix", "ethtool eth0"}}};
  said["over_tcp"] = {{{"text", "a measured over TCP: no file."}, {"fix", "modprobe ib_uverbs"}}, 7};
  const gang::LinkVerdict verdict = Read(said, kNotGood);
  ASSERT_THAT(verdict.bad, SizeIs(1));
  EXPECT_EQ(verdict.bad[0].why, "Nothing arrives from c (eth0); look: ip -s link show eth0");
  EXPECT_THAT(verdict.warnings, ElementsAre("It is slow; look: ethtool eth0",
                                            "a measured over TCP: no file; look: modprobe ib_uverbs"));
}

TEST(LinkVerdict, WhoTookNoPartIsNamed) {
  json said = Good();
  said["missing"] = {1, 7, -1, "x"};
  said["gone"] = {"b", 3};
  EXPECT_THAT(Read(said, kNotGood).warnings, ElementsAre("a took no part in the test of the links",
                                                         "b ended in the middle of the test of the links"));
}

TEST(LinkVerdict, ANodeThatTookNoPartCannotBeAccused) {
  json said = Good();
  said["findings"] = {{{"node", "d"}, {"text", "slow"}}, {{"node", "elsewhere"}, {"text", "slow too"}}};
  const gang::LinkVerdict verdict = Read(said, kNotGood);
  EXPECT_THAT(verdict.bad, IsEmpty());
  EXPECT_THAT(verdict.warnings, ElementsAre("slow", "slow too"));
}

TEST(LinkVerdict, WarningsOfLibrariesMayBeInFrontOfIt) {
  json said = Good();
  said["findings"] = {{{"node", "c"}, {"text", "slow"}}};
  const std::string text =
      "Warning: couldn't load driver 'libmlx5-rdmav34.so'\n a second line of {it}\n" + said.dump(2) + "\n";
  const auto verdict = ReadLinkVerdict(kNotGood, text, kNodes, kNames);
  ASSERT_TRUE(verdict) << verdict.error().message;
  ASSERT_THAT(verdict->bad, SizeIs(1));
  EXPECT_EQ(verdict->bad[0].node, 2U);
}

TEST(LinkVerdict, SaysHowMuchWasLeftOutOfIt) {
  json said = Good();
  for (int i = 0; i < 52; ++i) said["findings"].push_back({{"pair", {"a", "b"}}, {"text", "slow"}});
  said["left_out"] = {{"findings", 8}, {"missing", 3}, {"passing", 70}};
  gang::LinkVerdict verdict = Read(said, kNotGood);
  EXPECT_THAT(verdict.summary, HasSubstr("; 60 findings"));
  const std::string more = "the test of the links has more than it names: ";
  EXPECT_EQ(verdict.warnings.at(0), more + "8 findings, 3 nodes that took no part");
  said = Good();
  said["left_out"] = {{"gone", 2}, {"over_tcp", 1}, {"findings", "x"}};
  verdict = Read(said, kNotGood);
  EXPECT_THAT(verdict.summary, HasSubstr("no link is bad"));
  EXPECT_THAT(verdict.warnings,
              ElementsAre(more + "1 nodes that measured over TCP, 2 nodes that ended in the middle"));
  said["left_out"] = {{"passing", 2}};
  EXPECT_THAT(Read(said, kNotGood).warnings, IsEmpty());
}

TEST(LinkVerdict, WithoutOneThereIsASentence) {
  EXPECT_EQ(WhyNot(-1, ""), "the program that measures was not started");
  EXPECT_EQ(WhyNot(-1, "a task has ended"), "a task has ended");
  EXPECT_EQ(WhyNot(2 << 8, "noise\nmuster: the port is taken.\n"), "muster: the port is taken");
  EXPECT_EQ(WhyNot(9, ""), "the program that measures was killed by signal 9");
  EXPECT_EQ(WhyNot(127 << 8, ""), "the program that measures ended with 127");
  EXPECT_EQ(WhyNot(0, "no json"), "no json");
  EXPECT_EQ(WhyNot(9, Good().dump()),
            "{\"findings\":[],\"gone\":[],\"mbit_s\":940.2,\"measurements\":12,"
            "\"missing\":[],\"nodes\":3,\"ok\":true,\"seconds\":1.25,\"transport\":\"tcp\"}")
      << "it was killed, whatever it has said";
}

TEST(LinkVerdict, AHostileOneIsBoundedAndFitForATerminal) {
  json said = Good();
  said["transport"] = "\x1b[2J";
  for (int i = 0; i < 1000; ++i) {
    said["findings"].push_back({{"node", "a"}, {"text", std::string(5000, 'x')}});
    said["findings"].push_back({{"text", "\x1b[31mred\n\x7f"}});
    said["findings"].push_back(i);
    said["gone"].push_back(std::string(5000, 'y'));
  }
  const gang::LinkVerdict verdict = Read(said, kNotGood);
  ASSERT_THAT(verdict.bad, SizeIs(1));
  EXPECT_LT(verdict.bad[0].why.size(), 1000U);
  EXPECT_THAT(verdict.warnings, AllOf(SizeIs(16), Each(AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\n"))))));
  EXPECT_THAT(verdict.summary, Not(HasSubstr("\x1b")));
  for (const char* text : {"[]", "{\"findings\": 3}", "{\"findings\": {}, \"missing\": 1, \"nodes\": []}",
                           "{\"findings\": [null, 1, []], \"seconds\": \"x\"}", "[[[[[[", "\xff\xfe{", "3"}) {
    (void)ReadLinkVerdict(0, text, kNodes, kNames);
  }
}

}  // namespace
}  // namespace muster
