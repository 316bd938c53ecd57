// What a gang's record tells people of the gang's life: since when the gang is there, what has happened, and why it was restarted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "daemon/coordinator/record.h"

namespace muster {

class History {
 public:
  static constexpr size_t kMostEvents = 500;  // the first ones are kept, and the newest

  // `gang`: the gang's id, for the log. The gang is there from now on.
  explicit History(std::string gang) : gang_(std::move(gang)), created_ns_(RealtimeNs()) {}

  // The gang is there from now on, and not since this was made: it has waited for its record.
  void BeginNow() { created_ns_ = RealtimeNs(); }
  // The gang goes on from the record of a coordinator before this one.
  void GoOn(const GangRecord& before);
  // Logs an event, too.
  void Add(const std::string& kind, const std::string& text, uint64_t generation);
  // Why the next generation is started.
  void Fault(const std::string& what) { fault_ = restart_cause_ = what; }
  void Planned(const std::string& what) { restart_cause_ = what; }

  void WriteInto(GangRecord* record) const;
  [[nodiscard]] int64_t created_ns() const { return created_ns_; }
  // Of the newest generation: a fault, or what was planned.
  [[nodiscard]] const std::string& restart_cause() const { return restart_cause_; }

 private:
  const std::string gang_;
  int64_t created_ns_;
  std::string fault_;  // the newest
  std::string restart_cause_;
  std::vector<HistoryEvent> events_;
};

}  // namespace muster
