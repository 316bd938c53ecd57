#include "daemon/coordinator/history.h"

#include <spdlog/spdlog.h>

namespace muster {

void History::GoOn(const GangRecord& before) {
  created_ns_ = before.created_ns;
  fault_ = before.first_cause;
  restart_cause_ = before.restart_cause;
  events_ = before.events;
}

void History::Add(const std::string& kind, const std::string& text, uint64_t generation) {
  spdlog::info("gang {}: {}: {}", gang_, kind, text);
  events_.push_back({RealtimeNs(), generation, kind, text});
  // How it began matters as much as how it goes: the middle is what is dropped.
  if (events_.size() > kMostEvents) events_.erase(events_.begin() + kMostEvents / 5);
}

void History::WriteInto(GangRecord* record) const {
  record->created_ns = created_ns_;
  record->first_cause = fault_;
  record->restart_cause = restart_cause_;
  record->events = events_;
}

}  // namespace muster
