#include "base/hostlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(Hostlist, OneNameIsItself) {
  EXPECT_THAT(*ExpandHostlist("gpu-a.site_1"), ElementsAre("gpu-a.site_1"));
}

TEST(Hostlist, RangesKeepOrderAndLeadingZeros) {
  EXPECT_THAT(*ExpandHostlist("n[1-3,07],login,a[08-11]b"),
              ElementsAre("n1", "n2", "n3", "n07", "login", "a08b", "a09b", "a10b", "a11b"));
}

TEST(Hostlist, ABracketMayStandAlone) {
  EXPECT_THAT(*ExpandHostlist("[1-2]"), ElementsAre("1", "2"));
}

TEST(Hostlist, ANameMayHaveSeveralBrackets) {
  EXPECT_THAT(*ExpandHostlist("rack[0-1]_blade[08-09,12]x,n1"),
              ElementsAre("rack0_blade08x", "rack0_blade09x", "rack0_blade12x", "rack1_blade08x",
                          "rack1_blade09x", "rack1_blade12x", "n1"));
}

TEST(Hostlist, RefusesWhatIsMalformed) {
  for (const char* text : {"",      ",",      "a,",     ",a",       "a,,b",     "n[1-",  "n]1",   "n[]",
                           "n[1-2", "n[[1]]", "n[3-1]", "n[a]",     "n[1-2-3]", "n[-1]", "n[1-]", "n[1,]",
                           "a b",   "a\n",    "a/b",    "\xc3\xa4", "n[ 1]",    "n[+1]", "n[0x1]"}) {
    const auto hosts = ExpandHostlist(text);
    ASSERT_FALSE(hosts) << text;
    EXPECT_EQ(hosts.error().code, Errc::kInvalid);
  }
}

TEST(Hostlist, RefusesMoreHostsThanItsLimit) {
  EXPECT_EQ(ExpandHostlist("n[1-65536]")->size(), kMaxHosts);
  EXPECT_FALSE(ExpandHostlist("n[0-65536]"));
  EXPECT_FALSE(ExpandHostlist("n[1-65536],x"));
  EXPECT_EQ(ExpandHostlist("r[1-256]n[1-256]")->size(), kMaxHosts);
  EXPECT_FALSE(ExpandHostlist("r[1-256]n[1-257]"));
  std::string deep;
  for (int i = 0; i < 5'000; ++i) deep += "[1-2]";
  EXPECT_FALSE(ExpandHostlist(deep));
  EXPECT_FALSE(ExpandHostlist("n[0-18446744073709551615]"));
  EXPECT_FALSE(ExpandHostlist("n[99999999999999999999]"));
}

TEST(Hostlist, RefusesNamesSoLongThatAListOfThemWouldFillTheMemory) {
  EXPECT_TRUE(ExpandHostlist(std::string(255, 'n')));
  EXPECT_FALSE(ExpandHostlist(std::string(256, 'n')));
  EXPECT_FALSE(ExpandHostlist(std::string(60'000, 'n') + "[1-65536]"));
  EXPECT_FALSE(ExpandHostlist("n[" + std::string(60'000, '0') + "-65535]"));
}

TEST(Hostlist, IsWrittenAsShortAsItsNumbersAllowAndInItsOrder) {
  const std::pair<std::vector<std::string>, const char*> table[] = {
      {{}, ""},
      {{"n1"}, "n1"},
      {{"login"}, "login"},
      {{"n1", "n2", "n3"}, "n[1-3]"},
      {{"n1", "n3", "n4", "login", "n9", "n10"}, "n[1,3-4],login,n[9-10]"},
      {{"n2", "n1"}, "n[2,1]"},
      {{"n08", "n09", "n10", "n11"}, "n[08-11]"},
      {{"n8", "n09", "n10"}, "n[8,09-10]"},
      {{"n99", "n100"}, "n[99-100]"},
      {{"n099", "n100"}, "n[099-100]"},
      {{"a1", "b2"}, "a1,b2"},
      {{"1", "2"}, "[1-2]"},
      {{"n1", "n1"}, "n[1,1]"},
      {{"x12345678901234567890", "x12345678901234567891"}, "x12345678901234567890,x12345678901234567891"},
  };
  for (const auto& [hosts, list] : table) {
    EXPECT_EQ(CompressHostlist(hosts), list);
    if (hosts.empty()) continue;
    EXPECT_EQ(*ExpandHostlist(list), hosts);
  }
}

TEST(Hostlist, TheMessageShowsTheBeginningOfALongList) {
  const auto hosts = ExpandHostlist(std::string(5'000, ' '));
  EXPECT_LT(hosts.error().message.size(), 300U);
}

}  // namespace
}  // namespace muster
