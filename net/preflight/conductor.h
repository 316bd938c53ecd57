// Has pairs of nodes measure, all at the same time, and hears what they have measured.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "net/preflight/blame.h"
#include "net/preflight/roll.h"

namespace muster::preflight {

// One direction of a pair on a rail; nodes by their place among those that came.
struct Leg {
  uint32_t rail = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};

struct MeasuredLeg {
  Leg leg;
  Measured measured;
};

// Not thread-safe. A node that ends, does not obey, or does not answer is marked as gone.
class Conductor {
 public:
  // `late`: how much longer than its measurement a node may take to answer.
  Conductor(std::vector<Node>& nodes, std::chrono::milliseconds late) : nodes_(nodes), late_(late) {}

  // Of legs in which no link has two measurements of one direction; without those of which a node is gone.
  std::vector<MeasuredLeg> Measure(const std::vector<Leg>& legs, std::chrono::milliseconds duration);

 private:
  struct Open {
    MeasuredLeg leg;
    bool sent = false;  // what its two ends have answered
    bool received = false;
  };

  void Order(const Leg& leg, uint64_t id, std::chrono::milliseconds duration, bool sends);
  void Hear(Node& node, std::map<uint64_t, Open>& open);
  [[nodiscard]] bool Takes(const Leg& leg) const;
  [[nodiscard]] bool Verbs(const Leg& leg) const;
  [[nodiscard]] int64_t Rate(const Leg& leg) const;
  [[nodiscard]] bool Done(const std::map<uint64_t, Open>& open) const;

  std::vector<Node>& nodes_;
  std::chrono::milliseconds late_;
  uint64_t next_id_ = 1;
};

}  // namespace muster::preflight
