// Whether this node is well: daemon/health, asked without blocking, and not more often than it is worth.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
  // What the watch of the fabric has said last: why no gang may run here, or "".
  void FabricSaid(const std::string& sick) { fabric_sick_ = !sick.empty(); }
  // By the newest check and by the fabric, however old; nothing before one of them has said something.
  [[nodiscard]] std::optional<bool> healthy() const {
    if (fabric_sick_) return false;
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
  Loop::Time last_at_;
  bool checked_ = false;
  bool fabric_sick_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace muster
