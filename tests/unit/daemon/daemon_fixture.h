// Tests with daemons on up to two nodes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "daemon/agent/port_lease.h"
#include "daemon/metrics/metrics_text.h"
#include "tests/support/virtual_clock.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/daemon/daemon_rig.h"

namespace muster {

// As musterd has them: over gRPC, with MUNGE. Where these are not built (under the sanitizers), joined in the process. For the
// daemon of `node` at `address` ("host:port").
TestLinks LinksOf(const std::string& node, const std::string& address);
// Why there are none: "" when there are. Before other threads.
std::string LinksProblem();

// A test with links, a store and a port that are free, and no daemon yet. Skipped where there are no links.
class DaemonFixture : public ::testing::Test {
 protected:
  void SetUp() override;
  // Node 0 is n1, node 1 is n2. Where both are, the second coordinates: the batch host is the last candidate.
  void StartDaemon(uint32_t node, const EngineOptions& engine = {});
  // What Prometheus is told of a job's gang, as soon as its coordinator has the record.
  GangMetrics Told(uint32_t job);

  AheadClock clock_;  // of the daemons' timers
  TemporaryDirectory directory_;
  std::shared_ptr<Store> store_;  // of daemons that are started from now on; null: a directory
  std::optional<PortLease> lease_;
  std::unique_ptr<TestDaemon> daemons_[2];
};

// With a daemon on each of the two nodes.
class TwoDaemons : public DaemonFixture {
 protected:
  void SetUp() override;
};

}  // namespace muster
