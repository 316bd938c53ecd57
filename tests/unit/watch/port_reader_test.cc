#include "daemon/watch/port_reader.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>

#include "tests/unit/health/temporary_tree.h"

namespace muster::watch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kGid = "0000:0000:0000:0000:0000:ffff:0a4d:0001";
constexpr const char* kZero = "0000:0000:0000:0000:0000:0000:0000:0000";

class PortReaderTest : public ::testing::Test {
 protected:
  // As mlx5's files look: names and forms of the kernel's.
  void Port(const std::string& device, const std::string& interface) {
    const std::string port = "sys/class/infiniband/" + device + "/ports/1/";
    const std::string net = "sys/class/net/" + interface + "/";
    tree_.Write(port + "state", "4: ACTIVE\n");
    tree_.Write(port + "phys_state", "5: LinkUp\n");
    for (int i = 0; i < 4; ++i) {
      tree_.Write(port + "gids/" + std::to_string(i),
                  std::string(i < 2 ? "fe80:0000:0000:0000:0e42:a1ff:fe12:3456" : kGid) + "\n");
      tree_.Write(port + "gid_attrs/types/" + std::to_string(i), i % 2 == 0 ? "IB/RoCE v1\n" : "RoCE v2\n");
      tree_.Write(port + "gid_attrs/ndevs/" + std::to_string(i), interface + "\n");
    }
    tree_.Write(net + "operstate", "up\n");
    tree_.Write(net + "carrier_changes", "1\n");
    tree_.Write(net + "statistics/rx_crc_errors", "0\n");
  }
  void Counters(const std::string& device, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      tree_.Write("sys/class/infiniband/" + device + "/ports/1/" + name, "7\n");
  }
  PortReader Reader(const std::string& device, const std::string& interface) {
    const auto network = roce::ParseNetwork("10.77.0.0/16");
    std::optional<roce::RdmaPort> rdma;
    if (!device.empty()) rdma = roce::RdmaPort{device, "1"};
    return {tree_.path(), {*network}, interface, rdma};
  }
  static std::vector<std::string> Names(const PortSample& sample) {
    std::vector<std::string> names;
    for (const CounterValue& counter : sample.counters)
      names.push_back(std::string(ToString(counter.count)) + " " + counter.name);
    return names;
  }

  TemporaryTree tree_;
};

const std::vector<std::string> kMlx5 = {"hw_counters/local_ack_timeout_err",
                                        "hw_counters/packet_seq_err",
                                        "hw_counters/implied_nak_seq_err",
                                        "hw_counters/roce_slow_restart",
                                        "hw_counters/out_of_sequence",
                                        "hw_counters/rnr_nak_retry_err",
                                        "hw_counters/np_cnp_sent",
                                        "hw_counters/rp_cnp_handled",
                                        "hw_counters/rx_read_requests",
                                        "counters/symbol_error",
                                        "counters/link_downed",
                                        "counters/port_xmit_wait",
                                        "counters/link_error_recovery",
                                        "counters/local_link_integrity_errors"};

TEST_F(PortReaderTest, OfMlx5ReadsLinkCountersAndTheGidOfTheFabric) {
  Port("mlx5_0", "roce0");
  Counters("mlx5_0", kMlx5);
  PortReader reader = Reader("mlx5_0", "roce0");
  EXPECT_EQ(reader.name(), "mlx5_0 port 1 (roce0)");
  const PortSample sample = reader.Read();
  EXPECT_TRUE(sample.there);
  EXPECT_EQ(sample.up, true);
  EXPECT_EQ(sample.state, "operstate up, port ACTIVE, LinkUp");
  EXPECT_EQ(sample.carrier_changes, 1U);
  EXPECT_EQ(sample.gid, kGid);
  EXPECT_EQ(sample.gid_index, 3U);  // the first of RoCE v2 with an address of the fabric
  EXPECT_THAT(
      Names(sample),
      ElementsAre("link_error rx_crc_errors", "retransmit local_ack_timeout_err", "retransmit packet_seq_err",
                  "retransmit implied_nak_seq_err", "retransmit roce_slow_restart",
                  "out_of_sequence out_of_sequence", "receiver_not_ready rnr_nak_retry_err",
                  "cnp_sent np_cnp_sent", "cnp_received rp_cnp_handled", "link_error symbol_error",
                  "link_error link_error_recovery", "link_error local_link_integrity_errors"));
}

