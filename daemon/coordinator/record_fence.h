// Whose a gang's record is, and under which fence it is written. Pure: no I/O, no clock. One thread's, but for Mine().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/planted.h"
#include "ceph/catalog/fence.h"

namespace muster {

class RecordFence {
 public:
  // One compare-and-swap of the record.
  struct Advance {
    Fence from;
    Fence to;
  };
  // What became of a new term.
  struct Raised {
    bool begun = false;      // the term
    bool owed = false;       // a record was to be written meanwhile: it is now
    bool overtaken = false;  // a newer term has begun, of another coordinator
  };

  RecordFence() = default;
  ~RecordFence() { Lose(); }
  RecordFence(const RecordFence&) = delete;
  RecordFence& operator=(const RecordFence&) = delete;

  // The record is this coordinator's, and says `head`.
  void Take(const Fence& head);
  // A record of this generation is to be written. Nothing while the term is being raised: then it is owed.
  std::optional<Advance> Write(uint64_t generation);
  // A term of this coordinator's after this one. Nothing while one is being raised, and when the record is lost.
  std::optional<Advance> Raise();
  // How that has ended: `done`, or it is certain that it was not.
  Raised RaiseOver(bool done);
  // The record of this generation is in the store. True: it is news.
  bool Durable(uint64_t generation);

  // The store, or a node, knows this term. True: it is newer, and another's. While the term is being raised a newer one may be
  // this coordinator's own, which nodes have read in the record before the store has answered here.
  bool Seen(uint64_t term);
  // The store has refused what was written under `used`. True: this coordinator has moved the fence meanwhile, or is about to,
  // and is to write it again; else the record may be another's.
  [[nodiscard]] bool Moved(const Fence& used) const {
    return (used != fence_ || raising_) && !MUSTER_PLANTED(own_fence_deposes);
  }
  // True once: whose the record is, is to be found out.
  bool AskWhose();
  // It is another's, or nothing more is to be written.
  void Lose() { *lost_ = true; }

  [[nodiscard]] bool lost() const { return *lost_; }
  // Whether what is written is of any use still. The answer may be called on any thread, and after this has gone.
  [[nodiscard]] std::function<bool()> Mine() const;
  // A term is being raised: neither fence is certain to be good.
  [[nodiscard]] bool raising() const { return raising_; }
  // The newest that was ordered to be written.
  [[nodiscard]] const Fence& fence() const { return fence_; }
  [[nodiscard]] uint64_t term() const { return fence_.term; }
  // The newest generation whose record is in the store.
  [[nodiscard]] uint64_t durable() const { return durable_; }
  // Why another has the record, when Seen or Raised has said so.
  [[nodiscard]] std::string Newer() const;

 private:
  Fence fence_;
  uint64_t durable_ = 0;
  bool raising_ = false;
  bool owed_ = false;
  uint64_t newer_ = 0;  // the newest term that was seen
  bool asks_whose_ = false;
  std::shared_ptr<std::atomic<bool>> lost_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace muster
