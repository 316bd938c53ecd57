#include "tests/sim/coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {
namespace {

constexpr std::array kEventNames = {"NodeJoined",   "NodeLeft", "NodeSilent", "NodeSick",      "DrainNode",
                                    "NodeReturned", "Executed", "Exited",     "Stopped",       "Exiting",
                                    "Terminating",  "Hung",     "Progressed", "Committed",     "BadCheckpt",
                                    "JobFacts",     "EndNear",  "EndMoved",   "RequeueFailed", "AbsentProbed",
                                    "LinksTested",  "Leads",    "TimerFired"};
constexpr std::array kActionNames = {
    "StartGeneration", "TestLinks", "StopGeneration",   "FinishGang", "Persist",      "ReportToJob", "Note",
    "TellMembers",     "SetTimer",  "RejectCheckpoint", "LoseNode",   "DrainInSlurm", "RequeueJob"};
constexpr std::array kLeaseNames = {
    "attended", "fence",   "abandoned",   "claim",  "take over",        "successor",  "stop ordered", "heard",
    "silent",   "stopped", "lost quorum", "quorum", "confirm in store", "term spent", "deposed"};

}  // namespace

void Coverage::Gang(gang::State before, const gang::Event& event, gang::State after,
                    const std::vector<gang::Action>& actions) {
  ++handled_[static_cast<size_t>(before)][event.index()];
  if (before != after) ++moves_[static_cast<size_t>(before)][static_cast<size_t>(after)];
  for (const gang::Action& action : actions) ++actions_[action.index()];
}

void Coverage::Fault(const char* name) {
  const auto found =
      std::find_if(faults_.begin(), faults_.end(), [&](const auto& f) { return f.first == name; });
  if (found == faults_.end()) {
    faults_.emplace_back(name, 1);
  } else {
    ++found->second;
  }
}

void Coverage::Schedule(uint64_t events, uint64_t generations, bool succeeded) {
  ++schedules_;
  events_ += events;
  generations_ += generations;
  succeeded_ += succeeded ? 1 : 0;
}

size_t Coverage::Pairs() const {
  size_t pairs = 0;
  for (const auto& row : handled_) {
    pairs += static_cast<size_t>(std::count_if(row.begin(), row.end(), [](uint64_t n) { return n > 0; }));
  }
  return pairs;
}

std::string Coverage::Text() const {
  std::string text = fmt::format("{} schedules, {} events, {} generations, {} gangs succeeded\n", schedules_,
                                 events_, generations_, succeeded_);
  text += fmt::format("\n{:16}", "state x event");
  for (size_t state = 0; state < kStates; ++state)
    text += fmt::format("{:>12}", gang::ToString(static_cast<gang::State>(state)));
  for (size_t event = 0; event < kEvents; ++event) {
    text += fmt::format("\n{:16}", kEventNames[event]);
    for (size_t state = 0; state < kStates; ++state) text += fmt::format("{:12}", handled_[state][event]);
  }
  text += fmt::format("\n{} of {} pairs\n\ntransitions:\n", Pairs(), kStates * kEvents);
  for (size_t from = 0; from < kStates; ++from) {
    for (size_t to = 0; to < kStates; ++to) {
      if (moves_[from][to] == 0) continue;
      text += fmt::format("  {} -> {}: {}\n", gang::ToString(static_cast<gang::State>(from)),
                          gang::ToString(static_cast<gang::State>(to)), moves_[from][to]);
    }
  }
  text += "actions:\n";
  for (size_t i = 0; i < kActions; ++i) text += fmt::format("  {}: {}\n", kActionNames[i], actions_[i]);
  text += "leases:\n";
  for (size_t i = 0; i < kLeaseEvents; ++i) text += fmt::format("  {}: {}\n", kLeaseNames[i], lease_[i]);
  text += "faults:\n";
  for (const auto& [name, count] : faults_) text += fmt::format("  {}: {}\n", name, count);
  return text;
}

std::string Coverage::Missing() const {
  std::string missing;
  for (size_t i = 0; i < kActions; ++i) {
    if (actions_[i] == 0) missing += fmt::format("action {}\n", kActionNames[i]);
  }
  for (size_t i = 0; i < kLeaseEvents; ++i) {
    // Two nodes only; a lease test has it.
    if (lease_[i] == 0 && static_cast<lease::EventKind>(i) != lease::EventKind::kClaim)
      missing += fmt::format("lease event {}\n", kLeaseNames[i]);
  }
  for (size_t state = 0; state < kStates; ++state) {
    if (std::all_of(handled_[state].begin(), handled_[state].end(), [](uint64_t n) { return n == 0; }))
      missing += fmt::format("state {}\n", gang::ToString(static_cast<gang::State>(state)));
  }
  for (size_t event = 0; event < kEvents; ++event) {
    if (std::all_of(handled_.begin(), handled_.end(), [&](const auto& row) { return row[event] == 0; }))
      missing += fmt::format("event {}\n", kEventNames[event]);
  }
  constexpr size_t kFloor = 60;
  if (Pairs() < kFloor)
    missing += fmt::format("{} pairs of state and event, and {} are the least\n", Pairs(), kFloor);
  return missing;
}

}  // namespace muster::sim
