#include "train/bandwidth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/unit/net/processes.h"

namespace muster::train {
namespace {

using nlohmann::json;
using test::Fail;
using test::RunMembers;
using test::Succeeded;
using testing::Each;
using testing::ResultOf;

Bandwidth Found() {
  Bandwidth found;
  found.bytes = {1U << 20U, 1U << 30U};
  found.nodes = 2;
  found.gpus = 4;
  found.kinds = {{"all", "", {{"", 4, {1000, 100'000}}}},
                 {"node", "", {{"n1", 2, {10, 5'000}}, {"n2", 2, {20, 4'000}}}},
                 {"across", "only n1 has a GPU 1", {}}};
  return found;
}

TEST(Bandwidth, OfTheBusIsWhatEachLinkCarries) {
  EXPECT_DOUBLE_EQ(BusBandwidth(1'000'000'000, 2, 1'000'000), 1);
  EXPECT_DOUBLE_EQ(BusBandwidth(1'000'000'000, 4, 1'000'000), 1.5);
  EXPECT_EQ(BusBandwidth(1000, 2, 0), 0);
}

TEST(Bandwidth, OfSeveralGroupsTheSlowestIsShown) {
  EXPECT_EQ(BandwidthText(Found(), 50),
            "4 GPUs on 2 nodes; bus bandwidth in GB/s, where a link carries 50.0\n"
            "                             1 MiB     1 GiB\n"
            "all 4 GPUs                     1.6      16.1\n"
            "the GPUs of a node            52.4     214.7  slowest: n1\n"
            "one GPU of each node    not measured: only n1 has a GPU 1\n");
  EXPECT_EQ(BandwidthText(Found(), 0).substr(0, 41), "4 GPUs on 2 nodes; bus bandwidth in GB/s\n");
}

TEST(Bandwidth, ProgramsGetEveryGroup) {
  const json all = json::parse(BandwidthJson(Found(), 0));
  EXPECT_EQ(all.at("gpus"), 4);
  EXPECT_FALSE(all.contains("link_gb_s"));
  const json& nodes = all.at("kinds").at(1);
  EXPECT_EQ(nodes.at("groups").at(1).at("name"), "n2");
  EXPECT_EQ(nodes.at("groups").at(1).at("sizes").at(0).at("bytes"), 1U << 20U);
  EXPECT_DOUBLE_EQ(nodes.at("groups").at(0).at("sizes").at(0).at("bus_gb_s").get<double>(), 104.8576);
  EXPECT_EQ(all.at("kinds").at(2).at("skipped"), "only n1 has a GPU 1");
}

// The libraries have their own names: they are the stand-ins, or what LD_LIBRARY_PATH has on a machine with a GPU.
BandwidthOptions OfMember(int rank, int size, const std::string& directory, std::uint16_t port) {
  test::ShareTheGpu(rank);
  BandwidthOptions options;
  options.gang = test::LoopbackGroup(rank, size, port);
  options.gang.memory = MemoryKind::kCuda;
  options.gang.exchange = test::ExchangeIn(directory, rank, size);
  options.node = rank / 2;
  options.in_node = rank % 2;
  options.host = fmt::format("127.0.0.{}", options.node + 1);
  options.largest = std::size_t{2} << 20U;
  return options;
}

// Each member measures, and exits with what `check` says of the result.
void ExpectOfEach(int members, const std::function<int(const Bandwidth&)>& check) {
  const test::ScratchDirectory scratch;
  const std::uint16_t port = test::FreePort();
  const std::vector<int> statuses = RunMembers(members, [&](int rank) {
    const Result<Bandwidth> found = MeasureBandwidth(OfMember(rank, members, scratch.path(), port));
    return found ? check(*found) : Fail(found.error().message);
  });
  EXPECT_THAT(statuses, Each(ResultOf(&Succeeded, true)));
}

TEST(MeasuredBandwidth, IsOfAllGpusOfEachNodesAndOfOneOfEach) {
  ExpectOfEach(4, [](const Bandwidth& found) {
    if (found.gpus != 4 || found.nodes != 2 || found.bytes.size() != 2 || found.kinds.size() != 3)
      return Fail(BandwidthText(found, 0));
    std::string names;
    for (const KindBandwidth& kind : found.kinds) {
      if (!kind.skipped.empty()) return Fail(kind.skipped);
      for (const GroupBandwidth& group : kind.groups) {
        names += fmt::format("{} {} {};", kind.kind, group.name, group.members);
        if (group.microseconds.size() != 2 || group.microseconds[1] <= 0) return Fail("no time");
      }
    }
    return names == "all  4;node 127.0.0.1 2;node 127.0.0.2 2;across GPU 0 2;across GPU 1 2;" ? 0
                                                                                              : Fail(names);
  });
}

TEST(MeasuredBandwidth, WhereOneNodeHasAGpuMoreSaysWhyAKindIsLeftOut) {
  ExpectOfEach(3, [](const Bandwidth& found) {
    const std::string why = found.kinds.at(1).skipped + "; " + found.kinds.at(2).skipped;
    return why == "127.0.0.2 has one GPU; only 127.0.0.1 has a GPU 1" ? 0 : Fail(why);
  });
}

}  // namespace
}  // namespace muster::train
