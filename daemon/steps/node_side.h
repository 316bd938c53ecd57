// A node's part in what members are asked at a step (daemon/steps/agreement.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "daemon/proto/muster.pb.h"
#include "wire/step_page.h"

namespace muster::steps {

// On one thread.
class NodeSide {
 public:
  // What must outlive a restart of musterd.
  struct Kept {
    uint64_t generation = 0;
    v1::StepOrder order;  // the newest that was carried out
    uint64_t asked = 0;   // the number of the newest that asked: lower ones are carried out no more
    std::set<uint32_t>
        opened;  // ranks whose programs have pages, and have not ended: they may have entered steps
  };
  struct Hooks {
    std::function<void(const v1::StepAnswer&)> answer;
    std::function<void(const v1::StepNews&)> news;
    // Writes kept() where the next musterd finds it. False: it could not; nothing is done then, and it is tried again.
    // `again`: it could not the last time either, and has said so.
    std::function<bool(bool again)> keep;
    std::function<int64_t()> now;  // CLOCK_MONOTONIC, nanoseconds
    std::function<void(int64_t ms, std::function<void()>)> after;
  };
  explicit NodeSide(Hooks hooks) : hooks_(std::move(hooks)) {}

  // What the musterd before this one has kept. Before all else.
  void Restore(Kept kept);
  [[nodiscard]] const Kept& kept() const { return kept_; }
  // `ranks` of the generation are here. Again of the same generation: nothing.
  void Begin(uint64_t generation, const std::set<uint32_t>& ranks);

  // A program has handed its page over. It enters no step before it is told that this has been done; false: it cannot be, for
  // it could not be kept that it may.
  [[nodiscard]] bool Attend(uint32_t rank, std::shared_ptr<wire::StepPage> page);
  // A program has ended, or its handle was closed: nobody waits for what it enters. Another one may come.
  void Ended(uint64_t generation, uint32_t rank);
  // Of programs that have not ended, by rank.
  [[nodiscard]] std::map<uint32_t, std::shared_ptr<wire::StepPage>> pages() const;

  void Take(const v1::StepOrder& order);

 private:
  struct Member {
    std::shared_ptr<wire::StepPage> page;  // also of a program that has ended: what it has entered stays true
    bool unheard = false;                  // a page that it shared with the musterd before this one
    bool ended = false;
    uint64_t above = 0;               // on pages that it had before
    uint64_t passed = wire::kNoStep;  // that was told
    bool told_back = false;
  };

  [[nodiscard]] bool Keep();
  void Answer();
  void Tick();
  void TellNews(uint32_t rank, Member& member);
  [[nodiscard]] wire::StepOrder OnPage() const;
  [[nodiscard]] static uint64_t AboveOf(const Member& member);

  Hooks hooks_;
  Kept kept_;
  bool begun_ = false;
  bool to_keep_ = false;  // kept_ has changed, and that has time
  bool unkept_ = false;   // it could not be kept the last time
  v1::StepOrder early_;   // of a generation that has not begun here yet, or that could not be kept
  std::map<uint32_t, Member> members_;  // by rank
  std::shared_ptr<int> ticking_;
};

}  // namespace muster::steps
