// Which checkpoint a generation starts from, and which nodes are to be told of its start now. Pure: no I/O, clock or thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace muster {

class RecordFence;

class Starts {
 public:
  using Step = std::optional<uint64_t>;  // of a checkpoint; none: the beginning
  // Of a generation.
  struct Prepared {
    bool anew = false;  // not there yet: the Start is to be made, and the record says what it starts from
    bool inherited = false;  // a coordinator before this one has started it
    bool again = false;      // this one has, in an earlier term
  };

  // ---- checkpoints
  // The newest that the store lists.
  void SetNewest(Step step) { newest_ = step; }
  // One has been committed by this coordinator.
  void Committed(uint64_t step) {
    newest_ = std::max(newest_, Step(step));
    if (rejecting_ > 0) meanwhile_ = std::max(meanwhile_, Step(step));
  }
  [[nodiscard]] Step newest() const { return newest_; }
  // A checkpoint is bad: nothing is started before it is marked so, and from it never again.
  void Reject(const std::string& manifest);
  [[nodiscard]] bool IsRejected(const std::string& manifest) const { return rejected_.contains(manifest); }
  // It is marked, or cannot be; `newest`: of those that the store lists then, and that are not rejected. What has been committed
  // since Reject may not be among them yet.
  void RejectOver(Step newest);

  // ---- generations
  // What a generation of a coordinator before this one has started from: its record, then its nodes know. The first word
  // counts; nothing changes once this coordinator has started one.
  void Inherit(uint64_t generation, Step from);
  // What the generation that runs has started from, as its record says.
  void SetFrom(Step from) { from_ = from; }
  [[nodiscard]] Step from() const { return from_; }

  // These nodes are to be told of the generation's start; `durable`: behind its record.
  void Order(const std::vector<uint32_t>& nodes, bool durable);
  // The generation is stopped: nobody is told any more.
  void Stop() { due_.clear(); }
  // Settles what the generation starts from, once: a node that asks again gets the same.
  Prepared Prepare(uint64_t generation, uint64_t term);
  // Whether Prepare may be called: no checkpoint is being marked.
  [[nodiscard]] bool MayPrepare() const { return rejecting_ == 0; }
  // Whether nobody has been told yet.
  [[nodiscard]] bool Waits() const { return !due_.empty(); }
  // Those that are to be told now, each once.
  std::set<uint32_t> Due(const RecordFence& fence, uint64_t generation);

 private:
  Step newest_;
  Step from_;
  std::map<uint64_t, Step> inherited_;
  std::set<std::string> rejected_;  // manifests
  uint32_t rejecting_ = 0;
  Step meanwhile_;          // committed since that is not 0
  std::set<uint32_t> due_;  // nodes
  bool durable_ = false;
  uint64_t generation_ = 0;  // that was prepared last
  uint64_t term_ = 0;
};

}  // namespace muster
