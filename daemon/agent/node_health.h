// Whether this node is well: daemon/health, asked without blocking, and not more often than it is worth.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/loop.h"
#include "base/worker.h"
#include "daemon/health/check.h"

namespace muster {

// On the loop's thread.
class NodeHealth {
 public:
  using Done = std::function<void(const HealthReport&)>;
  // Of the node; tests give another.
  using Checker = std::function<HealthReport(const HealthOptions&)>;

  NodeHealth(Loop& loop, HealthOptions options, Checker checker = CheckNode);

  // Calls `done` on the loop, after it has returned. Who asks while a check is under way gets its result; an answer
  // counts for a second.
  void Check(Done done);
  // After a fault: an earlier answer does not count.
  void CheckAnew(Done done);
  // By the newest check, however old; nothing before the first.
  [[nodiscard]] std::optional<bool> healthy() const {
    return checked_ ? std::optional(!last_.sick()) : std::nullopt;
  }

 private:
  void Finished(const HealthReport& report);

  Loop& loop_;
  HealthOptions options_;
  Checker checker_;
  std::vector<Done> waiting_;
  bool checking_ = false;
  HealthReport last_;
  std::chrono::steady_clock::time_point last_at_;
  bool checked_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace muster