TEST_F(PortReaderTest, OtherDriversHaveOtherNames) {
  Port("bnxt_re0", "ens1");
  Counters("bnxt_re0",
           {"hw_counters/to_retransmits", "hw_counters/seq_err_naks_rcvd", "hw_counters/rnr_naks_rcvd",
            "hw_counters/oos_drop_count", "hw_counters/tx_cnp_pkts", "hw_counters/rx_cnp_pkts"});
  EXPECT_THAT(
      Names(Reader("bnxt_re0", "ens1").Read()),
      ElementsAre("link_error rx_crc_errors", "retransmit to_retransmits", "retransmit seq_err_naks_rcvd",
                  "out_of_sequence oos_drop_count", "receiver_not_ready rnr_naks_rcvd",
                  "cnp_sent tx_cnp_pkts", "cnp_received rx_cnp_pkts"));
  Port("rxe0", "eth0");
  Counters("rxe0", {"hw_counters/rcvd_seq_err", "hw_counters/completer_retry_err",
                    "hw_counters/out_of_seq_request", "hw_counters/rcvd_rnr_err", "hw_counters/sent_pkts"});
  EXPECT_THAT(
      Names(Reader("rxe0", "eth0").Read()),
      ElementsAre("link_error rx_crc_errors", "retransmit rcvd_seq_err", "retransmit completer_retry_err",
                  "out_of_sequence out_of_seq_request", "receiver_not_ready rcvd_rnr_err"));
}

TEST_F(PortReaderTest, WithoutCountersAndWithoutRdmaThereIsTheLink) {
  Port("siw0", "eth0");
  EXPECT_EQ(Reader("siw0", "eth0").Read().up, true);
  PortReader plain = Reader("", "eth0");
  EXPECT_EQ(plain.name(), "eth0");
  tree_.Write("sys/class/net/eth0/operstate", "lowerlayerdown\n");
  const PortSample sample = plain.Read();
  EXPECT_EQ(sample.up, false);
  EXPECT_EQ(sample.state, "operstate lowerlayerdown");
  EXPECT_EQ(sample.gid, "");
  tree_.Write("sys/class/net/eth0/operstate", "unknown\n");
  EXPECT_EQ(plain.Read().up, std::nullopt);
}

TEST_F(PortReaderTest, WhatHasChangedIsReadThroughTheOpenFiles) {
  Port("mlx5_0", "roce0");
  Counters("mlx5_0", {"hw_counters/out_of_sequence"});
  PortReader reader = Reader("mlx5_0", "roce0");
  reader.Read();
  const uint64_t calls = reader.calls();
  Counters("mlx5_0", {"hw_counters/out_of_sequence"});
  tree_.Write("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence", "1234567890123\n");
  tree_.Write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  tree_.Write("sys/class/infiniband/mlx5_0/ports/1/phys_state", "3: Disabled\n");
  const PortSample sample = reader.Read();
  EXPECT_EQ(sample.counters.back().value, 1'234'567'890'123U);
  EXPECT_EQ(sample.up, false);
  EXPECT_EQ(sample.state, "operstate up, port DOWN, Disabled");
  EXPECT_EQ(reader.calls() - calls, 9U);  // two directories, seven files
}

TEST_F(PortReaderTest, RubbishInAFileIsLeftOut) {
  Port("mlx5_0", "roce0");
  PortReader reader = Reader("mlx5_0", "roce0");
  for (const std::string& text :
       {std::string("N/A\n"), std::string(""), std::string("-1\n"), std::string("99999999999999999999999\n"),
        std::string("12 34\n"), std::string("0x10\n"), std::string("\0\n", 2), std::string(4096, '9')}) {
    for (const char* name : {"hw_counters/out_of_sequence", "state", "phys_state", "gids/3"})
      tree_.Write(std::string("sys/class/infiniband/mlx5_0/ports/1/") + name, text);
    for (const char* name : {"statistics/rx_crc_errors", "carrier_changes"})
      tree_.Write(std::string("sys/class/net/roce0/") + name, text);
    PortWatch watch("p");
    const PortSample sample = reader.Read();
    EXPECT_THAT(sample.counters, IsEmpty()) << text;
    EXPECT_EQ(sample.up, true) << text;  // by operstate alone
    EXPECT_EQ(sample.carrier_changes, std::nullopt) << text;
    watch.Take(sample, 1);
    watch.Take(sample, 2);
    EXPECT_EQ(watch.Sick(3), "");
  }
}

