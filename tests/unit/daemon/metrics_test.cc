#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "daemon/metrics/metrics_file.h"
#include "daemon/metrics/metrics_text.h"

namespace muster {
namespace {

GangMetrics FullGang() {
  GangMetrics gang;
  gang.gang = "12.0";
  gang.uid = 1000;
  gang.state = "running";
  gang.generation = 3;
  gang.restarts = {{"infrastructure", 1}, {"planned", 0}, {"preemption", 0}, {"time_limit", 0}, {"user", 1}};
  gang.user_faults = 1;
  gang.tasks = 24;
  gang.nodes_active = 2;
  gang.nodes_spare = 1;
  gang.recovery_seconds = 0.025;
  gang.step = 4096;
  gang.step_seconds = 0.5;
  gang.checkpoint = {4000, uint64_t{3} << 40, 1795530728.5, 0.75, 60.5};
  return gang;
}

size_t Samples(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) count += text[at] == '#' ? 0 : 1;
  return count;
}

TEST(MetricsText, IsWhatPrometheusReads) {
  EXPECT_EQ(
      MetricsText({"0.1.0", 1, 0, std::nullopt, {8, 0.25, 4096}, {}, std::nullopt, 0.5}, {}),
      "# HELP muster_build_info musterd's version.\n"
      "# TYPE muster_build_info gauge\n"
      "muster_build_info{version=\"0.1.0\"} 1\n"
      "# HELP muster_node_gangs Gangs with tasks on this node, and gangs that it coordinates.\n"
      "# TYPE muster_node_gangs gauge\n"
      "muster_node_gangs{role=\"member\"} 1\n"
      "muster_node_gangs{role=\"coordinator\"} 0\n"
      "# HELP muster_node_loop_seconds The longest time since musterd's start in which it attended to one "
      "thing only.\n"
      "# TYPE muster_node_loop_seconds gauge\n"
      "muster_node_loop_seconds{} 0.5\n"
      "# HELP muster_node_store_operations_total Operations on objects of checkpoints that the store has "
      "carried out for this node.\n"
      "# TYPE muster_node_store_operations_total counter\n"
      "muster_node_store_operations_total{operation=\"write\"} 8\n"
      "muster_node_store_operations_total{operation=\"read\"} 0\n"
      "# HELP muster_node_store_seconds_total How long they took, added up.\n"
      "# TYPE muster_node_store_seconds_total counter\n"
      "muster_node_store_seconds_total{operation=\"write\"} 0.25\n"
      "muster_node_store_seconds_total{operation=\"read\"} 0\n"
      "# HELP muster_node_store_bytes_total How many bytes they had.\n"
      "# TYPE muster_node_store_bytes_total counter\n"
      "muster_node_store_bytes_total{operation=\"write\"} 4096\n"
      "muster_node_store_bytes_total{operation=\"read\"} 0\n");
  const std::string text = MetricsText({"0.1.0", 1, 1, true, {}, {}}, {FullGang()});
  for (const char* line : {
           "muster_node_healthy{} 1\n",
           "muster_gang_state{gang=\"12.0\",uid=\"1000\",state=\"running\"} 1\n",
           "# TYPE muster_gang_restarts_total "
           "counter\nmuster_gang_restarts_total{gang=\"12.0\",uid=\"1000\",cause=\"infrastructure\"} 1\n",
           "muster_gang_restarts_total{gang=\"12.0\",uid=\"1000\",cause=\"planned\"} 0\n",
           "muster_gang_checkpoint_stall_seconds{gang=\"12.0\",uid=\"1000\"} 0.75\n",
           "muster_gang_checkpoint_drain_seconds{gang=\"12.0\",uid=\"1000\"} 60.5\n",
           "muster_gang_nodes{gang=\"12.0\",uid=\"1000\",role=\"spare\"} 1\n",
           "muster_gang_recovery_seconds{gang=\"12.0\",uid=\"1000\"} 0.025\n",
           "muster_gang_checkpoint_bytes{gang=\"12.0\",uid=\"1000\"} 3298534883328\n",
           "muster_gang_checkpoint_timestamp_seconds{gang=\"12.0\",uid=\"1000\"} 1795530728.5\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

TEST(MetricsText, ANameIsToldOnceForAllGangsAndAGangHasFewSamples) {
  FabricMetrics fabric{8, 0, 3, {}};
  for (int kind = 0; kind < 8; ++kind) fabric.counts.emplace_back("kind" + std::to_string(kind), 7);
  const size_t most = Samples(MetricsText({"1", 0, 0, true, {}, {}, fabric}, {}));
  EXPECT_LE(most, 30U);
  const size_t none = Samples(MetricsText({"1", 0, 0, true, {}, {}}, {}));
  EXPECT_EQ(most, none + 11);
  const std::string text = MetricsText({"1", 0, 0, true, {}, {}}, {FullGang(), FullGang()});
  EXPECT_LE((Samples(text) - none) / 2, 40U);
  const std::string type = "# TYPE muster_gang_state ";
  EXPECT_EQ(text.find(type), text.rfind(type));
}

TEST(MetricsText, AGangOfManyRanksHasAsManySamplesAsASmallOne) {
  const NodeMetrics node{"1", 0, 0, true, {}, {}};
  GangMetrics gang = FullGang();
  const size_t small = Samples(MetricsText(node, {gang}));
  gang.tasks = 16'384;
  gang.nodes_active = 2'048;
  gang.nodes_spare = gang.nodes_lost = 64;
  const std::string text = MetricsText(node, {gang});
  EXPECT_EQ(Samples(text), small);
  EXPECT_NE(text.find("muster_gang_tasks{gang=\"12.0\",uid=\"1000\"} 16384\n"), std::string::npos);
  for (const char* label : {"rank=", "node=", "host="})
    EXPECT_EQ(text.find(label), std::string::npos) << label;
}

TEST(MetricsText, TheFabricsPortsAreAddedUp) {
  const std::string text =
      MetricsText({"1", 0, 0, true, {}, {}, FabricMetrics{7, 1, 3, {{"retransmit", 9}}}}, {});
  for (const char* line :
       {"muster_fabric_ports{state=\"up\"} 7\n", "muster_fabric_ports{state=\"down\"} 1\n",
        "muster_fabric_links_lost_total{} 3\n", "muster_fabric_counts_total{kind=\"retransmit\"} 9\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST(MetricsText, WhatIsNotKnownIsNotMentioned) {
  GangMetrics gang;
  gang.gang = "1.0";
  const std::string text = MetricsText({"1", 0, 0, std::nullopt, {}, {}}, {gang});
  for (const char* name : {"recovery", "gang_checkpoint", "gang_step", "healthy", "fabric"})
    EXPECT_EQ(text.find(name), std::string::npos) << name;
}

TEST(MetricsText, ALabelCannotEndItself) {
  EXPECT_EQ(EscapeLabel("a\"} 1\nb\\"), "a\\\"} 1\\nb\\\\");
}

class MetricsFileTest : public ::testing::Test {
 protected:
  MetricsFileTest() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~MetricsFileTest() override { std::filesystem::remove_all(directory_); }
  [[nodiscard]] std::string Path() const { return directory_ + "/muster.prom"; }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string directory_ = ::testing::TempDir() + "metrics.XXXXXX";
  Loop loop_;
};

TEST_F(MetricsFileTest, IsThereForAllToReadAsLongAsItsWriter) {
  ::umask(077);
  {
    const MetricsFile file(loop_, Path(), [] { return "muster 1\n"; });
    while (!std::filesystem::exists(Path())) std::this_thread::yield();
    EXPECT_EQ(Read(Path()), "muster 1\n");
    struct stat info {};
    ASSERT_EQ(::stat(Path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0644U);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(MetricsFileTest, WithoutItsDirectoryThereIsNone) {
  std::filesystem::remove_all(directory_);
  {
    const MetricsFile file(loop_, Path(), [] { return "muster 1\n"; });
  }
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

TEST_F(MetricsFileTest, FollowsNoLinkOfAnother) {
  const std::string other = directory_ + "/other";
  std::ofstream(other) << "kept";
  std::filesystem::create_symlink(other, Path() + ".new");
  {
    const MetricsFile file(loop_, Path(), [] { return "muster 1\n"; });
  }
  EXPECT_EQ(Read(other), "kept");
}

}  // namespace
}  // namespace muster
