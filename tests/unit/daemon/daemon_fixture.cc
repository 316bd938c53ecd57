#include "tests/unit/daemon/daemon_fixture.h"

#include <fmt/format.h>

#include <utility>

namespace muster {

void DaemonFixture::SetUp() {
  if (const std::string problem = LinksProblem(); !problem.empty()) GTEST_SKIP() << problem;
  auto lease = PortLease::Take(18'000, 18'999, 1);
  ASSERT_TRUE(lease) << lease.error().message;
  lease_ = *std::move(lease);
}

void DaemonFixture::StartDaemon(uint32_t node, const EngineOptions& engine) {
  const std::string name = fmt::format("n{}", node + 1);
  const std::string host = fmt::format("127.0.0.{}", node + 1);
  daemons_[node] = std::make_unique<TestDaemon>(name, host, lease_->port(), directory_.path(), engine, store_,
                                                LinksOf(name, fmt::format("{}:{}", host, lease_->port())),
                                                std::nullopt, clock_);
}

void TwoDaemons::SetUp() {
  DaemonFixture::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  StartDaemon(0);
  StartDaemon(1);
}

}  // namespace muster
