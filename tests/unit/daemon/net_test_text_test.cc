#include "daemon/cli/net_test_text.h"

#include <gtest/gtest.h>

namespace muster::cli {
namespace {

using nlohmann::json;

json Verdict() {
  return {{"ok", true},
          {"nodes", 3},
          {"measurements", 6},
          {"transport", "rdma"},
          {"seconds", 0.62},
          {"mbit_s", 19.4},
          {"latency_us", 2.31},
          {"longest_latency_us", 4.26},
          {"longest_pair", {"n1", "n3"}},
          {"findings", json::array()},
          {"passing", json::array()},
          {"over_tcp", json::array()},
          {"shared", json::array()},
          {"gone", json::array()},
          {"missing", json::array()}};
}

TEST(VerdictText, SaysWhatAGoodLinkCarriesAndHowFarNodesAreApart) {
  EXPECT_EQ(VerdictText(Verdict()),
            "Half of a round trip takes 2.3 us; between n1 and n3, the farthest, 4.3 us.\n"
            "3 nodes, 6 measurements of rdma in 0.6 s: a good link carries 19 Mbit/s. No link is bad.\n");
}

TEST(VerdictText, NamesWhatIsBadFirstThenWhatMayHideMore) {
  json verdict = Verdict();
  verdict["ok"] = false;
  verdict["findings"] = {{{"text", "n2 is slow"}, {"fix", "ethtool roce0"}}};
  verdict["over_tcp"] = {{{"text", "n1 measured over TCP: no file."}, {"fix", "modprobe ib_uverbs"}}};
  verdict["missing"] = {7};
  verdict["gone"] = {"n4"};
  verdict["shared"] = {"n1", "n3"};
  verdict["latency_us"] = 0;
  verdict["longest_pair"] = json::array();
  EXPECT_EQ(
      VerdictText(verdict),
      "n2 is slow\n  look: ethtool roce0\n"
      "n1 measured over TCP: no file.\n  look: modprobe ib_uverbs\n"
      "Node 7 of the gang did not come.\n"
      "n4 ended in the middle of the test.\n"
      "Other traffic filled links, and a bad one may hide behind it: n1, n3\n"
      "3 nodes, 6 measurements of rdma in 0.6 s: a good link carries 19 Mbit/s. The fabric is not good.\n");
}

json Finding(size_t number) {
  const std::string node = "n" + std::to_string(number);
  return {{"trouble", "unreachable"},
          {"direction", "both"},
          {"node", node},
          {"interface", "roce0"},
          {"text", "Nothing arrives from and to " + node + " (roce0)." + std::string(200, ' ')},
          {"fix", "ip -s link show roce0"}};
}

TEST(Shorten, LeavesAVerdictThatMustersDaemonReadsWholeAndItsFindingsFirst) {
  json verdict = Verdict();
  for (size_t i = 0; i < 60; ++i) {
    for (const char* list : {"findings", "passing"}) verdict[list].push_back(Finding(i));
  }
  verdict["gone"] = {"n4"};
  Shorten(verdict);
  EXPECT_LE(verdict.dump(2).size(), kMaxVerdict);
  // All of less value has gone before the first of the findings does.
  EXPECT_TRUE(verdict["passing"].empty() && verdict["gone"].empty());
  const size_t left = verdict["findings"].size();
  EXPECT_GT(left, 50U);
  EXPECT_EQ(verdict["findings"].back(), Finding(left - 1));
  EXPECT_EQ(verdict["left_out"], json({{"passing", 60}, {"gone", 1}, {"findings", 60 - left}}));
}

TEST(Shorten, LeavesSixtyFourOfAKindAndTheTextSaysHowManyMoreThereAre) {
  json verdict = Verdict();
  for (int i = 0; i < 70; ++i) verdict["missing"].push_back(i);
  Shorten(verdict);
  EXPECT_EQ(verdict["missing"].size(), 64U);
  EXPECT_EQ(verdict["missing"].back(), 63);
  EXPECT_EQ(verdict["left_out"], json({{"missing", 6}}));
  EXPECT_NE(VerdictText(verdict).find("Left out of missing: 6 more.\n"), std::string::npos);
  verdict = Verdict();
  Shorten(verdict);
  EXPECT_EQ(verdict, Verdict());
}

}  // namespace
}  // namespace muster::cli
