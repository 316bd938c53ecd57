// What a node has been told by its gang's coordinators, and so what may run there. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/planted.h"

namespace muster {

class Orders {
 public:
  // What was obeyed before musterd was restarted.
  void Restore(uint64_t term, uint64_t started, std::optional<uint64_t> from) {
    term_ = term;
    started_ = started;
    from_ = from;
  }

  // Whether an order of this term is carried out. 0: it is none.
  [[nodiscard]] bool Obeys(uint64_t term) const {
    return term == 0 || term >= term_ || MUSTER_PLANTED(stale_term);
  }
  // True: it is higher than all before. Stops that a coordinator before ordered bind this one no more: it may not know their
  // numbers.
  bool Adopt(uint64_t term) {
    if (term <= term_) return false;
    term_ = term;
    if (stop_ > 0 && !MUSTER_PLANTED(old_stops_bind)) stop_ = 0;
    said_stopped_.reset();
    said_exiting_ = false;
    return true;
  }
  // False: an older order than one that was carried out. Every other is answered: another coordinator may be asking.
  bool Stop(uint64_t generation) {
    if (generation < stop_) return false;
    stop_ = generation;
    said_stopped_.reset();
    said_exiting_ = false;
    return true;
  }
  // Whether a generation has not been stopped.
  [[nodiscard]] bool MayRun(uint64_t generation) const { return generation > stop_; }
  // This node is a part of a generation, which starts from the checkpoint `from`. True: it is news.
  bool Start(uint64_t generation, std::optional<uint64_t> from) {
    if (started_ == generation) return false;
    started_ = generation;
    from_ = from;
    return true;
  }

  // The coordinator is to be told, once an order, that nothing of what was stopped runs any more.
  [[nodiscard]] bool OwesStopped() const { return stop_ != 0 && said_stopped_ != stop_; }
  void SaidStopped() { said_stopped_ = stop_; }
  // And, once an order, that SIGKILL has ended all of it, and some has not gone yet. True: that is news.
  bool SayExiting() { return !std::exchange(said_exiting_, true); }
  // And, once a generation, that all members have been exec'd.
  [[nodiscard]] bool OwesExecuted(uint64_t generation) const { return said_executed_ != generation; }
  void SaidExecuted(uint64_t generation) { said_executed_ = generation; }

  [[nodiscard]] uint64_t term() const { return term_; }     // the highest that has been obeyed
  [[nodiscard]] uint64_t stopped() const { return stop_; }  // generations up to this one must not run
  [[nodiscard]] std::optional<uint64_t> said_stopped() const { return said_stopped_; }
  // The newest generation that this node has been a part of, and what it started from: a coordinator that takes over may not
  // know of it yet.
  [[nodiscard]] uint64_t started() const { return started_; }
  [[nodiscard]] std::optional<uint64_t> from() const { return from_; }

 private:
  uint64_t term_ = 0;
  uint64_t stop_ = 0;
  std::optional<uint64_t> said_stopped_;
  bool said_exiting_ = false;
  uint64_t said_executed_ = 0;
  uint64_t started_ = 0;
  std::optional<uint64_t> from_;
};

}  // namespace muster
