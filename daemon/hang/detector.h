// Decides whether a gang hangs, and who hangs it. Pure: no I/O, no clock, no threads; one for each gang, at its
// coordinator. docs/hangs.md explains the rules to users.
//
// A member that calls progress(step) is judged by its steps: when no member of its role has entered a step or
// said that it goes on for longer than the limit, the role hangs. The limit follows from the gang's own steps:
//
//   max(floor, factor x (median + deviations x MAD), 2 x the longest pause that ended by itself)
//
// The median and the median absolute deviation are of the last 256 steps: checkpoint and validation steps, which
// are few, do not move them; the longest pause (kept for one to two days) covers those. The floor is what keeps
// the first slow phase of a run from being taken for a hang, so it depends on what is seen: `idle_floor` (2
// minutes: above the failover of common file systems) while those that everybody waits for use no CPU, no GPU and do
// no I/O, `busy_floor` (10 minutes: what NCCL's own watchdog waits) when they do or nobody knows. Up to a
// generation's tenth step `startup` (30 minutes) counts: compilers, data sets, communicators. After a verdict the
// limit is four times as long until the gang has passed that step: a pause that was none passes at the second or third
// attempt, a true hang is still found.
//
// Before a role's first step the limit is startup=DURATION, or three times the longest start that has been seen whole. Without
// both there is none: a first start may compile for an hour. A role is judged there only if its program is known to step, or has
// opened the gang.
//
// Without progress() a gang hangs when no tracked member has used CPU, GPU or done I/O for `idle`. A collective that
// spins on a lost partner looks like work then: only progress() tells.
//
// The clock of all this stands still while the gang is suspended and while a member's checkpoint is on its way.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/hang/progress_report.h"
#include "daemon/hang/seen_starts.h"

namespace muster::hang {

inline constexpr int64_t kSecondNs = 1'000'000'000;

struct Settings {
  // hang=DURATION: in place of the learned limit, from the first step on; before it, and of programs that make none, in
  // place of the learned limits and `idle` where it is longer. 0: never a verdict. nullopt: learn.
  std::optional<int64_t> limit_ns{};
  // startup=DURATION: from a generation's start to a role's first step; in place of `startup` and `idle` where it is longer.
  std::optional<int64_t> first_step_ns{};
  int64_t idle_floor_ns = 120 * kSecondNs;
  int64_t busy_floor_ns = 600 * kSecondNs;
  int64_t startup_ns = 1800 * kSecondNs;
  int64_t idle_ns = 600 * kSecondNs;
  double factor = 5;
  double deviations = 10;
};

struct Member {
  uint32_t rank = 0;
  std::string role;     // members of one role step together
  std::string node;     // for messages
  bool tracked = true;  // false: neither hangs the gang nor keeps it alive
};

// A member at the time of the verdict.
struct Position {
  uint32_t rank = 0;
  std::optional<uint64_t> step;
  enum class Doing { kUnknown, kIdle, kBusy, kBlocked } doing = Doing::kUnknown;
};

struct Verdict {
  std::vector<uint32_t> culprits;  // ranks that did not enter the step, or differ from the rest; may be empty
  std::vector<uint32_t> among;     // tracked ranks that run, of the role that hangs, or of all roles
  std::vector<Position> positions;  // of all members that still run, by rank
  int64_t stalled_ns = 0;
  int64_t limit_ns = 0;
  std::string limit_source;  // "hang=5m", "5 x a step's 2.1 s", ...
  std::string text;          // one sentence for people, with all of that but the positions
};

// Not thread-safe. All times are of one clock that never goes back, in nanoseconds.
class Detector {
 public:
  explicit Detector(Settings settings);

  // All members of it have exec'd, just now, or (not `whole`) at a time that nobody knows any more. What was learned from earlier
  // generations is kept.
  void GenerationStarted(const std::vector<Member>& members, int64_t now_ns, bool whole = true);
  // Until the next one starts nothing is judged. The members' positions are kept until Forget, because members end one after another.
  void GenerationEnded();
  // Another generation has begun, of which not all members run yet.
  void Forget() { known_ = false; }
  // Its program has exited 0: it is expected to do nothing any more.
  void MemberExited(uint32_t rank);
  void Report(const MemberReport& report, int64_t now_ns);

  // Takes over, by role, how long starts took that another coordinator's detector has seen. They were starts of this gang, or (not
  // `same_gang`) of an earlier run of its job, whose program may have been another one.
  void Remember(const std::map<std::string, SeenStarts>& starts, bool same_gang);
  [[nodiscard]] std::map<std::string, SeenStarts> Starts() const;
  // Whether a role has made its tenth step since the last call, and it took longer than before.
  bool TakeLearned() { return std::exchange(learned_, false); }

