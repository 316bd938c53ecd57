// Watches this node's members of one gang and says how far they are, once a period (every fifth while all of them make
// many steps in one): the input of Detector and Stragglers, one message a node.
//
// A member's step is read from the page that its libmuster shares (wire::StepPage): exact at any moment,
// though the program makes no system call for it. What a member's processes use is read only of those whose step
// stands still (or who have none): a gang that steps costs next to nothing.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/loop.h"
#include "base/worker.h"
#include "daemon/hang/progress_report.h"
#include "wire/step_page.h"

namespace muster::hang {

struct SamplerSettings {
  std::chrono::milliseconds period{1000};         // of reports
  std::chrono::milliseconds usage_period{5000};   // of looking at a member's processes, or longer
  std::chrono::milliseconds usage_after{10'000};  // whose step has stood still for so long
};

// For the limit of --gang=hang=DURATION or startup=DURATION (nullopt: not given): a short limit needs a closer look.
SamplerSettings SamplerSettingsFor(std::optional<std::chrono::milliseconds> limit);

struct LocalMember {
  uint32_t rank = 0;
  pid_t supervisor = 0;
};

// Lives on the loop's thread; destroy it there. `usage` is called on the worker's thread, which may be shared by
// all gangs of the node; both must outlive the sampler.
class Sampler {
 public:
  // What the process tree below a supervisor has used so far; nullopt: it cannot be read.
  using Usage = std::function<std::optional<Activity>(pid_t supervisor)>;
  using Send = std::function<void(std::vector<MemberReport>)>;

  Sampler(Loop& loop, Worker& worker, SamplerSettings settings, Usage usage, Send send);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // A generation has started here: forgets the one before and begins to send.
  void Start(const std::vector<LocalMember>& members);
  // Sends nothing until the next Start.
  void Stop();
  void MemberExited(uint32_t rank);

  // The page of that member's libmuster.
  void SetPage(uint32_t rank, std::shared_ptr<const wire::StepPage> page);
  // Its saves and restores that are on their way.
  void SetCheckpoints(uint32_t rank, uint32_t on_their_way);

  // What would be sent now, without activity: for the stop of a generation, or a question.
  [[nodiscard]] std::vector<MemberReport> Now();

 private:
  struct Watched {
    pid_t supervisor = 0;
    std::shared_ptr<const wire::StepPage> page;
    MemberReport report;               // without age and activity
    int64_t called_at = 0;             // CLOCK_MONOTONIC, of the newest call of muster_step
    int64_t still_since = 0;           // since when it has not been seen to call
    std::optional<Activity> activity;  // not sent yet
    int64_t looked_at = 0;             // at its processes, the last time
    uint64_t calls_before = 0;         // at the last tick
    bool was_held = false;             // saving or suspended then
  };
  void Tick();
  void LookAtUsage(int64_t now);
  bool IsNews(const std::vector<MemberReport>& reports);
  void TakeProgress(Watched& member, uint64_t step, uint64_t calls, int64_t at, int64_t now);
  void Refresh(int64_t now);

  Loop& loop_;
  Worker& worker_;
  SamplerSettings settings_;
  Usage usage_;
  Send send_;
  std::map<uint32_t, Watched> members_;
  Loop::TimerId timer_ = 0;
  int unsaid_ = 0;                              // ticks in a row
  int64_t usage_pause_ns_ = 0;                  // so long that looking takes a thousandth of a core at most
  uint64_t round_ = 0;                          // of Start: answers of an older one are dropped
  std::shared_ptr<std::atomic<bool>> looking_;  // the worker is at it
  std::shared_ptr<int> alive_;  // tells the worker's answers whether there is still somebody to take them
};

// Usage for Sampler, from /proc; without what GPUs do.
std::optional<Activity> ActivityBelow(pid_t supervisor);

}  // namespace muster::hang