TEST_F(PortReaderTest, APortThatVanishesAndComesBackIsReadAnew) {
  Port("mlx5_0", "roce0");
  Counters("mlx5_0", {"hw_counters/out_of_sequence"});
  PortReader reader = Reader("mlx5_0", "roce0");
  EXPECT_TRUE(reader.Read().there);
  std::filesystem::rename(tree_ / "sys/class/infiniband/mlx5_0", tree_ / "away");
  EXPECT_FALSE(reader.Read().there);
  EXPECT_FALSE(reader.Read().there);
  Port("mlx5_0", "roce0");
  Counters("mlx5_0", {"hw_counters/out_of_sequence"});
  tree_.Write("sys/class/infiniband/mlx5_0/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
  tree_.Write("sys/class/infiniband/mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
  const PortSample sample = reader.Read();
  EXPECT_TRUE(sample.there);
  EXPECT_EQ(sample.counters.back().value, 7U);
  EXPECT_EQ(sample.gid, "0000:0000:0000:0000:0000:ffff:0a4d:0002");
  EXPECT_EQ(sample.gid_index, 3U);
  EXPECT_EQ(sample.gid_moved_to, std::nullopt);
}

TEST_F(PortReaderTest, TheGidThatProgramsUseIsWatched) {
  Port("mlx5_0", "roce0");
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  tree_.Write(port + "gids/1", "fd00:0077:0000:0000:0000:0000:0000:0001\n");
  tree_.Write(port + "gids/4", "0000:0000:0000:0000:0000:ffff:0a4d:0009\n");
  tree_.Write(port + "gid_attrs/types/4", "RoCE v2\n");
  tree_.Write(port + "gid_attrs/ndevs/4", "roce0.100\n");  // a VLAN shares the port
  tree_.Write("sys/class/net/roce0.100/operstate", "up\n");
  const std::vector<roce::Network> networks{*roce::ParseNetwork("fd00:77::/64"),
                                            *roce::ParseNetwork("10.77.0.0/16")};
  const auto index = [&](const std::string& interface) {
    return PortReader(tree_.path(), networks, interface, roce::RdmaPort{"mlx5_0", "1"}).Read().gid_index;
  };
  EXPECT_EQ(index("roce0"), 3U) << "of IPv4, as `muster net show` and NCCL choose";
  EXPECT_EQ(index("roce0.100"), 4U);
}

TEST_F(PortReaderTest, AGidThatHasMovedIsFound) {
  Port("mlx5_0", "roce0");
  PortReader reader = Reader("mlx5_0", "roce0");
  reader.Read();
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  tree_.Write(port + "gids/3", std::string(kZero) + "\n");
  tree_.Write(port + "gids/2", std::string(kZero) + "\n");
  EXPECT_EQ(reader.Read().gid_moved_to, std::nullopt);
  tree_.Write(port + "gids/5", std::string(kGid) + "\n");
  tree_.Write(port + "gids/4", std::string(kGid) + "\n");
  tree_.Write(port + "gid_attrs/types/4", "IB/RoCE v1\n");
  tree_.Write(port + "gid_attrs/types/5", "RoCE v2\n");
  EXPECT_EQ(reader.Read().gid_moved_to, 5U);
}

TEST_F(PortReaderTest, PausesAreFoundUnderEachDriversNames) {
  const PauseColumns mlx5 =
      FindPauses({"rx_packets", "rx_prio3_pause", "rx_prio3_pause_duration", "tx_prio3_pause",
                  "tx_pause_storm_warning_events", "rx_prio3_pause_transition", "tx_pause_ctrl_phy"});
  EXPECT_THAT(mlx5.received, ElementsAre(1U));
  EXPECT_THAT(mlx5.sent, ElementsAre(3U, 6U));
  const PauseColumns bnxt =
      FindPauses({"rx_pause_frames", "rx_pfc_frames", "tx_pfc_ena_frames_pri3", "tx_pfc_frames"});
  EXPECT_THAT(bnxt.received, ElementsAre(0U, 1U));
  EXPECT_THAT(bnxt.sent, ElementsAre(2U, 3U));
  EXPECT_THAT(FindPauses({"", "pause"}).sent, IsEmpty());
}

// What the driver says of an interface that every host has.
TEST(PortReaderOfThisHost, TheLoopbackHasNoPausesAndNoHarm) {
  PortReader reader("", {}, "lo", std::nullopt);
  EXPECT_TRUE(reader.Read().there);
  EXPECT_FALSE(PortReader("", {}, "none0", std::nullopt).Read().there);
}

TEST_F(PortReaderTest, EightPortsCostFewSystemCalls) {
  std::vector<PortReader> readers;
  for (int i = 0; i < 8; ++i) {
    const std::string device = "mlx5_" + std::to_string(i);
    const std::string interface = "roce" + std::to_string(i);
    Port(device, interface);
    Counters(device, kMlx5);
    readers.push_back(Reader(device, interface));
    readers.back().Read();
  }
  uint64_t calls = 0;
  for (PortReader& reader : readers) {
    const uint64_t before = reader.calls();
    reader.Read();
    calls += reader.calls() - before;
  }
  const double per_second = static_cast<double>(calls + 3) / 2;  // with a third of eight questions of ethtool
  std::printf("watch_reads_per_s %.1f\n", per_second);
  RecordProperty("watch_reads_per_s", std::to_string(per_second));
  EXPECT_LE(per_second, 100);
}

}  // namespace
}  // namespace muster::watch
