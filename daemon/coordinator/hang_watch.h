// Members that do not get on: what their nodes report goes to the detector; on its verdict every member's stacks are asked for, and
// then the hang is told.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/timer.h"
#include "daemon/gang/events.h"
#include "daemon/hang/detector.h"
#include "daemon/hang/stragglers.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

// On the loop's thread only.
class HangWatch {
 public:
  struct Settings {
    hang::Settings hang;
    std::chrono::milliseconds stacks_within;  // what has come by then is shown
  };
  struct Hooks {
    // Asks the nodes of a generation's members for the members' stacks. Gives the nodes that were asked.
    std::function<std::set<uint32_t>(uint64_t generation)> capture;
    std::function<void(const std::string& kind, const std::string& text)> note;
    // `rank`: the first of those that hang.
    std::function<void(gang::Hung hung, uint32_t rank)> hung;
  };
  HangWatch(Loop& loop, const Settings& settings, Hooks hooks);
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

  // All members of this generation run, just now, or (not `whole`) since a time that nobody knows.
  void Begin(uint64_t generation, const std::vector<hang::Member>& members, bool whole = true);
  // The generation runs no more. What is known of its members stays until Forget, because members end one after another.
  void End();
  // There is another generation, which does not run yet.
  void Forget() { detector_.Forget(); }

  // `committing`: a checkpoint is being committed, and a member that waits for it waits for the store, not for another member. Gives
  // the highest step that a member reports.
  uint64_t Take(const v1::MemberReports& reports, bool committing);
  void Take(const v1::Stacks& stacks, uint32_t node);
  // Its program has exited 0.
  void Exited(uint32_t rank);

  // What another coordinator's HangWatch has learned: of this gang, or (not `same_gang`) of an earlier run of its job.
  void Remember(const std::map<std::string, hang::SeenStarts>& starts, bool same_gang) {
    detector_.Remember(starts, same_gang);
  }
  [[nodiscard]] std::map<std::string, hang::SeenStarts> Starts() const { return detector_.Starts(); }
  // Whether Starts() has changed so that the record is to be written again.
  bool TakeLearned() { return detector_.TakeLearned(); }

  [[nodiscard]] std::string WaitedFor(uint32_t ended) const { return detector_.WaitedFor(ended); }
  [[nodiscard]] std::vector<hang::Pace> Paces() const { return stragglers_.Paces(); }

 private:
  // A hang that is to be told once the members' stacks have come.
  struct Found {
    hang::Verdict verdict;
    std::set<uint32_t> due;                         // nodes
    std::map<uint32_t, v1::Stacks::Member> stacks;  // by rank
  };
  [[nodiscard]] int64_t Now() const;
  void Tick();
  void NoteStragglers();
  void Tell();

  Loop& loop_;
  const std::chrono::milliseconds stacks_within_;
  const Hooks hooks_;
  hang::Detector detector_;
  hang::Stragglers stragglers_;
  std::set<uint32_t> slow_;  // ranks that were noted and still are
  uint64_t generation_ = 0;
  Loop::TimerId tick_ = 0;  // 0: nothing runs
  std::optional<Found> found_;
  Timer stacks_timer_;
};

}  // namespace muster
