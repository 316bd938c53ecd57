// Which states, transitions and orders the schedules have reached.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "daemon/gang/gang.h"
#include "daemon/lease/types.h"

namespace muster::sim {

class Coverage {
 public:
  void Gang(gang::State before, const gang::Event& event, gang::State after,
            const std::vector<gang::Action>& actions);
  void Lease(lease::EventKind kind) { ++lease_[static_cast<size_t>(kind)]; }
  void Fault(const char* name);
  void Schedule(uint64_t events, uint64_t generations, bool succeeded);

  // A table for people.
  [[nodiscard]] std::string Text() const;
  // What is below the floor, or "".
  [[nodiscard]] std::string Missing() const;

 private:
  static constexpr size_t kStates = 8;
  static constexpr size_t kEvents = std::variant_size_v<gang::Event>;
  static constexpr size_t kActions = std::variant_size_v<gang::Action>;
  static constexpr size_t kLeaseEvents = 15;
  [[nodiscard]] size_t Pairs() const;

  std::array<std::array<uint64_t, kEvents>, kStates> handled_{};
  std::array<std::array<uint64_t, kStates>, kStates> moves_{};
  std::array<uint64_t, kActions> actions_{};
  std::array<uint64_t, kLeaseEvents> lease_{};
  std::vector<std::pair<const char*, uint64_t>> faults_;
  uint64_t schedules_ = 0;
  uint64_t events_ = 0;
  uint64_t generations_ = 0;
  uint64_t succeeded_ = 0;
};

}  // namespace muster::sim
