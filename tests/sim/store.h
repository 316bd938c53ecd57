// The store: a gang's head with its fence, changed by compare-and-swap, and the checkpoints. It is slow, it cannot be
// reached, and it loses answers: then nobody knows whether a change was made.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ceph/catalog/fence.h"
#include "daemon/coordinator/record.h"
#include "tests/sim/world.h"

namespace muster::sim {

// What a coordinator makes one of.
struct Checkpoint {
  uint64_t step = 0;
  uint64_t generation = 0;    // whose members have saved it
  std::set<uint32_t> shards;  // by rank
  bool again = false;         // the one before may have been carried out
};

// Which of a step's checkpoints it is.
std::string ManifestOf(uint64_t step, const Fence& fence);

class Store {
 public:
  enum class Answer { kDone, kConflict, kNone };

  struct Head {
    Fence fence;
    std::shared_ptr<const GangRecord> record;  // null: there is no head
    std::map<uint64_t, Fence> checkpoints;     // good ones, by step
    [[nodiscard]] std::optional<uint64_t> Latest() const {
      return checkpoints.empty() ? std::nullopt : std::optional(checkpoints.rbegin()->first);
    }
  };

  Store(World& world, size_t hosts) : world_(world), cut_(hosts) {}

  // Asks from `host`: `change` is made at the store (false: it does not apply), `answer` comes back, perhaps as kNone
  // although the change was made.
  void Ask(uint32_t host, std::function<bool(Head&)> change, std::function<void(Answer, const Head&)> answer);
  // As Catalog::Commit: only by the fence that the head has. `kept`: steps that stay beside the newest.
  bool Commit(Head& head, const Fence& fence, const Checkpoint& checkpoint, const std::set<uint64_t>& kept);
  // As Catalog::MarkBad: only by the fence that the head has, and only this one of the step's.
  bool MarkBad(Head& head, const Fence& fence, uint64_t step, const std::string& manifest);
  [[nodiscard]] bool IsBad(uint64_t step) const { return bad_.contains(step); }

  void SetReachable(uint32_t host, bool reachable) { cut_[host] = !reachable; }
  void SetDown(bool down) { down_ = down; }
  void SetSlow(double part) { slow_ = part; }
  void SetForgetful(double part) { forgetful_ = part; }  // of the answers
  void Heal();
  [[nodiscard]] const Head& head() const { return head_; }
  [[nodiscard]] bool down() const { return down_; }

 private:
  World& world_;
  Head head_;
  std::vector<bool> cut_;
  bool down_ = false;
  double slow_ = 0;
  double forgetful_ = 0;
  std::set<uint64_t> bad_;                                // steps
  std::map<std::pair<uint64_t, uint64_t>, int> commits_;  // by generation and step
};

}  // namespace muster::sim
