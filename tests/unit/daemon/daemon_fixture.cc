#include "tests/unit/daemon/daemon_fixture.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
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

GangMetrics DaemonFixture::Told(uint32_t job) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::seconds(30);
  while (steady_clock::now() < end) {
    for (const auto& daemon : daemons_) {
      if (!daemon) continue;
      const GangMetrics told = daemon->On([&]() -> GangMetrics {
        for (const auto& [gang, coordinator] : daemon->coordinators().gangs()) {
          if (gang.starts_with(fmt::format("{}.", job))) return coordinator->Metrics();
        }
        return {};
      });
      if (told.generation > 0) return told;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "no coordinator has the record of job " << job;
  return {};
}

void TwoDaemons::SetUp() {
  DaemonFixture::SetUp();
  if (IsSkipped() || HasFatalFailure()) return;
  StartDaemon(0);
  StartDaemon(1);
}

}  // namespace muster
