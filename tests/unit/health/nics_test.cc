#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/health/recorder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Nics : public ::testing::Test {
 protected:
  std::vector<std::string> Check() {
    Recorder recorder;
    CheckNics(options_, recorder.findings);
    options_.last_counters = recorder.counters;
    return recorder.texts;
  }
  void Port(const std::string& device, int port, bool up, int symbol_errors = 0) const {
    const std::string base = fmt::format("sys/class/infiniband/{}/ports/{}", device, port);
    tree_.Write(base + "/state", up ? "4: ACTIVE\n" : "1: DOWN\n");
    tree_.Write(base + "/phys_state", up ? "5: LinkUp\n" : "3: Disabled\n");
    tree_.Write(base + "/counters/symbol_error", std::to_string(symbol_errors) + "\n");
    tree_.Write(base + "/counters/port_xmit_wait", "999\n");
  }
  void Interface(const std::string& name, const std::string& state, const std::string& carrier,
                 int crc = 0) const {
    tree_.Write("sys/class/net/" + name + "/operstate", state + "\n");
    tree_.Write("sys/class/net/" + name + "/carrier", carrier);
    tree_.Write("sys/class/net/" + name + "/statistics/rx_crc_errors", std::to_string(crc) + "\n");
  }
  TemporaryTree tree_;
  HealthOptions options_ = QuietOptions(tree_);
};

TEST_F(Nics, ThatAreUpAreNoFinding) {
  Port("rdma0", 1, true);
  Interface("eth0", "up", "1\n");
  Interface("tun0", "unknown", "1\n");
  options_.nics = {"rdma0", "eth0", "tun0"};
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Nics, ThatAreNamedMustBeUp) {
  Port("rdma0", 1, false);
  Interface("eth0", "down", "");
  Interface("eth1", "up", "0\n");
  options_.nics = {"rdma0", "eth0", "eth1", "gone0"};
  EXPECT_THAT(Check(),
              ElementsAre("SICK nic rdma0 is not up: state DOWN, physical state Disabled",
                          "SICK nic eth0 is not up: state down, carrier off",
                          "SICK nic eth1 is not up: state up, carrier 0", "SICK nic gone0 is not there"));
}

TEST_F(Nics, APortThatNobodyNamedIsSickOnlyWhenItWasUpBefore) {
  Port("mlx5_0", 1, true);
  Port("mlx5_0", 2, false);
  EXPECT_THAT(Check(), IsEmpty());
  Port("mlx5_0", 1, false);
  EXPECT_THAT(Check(), ElementsAre("SICK nic mlx5_0 port 1 is not up: state DOWN, physical state Disabled"));
  EXPECT_THAT(Check(), ::testing::SizeIs(1)) << "it is still down";
  Port("mlx5_0", 1, true);
  EXPECT_THAT(Check(), IsEmpty());
}

TEST_F(Nics, LinkErrorsSinceTheLastCheckAreAWarning) {
  Port("rdma0", 1, true, 100);
  Interface("eth0", "up", "1\n", 5);
  options_.nics = {"eth0"};
  EXPECT_THAT(Check(), IsEmpty()) << "how old these are nobody knows";
  EXPECT_THAT(Check(), IsEmpty());
  Port("rdma0", 1, true, 130);
  Interface("eth0", "up", "1\n", 6);
  EXPECT_THAT(Check(), ElementsAre("warning nic eth0 counted 1 more rx_crc_errors since the last check",
                                   "warning nic rdma0 counted 30 more symbol_error since the last check"));
  EXPECT_THAT(Check(), IsEmpty());
}

}  // namespace
}  // namespace muster