  // A member has ended because its collective timed out. Which ranks did it wait for? A sentence; "" when no rank stands out.
  [[nodiscard]] std::string WaitedFor(uint32_t ended) const;
  // "rank 3 on n1, rank 5 on n2".
  [[nodiscard]] std::string Names(const std::vector<uint32_t>& ranks) const;

  // To be called about once a second: judges what has been reported. At most one verdict a generation.
  std::optional<Verdict> Tick();

 private:
  static constexpr size_t kWindow = 256;
  static constexpr uint64_t kStartSteps = 10;  // until then a generation is starting

  struct Rank {
    Member member;
    bool exited = false;
    std::optional<uint64_t> step;
    uint64_t calls = 0;
    int64_t progress_at = 0;  // by the gang's clock, as all times below
    int64_t reported_at = 0;
    int64_t longest_pause = 0;
    uint64_t advances = 0;           // steps of this generation
    bool progressed_before = false;  // called progress() in an earlier generation
    bool opened = false;             // the gang, in this generation
    bool pausing = false;            // holds the gang's clock
    std::optional<Activity> activity;
    int64_t activity_at = 0;
    std::optional<int64_t> idle_since;  // in an unbroken row of samples
    Position::Doing doing = Position::Doing::kUnknown;
  };
  // What is known of the members that step together; outlives generations.
  struct Role {
    std::string name;
    std::array<int64_t, kWindow> steps{};  // times of single steps, a ring
    uint64_t step_count = 0;
    int64_t longest_pause = 0;   // of today
    int64_t longest_before = 0;  // of the day before
    int64_t day_began = 0;
    SeenStarts starts;
    std::set<std::string> started_on;  // nodes on which such a start has been seen
    bool progresses = false;           // has called progress() in any generation
    // Of this generation.
    std::vector<Rank*> ranks;  // tracked ones
    uint64_t advances = 0;
    std::optional<uint64_t> front;  // the newest step anyone has entered
    int64_t front_at = 0;
    int64_t alive_at = 0;  // when a rank last said anything new
  };
  struct Limit {
    int64_t ns = 0;
    std::string source;
    bool given = false;  // by the user: it is what it is, also after a verdict
  };
  using Ranks = std::vector<const Rank*>;
  // The ranks that keep their role from going on.
  struct Culprits {
    Ranks ranks;
    std::string doing;  // what these ranks do or did not do; a message has it behind their names
  };

  [[nodiscard]] int64_t GangTime(int64_t now_ns) const;
  void SetPausing(Rank& rank, bool pausing, int64_t now_ns);
  void TakeProgress(Rank& rank, const MemberReport& report, int64_t now);
  void Learn(Role& role, uint64_t step, int64_t at);
  void LearnStart(Role& role, int64_t at);
  void RememberPause(Role& role, int64_t pause, int64_t at) const;
  void EndPatience(const Role& role, uint64_t step);

  [[nodiscard]] Limit StepLimit(const Role& role, bool idle) const;
  [[nodiscard]] std::optional<Limit> FirstStepLimit(const Role& role) const;
  [[nodiscard]] Limit TenthStepLimit(const Role& role) const;
  [[nodiscard]] Limit LearnedStart(const Role& role, int64_t longest) const;
  static void Lengthen(Limit& limit, const char* key, std::optional<int64_t> given);
  [[nodiscard]] bool AnySteps() const;
  std::optional<Verdict> JudgeRole(const Role& role);
  std::optional<Verdict> JudgeLoner(const Role& role);
  std::optional<Verdict> JudgeIdle();
  [[nodiscard]] static Ranks Running(const Role& role);
  [[nodiscard]] static Ranks Behind(const Ranks& running);
  [[nodiscard]] static Ranks NotOpened(const Ranks& running);
  [[nodiscard]] static Ranks Different(const Ranks& among);
  [[nodiscard]] static Culprits Blame(const Ranks& running);
  [[nodiscard]] static std::string Names(const Ranks& ranks);
  // Its text: before, the culprits' names, after.
  Verdict Give(const Role* role, const Ranks& culprits, int64_t stalled, const Limit& limit,
               const std::string& before, const std::string& after);

  Settings settings_;
  std::map<uint32_t, Rank> ranks_;
  std::map<std::string, Role> roles_;
  bool running_ = false;
  bool known_ = false;  // the members' positions are of the present generation
  bool judged_ = false;
  bool whole_ = false;    // the generation's start has been seen
  bool learned_ = false;  // see TakeLearned
  int64_t started_at_ = 0;
  uint32_t pausing_ = 0;     // ranks that hold the gang's clock
  int64_t stopped_for_ = 0;  // how long it has stood still so far
  int64_t stopped_since_ = 0;
  int64_t patience_ = 1;  // the limits' factor after a verdict
  std::optional<uint64_t>
      patient_until_;  // until this step has been passed; nullopt: ten steps have been made
};

// "850 ms", "12.5 s", "10 min 5 s", for messages.
std::string DurationText(int64_t ns);

}  // namespace muster::hang
