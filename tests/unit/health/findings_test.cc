#include "daemon/health/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/config/config.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HealthLine, ComesBackAsItWas) {
  for (const HealthLine::Kind kind : {HealthLine::Kind::kChecking, HealthLine::Kind::kFinding,
                                      HealthLine::Kind::kCounter, HealthLine::Kind::kDone}) {
    const std::string text = ToLine({kind, HealthSeverity::kWarning, "gpu 3", "is hot: 99 %"});
    ASSERT_TRUE(text.ends_with('\n'));
    const auto line = ParseHealthLine(text.substr(0, text.size() - 1));
    ASSERT_TRUE(line) << text;
    EXPECT_EQ(line->kind, kind);
    EXPECT_EQ(line->subject, "gpu 3");
    EXPECT_EQ(line->text, "is hot: 99 %");
  }
  EXPECT_EQ(ToLine({HealthLine::Kind::kFinding, HealthSeverity::kSick, "a", "b"}), "sick\ta\tb\n");
}

TEST(HealthLine, IsOneLineWhateverItsTextIs) {
  EXPECT_EQ(ToLine({HealthLine::Kind::kFinding, HealthSeverity::kSick, "a\tb", "c\nsick\td\x01"}),
            "sick\ta b\tc sick d \n");
}

TEST(HealthLine, ThatIsMalformedIsNone) {
  for (const char* text : {"", "sick", "sick\ta", "well\ta\tb", "\t\t"})
    EXPECT_FALSE(ParseHealthLine(text)) << text;
}

TEST(HealthOptions, ComeBackFromTheirArguments) {
  HealthOptions options;
  options.sys_root = "/s y";
  options.proc_root = "/p=p";
  options.nvml_library = "";
  options.timeout = std::chrono::milliseconds(1'234);
  options.settle = std::chrono::milliseconds(0);
  options.gpus = {0, 7};
  options.nics = {"rdma0", "eth0"};
  options.state_dir = "/run/muster";
  options.disks = {"/tmp", "/scratch"};
  options.memory_min_bytes = 5;
  options.disk_free_percent = 6;
  options.gpu_unowned_max_bytes = 7;
  options.last_counters = {{"rdma0/1 symbol_error", 8}, {"odd=name", 9}};
  const auto back = ParseHealthArguments(ToArguments(options));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(ToArguments(*back), ToArguments(options));
  EXPECT_EQ(back->last_counters, options.last_counters);
  EXPECT_EQ(back->proc_root, "/p=p");
}

TEST(HealthOptions, ABadArgumentIsNamed) {
  for (const char* bad : {"", "x", "timeout_ms", "timeout_ms=", "timeout_ms=-1", "timeout_ms=1s", "gpu=x",
                          "what=1", "last=5", "last==x", "memory_min=99999999999999999999", "=1"}) {
    const auto options = ParseHealthArguments({"sys=/sys", bad});
    ASSERT_FALSE(options) << bad;
    EXPECT_THAT(options.error().message, HasSubstr("'" + std::string(bad) + "'"));
  }
}

TEST(HealthOptions, FollowTheConfiguration) {
  const auto config = ParseConfig(
      "health_nics: mlx5_0, eth0\nhealth_disks: /tmp /scratch\nhealth_timeout: 5s\nhealth_memory_min: 2GiB\n"
      "health_disk_free: 7\nnvml_library: ''\nstate_dir: /run/x\n",
      "muster.yaml");
  ASSERT_TRUE(config) << config.error().message;
  const HealthOptions options = HealthOptionsOf(*config);
  EXPECT_THAT(options.nics, ElementsAre("mlx5_0", "eth0"));
  EXPECT_THAT(options.disks, ElementsAre("/tmp", "/scratch"));
  EXPECT_EQ(options.timeout, std::chrono::seconds(5));
  EXPECT_EQ(options.memory_min_bytes, 2ULL << 30);
  EXPECT_EQ(options.disk_free_percent, 7U);
  EXPECT_EQ(options.nvml_library, "");
  EXPECT_EQ(options.state_dir, "/run/x");
}

}  // namespace
}  // namespace muster
