#include "daemon/agent/node_health.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace muster {
namespace {

constexpr auto kFresh = std::chrono::seconds(1);

}  // namespace

NodeHealth::NodeHealth(Loop& loop, HealthOptions options, Checker checker)
    : loop_(loop), options_(std::move(options)), checker_(std::move(checker)) {}

void NodeHealth::Check(Done done) {
  if (!checking_ && checked_ && loop_.Now() - last_at_ < kFresh) {
    loop_.Post([done = std::move(done), report = last_] { done(report); });
    return;
  }
  CheckAnew(std::move(done));
}

void NodeHealth::CheckAnew(Done done) {
  waiting_.push_back(std::move(done));
  if (std::exchange(checking_, true)) return;
  worker_.Do([this, alive = std::weak_ptr<int>(alive_), checker = checker_, options = options_,
              mailbox = loop_.mailbox()] {
    mailbox->Post([this, alive, report = checker(options)] {
      if (!alive.expired()) Finished(report);
    });
  });
}

void NodeHealth::Finished(const HealthReport& report) {
  checking_ = false;
  checked_ = true;
  last_ = report;
  last_at_ = loop_.Now();
  options_.last_counters = report.counters;
  for (const HealthFinding& finding : report.findings) {
    spdlog::warn("this node: {} {}{}", finding.subject, finding.what,
                 finding.severity == HealthSeverity::kSick ? "; no gang may run here" : "");
  }
  for (const Done& done : std::exchange(waiting_, {})) done(report);
}

}  // namespace muster
