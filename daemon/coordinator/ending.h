// When nodes are told that the gang is over, and when its job is requeued. Pure: no I/O, clock or thread.
//
// That it has succeeded is true whoever says it: that is told while the record is on its way. It is given up, or requeued, only
// behind the record that says so: should the coordinator die now, another goes on with it. While the store does not answer, the word of
// a coordinator that most of the gang follows will do, after a while.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/planted.h"

namespace muster {

class Ending {
 public:
  // The gang is over: these nodes are to be told. `at_once`: not behind the record. True: the caller is to wait from now on, until the
  // record of the end is there or WaitedLongEnough. Nodes that come later wait with the first ones.
  bool Finish(bool at_once, const std::vector<uint32_t>& nodes) {
    const bool first = !std::exchange(over_, true);
    const bool begins = first && !at_once;
    if (first) at_once_ = at_once;
    if (begins) waited_ = false;  // that wait was for the record of a requeue, which has failed
    due_.insert(nodes.begin(), nodes.end());
    return begins;
  }
  // The job is to be requeued. The caller is to wait from now on, until the record of the requeue is there or WaitedLongEnough.
  void Requeue() {
    requeue_ = true;
    waited_ = false;
  }
  // A record is in the store, which says that the gang is over, or that its job is requeued.
  void Recorded(bool finished, bool requeueing) {
    finished_ |= finished;
    requeueing_ |= requeueing;
  }
  // The wait for the record is over. False: the host has stood still, and does not know yet whom the nodes follow. It is to wait
  // once more.
  bool WaitedLongEnough(bool stood_still) {
    waited_ |= !stood_still;
    return !stood_still;
  }

  // The nodes that are to be told now, each once. `followed`: most of the gang follows this coordinator.
  std::set<uint32_t> DueFinish(bool followed) {
    if (!at_once_ && !finished_ && !(waited_ && followed) && !MUSTER_PLANTED(given_up_unrecorded)) return {};
    return std::exchange(due_, {});
  }
  // True once: the job is to be requeued now.
  bool DueRequeue(bool followed) {
    if (!requeueing_ && !(waited_ && followed)) return false;
    return std::exchange(requeue_, false);
  }
  // The record says that the gang is over.
  [[nodiscard]] bool finished() const { return finished_; }

 private:
  std::set<uint32_t> due_;  // nodes
  bool over_ = false;
  bool at_once_ = false;
  bool requeue_ = false;  // ordered, and not begun
  bool finished_ = false;
  bool requeueing_ = false;
  bool waited_ = false;
};

}  // namespace muster
