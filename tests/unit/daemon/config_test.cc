#include "daemon/config/config.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>

#include "daemon/config/configured_retention.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const auto config = ParseConfig(text, "muster.yaml");
  return config ? "" : config.error().message;
}

TEST(Config, NothingGivesTheDefaults) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n"}) {
    const auto config = ParseConfig(text, "muster.yaml");
    ASSERT_TRUE(config) << text;
    EXPECT_EQ(config->port, 303);
    EXPECT_EQ(config->socket, "/run/muster/musterd.sock");
  }
}

TEST(Config, SaysWhichCheckpointsAreKept) {
  const auto config = ParseConfig("keep_checkpoints: 3\nkeep_every: 500\n", "muster.yaml");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(RetentionOf(*config).newest, 3U);
  EXPECT_EQ(RetentionOf(*config).every, 500U);
}

TEST(Config, ReadsTextsCountsDurationsAndSizes) {
  const auto config = ParseConfig(
      "store: rados:muster\nport: 7000\nreconnect: 5s\nstore_timeout: 1500ms\nprogress_after: "
      "2m\nunkillable_after: 90s\nlease: "
      "1m\nsilence: 2m\n"
      "chunk_size: 8MiB\nmax_shard_size: 1TiB\n",
      "muster.yaml");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->store, "rados:muster");
  EXPECT_EQ(config->port, 7000);
  EXPECT_EQ(config->reconnect_ms, 5'000);
  EXPECT_EQ(config->unkillable_after_ms, 90'000);
  EXPECT_EQ(config->store_timeout_ms, 1'500);
  EXPECT_EQ(config->progress_after_ms, 120'000);
  EXPECT_EQ(config->lease_ms, 60'000);
  EXPECT_EQ(config->chunk_bytes, 8 << 20);
  EXPECT_EQ(config->max_shard_bytes, 1LL << 40);
}

TEST(Config, AnAddressIsOneOfIPv4OrIPv6) {
  for (const char* good : {"127.0.0.1", "0.0.0.0", "\"::1\"", "\"fe80::1\""})
    EXPECT_EQ(ErrorOf(std::string("metrics_address: ") + good + "\n"), "") << good;
  for (const char* bad : {"localhost", "127.1", "10.0.0.1:305", "\"\""})
    EXPECT_THAT(ErrorOf(std::string("metrics_address: ") + bad + "\n"), HasSubstr("muster.yaml:1")) << bad;
}

TEST(Config, ASizeWithoutAUnitIsBytesAndADurationOfZeroNeedsNone) {
  const auto config = ParseConfig("chunk_size: 65536\ntime_limit_margin: 0\n", "muster.yaml");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->chunk_bytes, 65'536);
  EXPECT_EQ(config->time_limit_margin_ms, 0);
}

TEST(Config, TheLimitsOfLivenessMustGoTogether) {
  EXPECT_THAT(ErrorOf("beat: 1s\nlease: 2s\nsilence: 10s\n"),
              StartsWith("muster.yaml:3: beat 1s, lease 2s and silence 10s do not go together"));
  EXPECT_THAT(ErrorOf("lease: 1s\n"), HasSubstr("silence at least lease and two beats"));
  EXPECT_TRUE(ParseConfig("beat: 1s\nlease: 3s\nsilence: 5s\n", "muster.yaml"));
}

TEST(Config, AGroupOfOneOrTwoIsNone) {
  EXPECT_THAT(ErrorOf("port: 7000\npartner_group: 2\n"),
              StartsWith("muster.yaml:2: partner_group 2 makes no groups"));
  EXPECT_TRUE(ErrorOf("partner_group: 9\n").find("0 to 8") != std::string::npos);
  EXPECT_TRUE(ParseConfig("partner_group: 3\n", "muster.yaml"));
}

TEST(Config, AnUnknownKeyIsRefusedWithItsLineAndTheGoodKeys) {
  const std::string error = ErrorOf("port: 7000\n\n# so\nprot: 7000\n");
  EXPECT_THAT(error, StartsWith("muster.yaml:4: unknown key 'prot'; the keys are store,"));
  EXPECT_THAT(error, HasSubstr("log_level"));
}

TEST(Config, AKeyGivenTwiceIsRefusedWithItsLine) {
  EXPECT_EQ(ErrorOf("port: 7000\nport: 7001\n"), "muster.yaml:2: 'port' is given twice");
}

TEST(Config, AWrongTypeIsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf("\nport: [1, 2]\n"), StartsWith("muster.yaml:2: 'port' takes one value"));
  EXPECT_THAT(ErrorOf("store:\n  pool: x\n"), StartsWith("muster.yaml:1: 'store' takes one value"));
  EXPECT_THAT(ErrorOf("port: many\n"),
              StartsWith("muster.yaml:1: 'port: many' is not allowed: give 1 to 65535"));
  for (const char* port : {"", "-1", "+1", "1.0", "0x50", "1e3", "~", "80 80", "99999999999999999999"}) {
    EXPECT_THAT(ErrorOf(std::string("port: ") + port + "\n"), StartsWith("muster.yaml:1: 'port")) << port;
  }
}

TEST(Config, AValueOutOfRangeIsRefusedWithItsLineAndTheRange) {
  EXPECT_THAT(ErrorOf("\n\nport: 0\n"),
              StartsWith("muster.yaml:3: 'port: 0' is not allowed: give 1 to 65535"));
  EXPECT_THAT(ErrorOf("port: 65536"), StartsWith("muster.yaml:1:"));
  EXPECT_THAT(ErrorOf("reconnect: 999ms"), HasSubstr("give 1s to 1h (a number with ms, s, m or h)"));
  EXPECT_THAT(ErrorOf("chunk_size: 1GiB"), HasSubstr("give 64KiB to 64MiB (bytes, or a number with KiB"));
  EXPECT_THAT(ErrorOf("max_shard_size: 999999999999999TiB"), StartsWith("muster.yaml:1:"));
}

TEST(Config, TheLargestShardHasNoMoreChunksThanDaemonsCanTellEachOther) {
  const auto largest = [](const std::string& text) { return LargestShard(ParseConfig(text, "x").value()); };
  EXPECT_EQ(largest(""), 64ULL << 30) << "the defaults";
  EXPECT_EQ(largest("chunk_size: 64KiB\n"), 400'000ULL << 16);
  EXPECT_EQ(largest("chunk_size: 64KiB\nmax_shard_size: 16MiB\n"), 16ULL << 20);
  EXPECT_EQ(largest("chunk_size: 8MiB\nmax_shard_size: 1TiB\n"), 1ULL << 40);
  EXPECT_EQ(largest("chunk_size: 64MiB\nmax_shard_size: 4TiB\n"), 4ULL << 40);
}

TEST(Config, ADurationNeedsAUnit) {
  EXPECT_THAT(ErrorOf("reconnect: 30\n"), StartsWith("muster.yaml:1: 'reconnect: 30' is not allowed"));
  EXPECT_NE(ErrorOf("reconnect: 30d\n"), "");
  EXPECT_NE(ErrorOf("reconnect: s\n"), "");
  EXPECT_NE(ErrorOf("chunk_size: 4MB\n"), "");
}

TEST(Config, TextsThatCannotBeGoodAreRefusedWithTheirLine) {
  EXPECT_THAT(ErrorOf("\nstore: /var/lib\n"), StartsWith("muster.yaml:2: 'store: /var/lib' is not allowed"));
  EXPECT_THAT(ErrorOf("\nstore: 'rados:'\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nlog_level: loud\n"), StartsWith("muster.yaml:2: 'log_level: loud' is not allowed"));
  EXPECT_EQ(ErrorOf("\ncompression: yes\n"),
            "muster.yaml:2: 'compression: yes' is not allowed: give no or auto");
  EXPECT_EQ(ErrorOf("compression: auto\n"), "");
  EXPECT_THAT(ErrorOf("\nsocket: here.sock\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nstate_dir:\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nservice_user: ''\n"), StartsWith("muster.yaml:2:"));
  EXPECT_EQ(ErrorOf("node_name: ''\n"), "");
}

TEST(Config, ExitCodesAreRefusedWithTheirLineWhenTheyCannotBeMeant) {
  EXPECT_EQ(ParseConfig("exit_codes: 75=infrastructure, 143=preemption\n", "muster.yaml")->exit_codes,
            "75=infrastructure, 143=preemption");
  EXPECT_EQ(ErrorOf("exit_codes: ''\n"), "");
  for (const char* codes :
       {"75", "75=hardware", "0=user", "256=user", "75=user, 75=preemption", "75=user,"}) {
    EXPECT_THAT(
        ErrorOf(std::string("\nexit_codes: ") + codes + "\n"),
        StartsWith("muster.yaml:2: 'exit_codes: " + std::string(codes) + "' is not allowed: give CODE=CLASS"))
        << codes;
  }
}

TEST(Config, WhatHealthLooksAtIsNamesAndPaths) {
  EXPECT_EQ(
      ErrorOf("health_nics: mlx5_0, eth0\nhealth_disks: /tmp, /scratch\nhealth_timeout: 0\nkernel_log: ''\n"),
      "");
  EXPECT_THAT(ErrorOf("\nhealth_nics: a/b\n"),
              StartsWith("muster.yaml:2: 'health_nics: a/b' is not allowed"));
  EXPECT_THAT(ErrorOf("\nhealth_nics: eth0, ..\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nhealth_disks: /tmp, scratch\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nhealth_disk_free: 51\n"), StartsWith("muster.yaml:2:"));
  EXPECT_THAT(ErrorOf("\nkernel_log: kmsg\n"), StartsWith("muster.yaml:2:"));
}

TEST(Config, TheLimitOfLockedMemoryIsASize) {
  EXPECT_EQ(ErrorOf("memlock_limit: 8MiB\n"), "");
  EXPECT_EQ(ErrorOf("memlock_limit: 0\n"), "");
  EXPECT_THAT(ErrorOf("\nmemlock_limit: unlimited\n"), StartsWith("muster.yaml:2:"));
}

TEST(Config, AnEmptyRangeOfPortsIsRefusedWithALine) {
  EXPECT_THAT(ErrorOf("\nmaster_ports_first: 30000\nmaster_ports_last: 20000\n"),
              StartsWith("muster.yaml:3: master_ports_first, 30000, is above master_ports_last"));
  EXPECT_THAT(ErrorOf("master_ports_first: 30000\n"), StartsWith("muster.yaml:1:"));
}

TEST(Config, WhatIsNotYamlIsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf("port: 7000\nstore: \"open\n"), ::testing::ContainsRegex("^muster.yaml:[23]: "));
  EXPECT_THAT(ErrorOf("- port\n"), StartsWith("muster.yaml:1: expected lines of the form"));
  EXPECT_THAT(ErrorOf("port\n"), StartsWith("muster.yaml:1: expected lines of the form"));
  EXPECT_THAT(ErrorOf("? [a, b]\n: 1\n"), StartsWith("muster.yaml:1: unknown key '?'"));
}

TEST(Config, AControlCharacterIsRefusedWithItsLine) {
  EXPECT_EQ(ErrorOf(std::string("port: 7000\npor\0t: 2\n", 20)), "muster.yaml:2: control character");
  EXPECT_EQ(ErrorOf("port: 7000\r\n"), "");
}

TEST(Config, ASecondDocumentIsNotIgnored) {
  EXPECT_EQ(ErrorOf("port: 7000\n---\nprot: 7000\n"), "muster.yaml:2: a second document; the file holds one");
  EXPECT_THAT(ErrorOf("---\n---\n"), StartsWith("muster.yaml:2: a second document"));
  EXPECT_EQ(ErrorOf("# a comment\n\n---\nport: 7000\n"), "");
}

TEST(Config, TheDefaultTextParsesToTheDefaultsAndSoDoesItUncommented) {
  const std::string text = DefaultConfigText();
  const auto commented = ParseConfig(text, "muster.yaml");
  ASSERT_TRUE(commented) << commented.error().message;
  const auto open = ParseConfig(std::regex_replace(text, std::regex("\n#([a-z])"), "\n$1"), "muster.yaml");
  ASSERT_TRUE(open) << open.error().message;
  const Config defaults;
  for (const Config& config : {*commented, *open}) {
    EXPECT_EQ(config.store, defaults.store);
    EXPECT_EQ(config.node_name, "");
    EXPECT_EQ(config.store_timeout_ms, defaults.store_timeout_ms);
    EXPECT_EQ(config.chunk_bytes, defaults.chunk_bytes);
    EXPECT_EQ(config.max_shard_bytes, defaults.max_shard_bytes);
    EXPECT_EQ(config.reconnect_ms, defaults.reconnect_ms);
    EXPECT_EQ(config.progress_after_ms, defaults.progress_after_ms);
    EXPECT_EQ(config.lease_ms, defaults.lease_ms);
    EXPECT_EQ(config.log_level, defaults.log_level);
  }
}

TEST(Config, EveryKeyIsInTheDefaultTextWithAnExplanation) {
  const std::string text = DefaultConfigText();
  std::istringstream known(ErrorOf("nothing: 1").substr(ErrorOf("nothing: 1").find("are ") + 4));
  int keys = 0;
  for (std::string key; std::getline(known, key, ',');) {
    key.erase(0, key.find_first_not_of(' '));
    EXPECT_TRUE(std::regex_search(text, std::regex("\n# [A-Z][^\n]+\n#" + key + ": [^\n]+\n"))) << key;
    ++keys;
  }
  EXPECT_GE(keys, 19);
}

class ConfigFile : public ::testing::Test {
 protected:
  ConfigFile() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~ConfigFile() override {
    ::unlink((directory_ + "/muster.yaml").c_str());
    ::rmdir(directory_.c_str());
  }
  std::string directory_ = "/tmp/muster-config-XXXXXX";
};

TEST_F(ConfigFile, IsReadWithItsPathInErrors) {
  const std::string path = directory_ + "/muster.yaml";
  std::ofstream(path) << "port: 7000\n";
  EXPECT_EQ(LoadConfig(path)->port, 7000);
  std::ofstream(path) << "prot: 7000\n";
  EXPECT_THAT(LoadConfig(path).error().message, StartsWith(path + ":1: unknown key"));
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_EQ(LoadConfig(path)->port, 303);
}

TEST_F(ConfigFile, ThatIsMissingIsAnError) {
  const auto config = LoadConfig(directory_ + "/none.yaml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("No such file"));
}

TEST_F(ConfigFile, ThatIsADirectoryIsAnError) {
  const auto config = LoadConfig(directory_);
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message, HasSubstr("Is a directory"));
}

}  // namespace
}  // namespace muster
