// The gang state machine: events in, actions out. Pure: no I/O, no clock, no threads. The coordinator feeds
// it and carries out what it orders; tests and simulations feed it with what they like.
//
//   joining ──all nodes here──▶ starting ──all members exec'd──▶ running ──tracked members exited 0──▶ finished
//      │                          │    ▲                            │                                    ▲
//      │                          ▼    │ next generation            ▼                                    │
//      └──join timeout──▶       stopping ◀──a fault, a planned move─┘                                    │
//                                 │ └──budget used up, cancelled──────────────────────────────────────────┤
//                                 └──no room left──▶ requeueing ──Slurm will not──────────────────────────┘
//
// With `preflight` the links between the nodes are tested before the first generation: joining ──▶ testing ──▶ starting.
//
// A coordinator that takes a running gang over begins in `recovering` and waits for the nodes to say where
// they are.
//
// Nodes are counted as in the step; a task is SLURM_PROCID. The nodes that make up a generation are `active`,
// in the order of their ranks; the others of the step are spare, away, lost or excluded.
//
// gang.cc dispatches, nodes.cc knows which nodes there are, placement.cc which of them make up a generation and in
// which order (switch_tree.cc), preflight.cc what a test of their links changes in that, members.cc what became of the members, generations.cc how one ends and the next
// begins, recovery.cc what a coordinator or a node that comes back finds, or does not find, planned.cc drains, growth and the job's
// end, gang_report.cc words.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/gang/events.h"
#include "daemon/gang/switch_tree.h"

namespace muster::gang {

enum class State { kJoining, kTesting, kRecovering, kStarting, kRunning, kStopping, kRequeueing, kFinished };
const char* ToString(State state);

// What a role's members mean to their gang: wire::RoleKind.
enum class RoleKind { kTracked, kChief, kService, kUntracked, kSidecar };

struct Role {
  std::string name = "worker";
  RoleKind kind = RoleKind::kTracked;
  uint32_t spares = 0;            // nodes of this role that wait to replace others
  uint32_t min_nodes = 0;         // goes on with so many; 0: with all only
  std::optional<uint32_t> after;  // index of the role that must run, or with `after_done` have ended with 0
  bool after_done = false;
};

struct Settings {
  std::string id;  // for messages: "12.0"
  uint32_t node_count = 1;
  std::vector<std::string> node_names;  // by index, so that a node that never came has a name in messages
  uint32_t task_count = 1;
  std::vector<Role> roles = {Role{}};
  std::vector<uint32_t> node_roles;  // index into roles, by node; empty: all are of the first
  uint32_t restarts = 3;             // user faults allowed
  std::set<int> stop_codes;          // exit codes by which a program asks that the gang ends for good
  bool requeue = true;
  bool grow = false;
  bool order_by_topology = false;                       // ranks follow `node_switches`, not Slurm's order
  std::vector<std::vector<std::string>> node_switches;  // by node, those above it, the root's first
  bool preflight = false;            // the links between the nodes are tested before the first generation
  int64_t test_timeout_ms = 60'000;  // for a test that does not end
  int64_t join_timeout_ms = 60'000;
  int64_t stranded_after_ms = 60'000;  // in kRecovering; longer than members may run without musterd
  int64_t grace_ms = 30'000;           // how long a planned stop waits for a checkpoint
  int64_t last_words_ms = 0;           // how long members that live go on when a fault ends their generation
  int64_t exiting_ms = 5'000;  // how long nodes that only exit are waited for when all others have stopped
  int64_t progress_after_ms =
      60'000;  // a generation that has run so long has made progress even if nobody said so
  int64_t forgive_after_ms =
      86'400'000;  // a user fault counts for so long, and until there is progress; 0: for ever
};
inline constexpr uint32_t kMaxRestartsWithoutProgress = 10;
inline constexpr int64_t kRequeueTimeoutMs = 60'000;
inline constexpr uint32_t kMaxTests = 3;  // of links: after that the gang starts on what it has

// Generations that were started after the first, by cause: a CauseClass, or "planned". Each has its entry.
using RestartCounts = std::map<std::string, uint32_t>;
RestartCounts NoRestarts();

// What a coordinator that takes the gang over knows from the record.
struct Memory {
  uint64_t generation = 0;
  bool running = false;  // a generation has been started, or all nodes were here for a test of their links
  std::vector<int64_t> user_fault_times;  // CLOCK_REALTIME, of those that count against `restarts`
  bool progress_since_user_fault = false;
  RestartCounts restarts = NoRestarts();
  uint32_t restarts_without_progress = 0;
  uint64_t max_step = 0;
  std::string last_signature;
  std::vector<uint32_t> active;  // in the order of their ranks
  // In the order of their ranks, the nodes of the generation before, on which PlaceAgain may begin one without a record; else empty.
  std::vector<uint32_t> before;
  uint64_t placed = 0;  // with `before`: the generation that `active` was placed for
  std::vector<uint32_t> lost;
  std::vector<uint32_t> ended;  // those that live, though they will not be back
  std::vector<uint32_t> away;   // their musterd had gone: their members may run on for `reconnect`
  std::vector<std::pair<uint32_t, std::string>> excluded;  // and why
  std::vector<std::pair<uint32_t, std::string>> draining;  // will be excluded at the next checkpoint: why
  std::vector<uint32_t> task_counts;  // by node, 0: it has not joined; a spare for a dead node must fit
  bool succeeding = false;            // who was waited for has exited with 0: the others are being stopped
  bool terminating = false;           // Slurm ends the job: no new generation
  std::optional<CauseClass> warned;   // Gang::warned
  bool requeueing = false;            // the job is to be requeued, or has been
};

// Why a generation ended: the first cause.
struct Fault {
  std::string what;  // one sentence
  uint32_t task = 0;
  bool from_member = false;              // a member's exit (else: a bad checkpoint, a lost node)
  CauseClass cause = CauseClass::kUser;  // kUser counts against `restarts`
  bool planned = false;                  // nobody's fault at all
  std::string signature;                 // as in Exit
  std::string report;                    // more lines for the job
  Exit exit;
};

// Not thread-safe.
class Gang {
 public:
  Gang(Settings settings, const Memory& memory);

  // Orders what follows from starting: the join timer. Call once.
  std::vector<Action> Begin();
  std::vector<Action> Handle(const Event& event);
  // In a new term of the same coordinator: checkpoints of this generation are written in it from here on, and a node that knew of
  // it before has not obeyed what was said in the old one.
  [[nodiscard]] std::vector<Action> SayAgain() const;
  // What the next generation starts from, for messages.
  void SetOrigin(std::string text) { origin_ = std::move(text); }

  struct Member {
    uint32_t node = 0;
    uint32_t local_id = 0;
    bool known = false;
    MemberState state = MemberState::kWaiting;
    uint64_t generation = 0;  // that `state` is of
    bool executed = false;
    std::optional<uint32_t> rank;  // in the current generation; none: it waits
    std::optional<Exit> exit;
  };
  struct Node {
    std::string name;
    bool joined = false;   // has ever been here
    bool present = false;  // is connected
    bool lost = false;     // dead or cut off, its members have been fenced; or
    bool ended = false;    // it lives, but all its tasks have ended and it has left: it will not be back
    bool absent = false;   // never came, and is not waited for any more
    bool stopped = true;   // nothing of the current generation runs there
    bool started = false;  // has been told of the current generation
    bool broken = false;   // one of its supervisors is gone
    std::string excluded;  // why nothing may run there; "": nothing speaks against it
    std::string draining;  // will be excluded at the next checkpoint: why
    uint64_t exiting = 0;  // SIGKILL has ended all up to this generation, and some have not gone yet; 0: none
    uint16_t lease_port = 0;
    uint32_t last_words_ms = 0;   // of the generation that is being stopped
    std::string links_test;       // see NodeJoined
    std::vector<uint32_t> tasks;  // in the order of their local ids
    uint32_t task_count =
        0;  // also of a node that only the coordinator before this one has heard; 0: not known
  };

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool succeeded() const { return succeeded_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  // Those that count against `restarts` now.
  [[nodiscard]] uint32_t user_faults() const { return static_cast<uint32_t>(user_fault_times_.size()); }
  [[nodiscard]] const RestartCounts& restarts() const { return restarts_; }
  [[nodiscard]] uint64_t max_step() const { return max_step_; }
  // From the newest fault to the last member's exec in the generation after it; 0: there was none, or it does not run yet.
  [[nodiscard]] int64_t recovery_ns() const { return recovery_ns_; }
  [[nodiscard]] const std::optional<Fault>& last_fault() const { return last_fault_; }
  // In kFinished, as in FinishGang.
  [[nodiscard]] std::optional<uint32_t> finish_cause() const { return finish_cause_; }
  [[nodiscard]] std::optional<int> finish_code() const { return finish_code_; }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  // Of the current generation, in the order of their ranks.
  [[nodiscard]] const std::vector<uint32_t>& active() const { return active_; }
  [[nodiscard]] bool IsActive(uint32_t node) const;
  [[nodiscard]] bool IsSpare(uint32_t node) const;  // could take another's place now
  // Whether members that were started before may run on the node, so that its lease is to be watched. Of a gang that a coordinator
  // before this one has started, every node may have such members; of a gang that is new, only a node that has joined.
  [[nodiscard]] bool MayHaveMembers(uint32_t node) const {
    return !nodes_[node].lost && (nodes_[node].joined || inherited_);
  }
  [[nodiscard]] bool IsBatchHost(uint32_t node) const { return batch_node_ == node; }
  [[nodiscard]] bool BatchHostLost() const { return batch_node_ && nodes_[*batch_node_].lost; }
  // Slurm has signalled the members, and the job is to be requeued: why.
  [[nodiscard]] std::optional<CauseClass> warned() const { return Warned() ? requeue_for_ : std::nullopt; }
  // Members that train together, ranks 0 and on: those of tracked roles and the chief; all, if there are none of these.
  // A checkpoint is theirs.
  [[nodiscard]] uint32_t WorldSize() const { return world_size_; }
  [[nodiscard]] const Role& RoleOf(uint32_t node) const;
  [[nodiscard]] const Settings& settings() const { return settings_; }
  // For the record.
  [[nodiscard]] Memory Remember() const;

 private:
  using Actions = std::vector<Action>;
  // What follows when everything of the generation has stopped.
  enum class Next { kRestart, kGiveUp, kSucceed, kRequeue };
  // Which nodes count as free: those where nothing runs now; also those of this generation, as if it had been stopped; or also those
  // where something of an older generation runs or exits.
  enum class Free { kNow, kWhenStopped, kWhenExited };
  // Which nodes may make up the next generation.
  struct Placement {
    std::vector<uint32_t> active;
    std::string why_not;  // "": it is good
    std::string changes;  // for people: "n5 takes the place of n3"
  };

  void On(const NodeJoined& event, Actions& out);
  void On(const NodeLeft& event, Actions& out);
  void On(const NodeSilent& event, Actions& out);
  void On(const NodeSick& event, Actions& out);
  void On(const DrainNode& event, Actions& out);
  void On(const NodeReturned& event, Actions& out);
  void On(const MemberExecuted& event, Actions& out);
  void On(const MemberExited& event, Actions& out);
  void On(const NodeStopped& event, Actions& out);
  void On(const NodeExiting& event, Actions& out);
  void On(const Terminating& event, Actions& out);
  void On(const Hung& event, Actions& out);
  void On(const Progressed& event, Actions& out);
  void On(const CheckpointCommitted& event, Actions& out);
  void On(const CheckpointBad& event, Actions& out);
  void On(const JobFacts& event, Actions& out);
  void On(const EndNear& event, Actions& out);
  void On(const EndMoved& event, Actions& out);
  void On(const RequeueFailed& event, Actions& out);
  void On(const AbsentProbed& event, Actions& out);
  void On(const LinksTested& event, Actions& out);
  void On(const Leads& event, Actions& out);
  void On(const TimerFired& event, Actions& out);

  // nodes.cc
  void Learn(const NodeJoined& event);
  [[nodiscard]] bool MayStillStart() const;
  void MaybeAllHere(Actions& out);
  void LeaveOut(uint32_t node, const Fault& fault, Actions& out);
  void JoinTimedOut(Actions& out);
  [[nodiscard]] bool AllHere() const;
  [[nodiscard]] bool AllStopped(bool or_exit = false) const;
  [[nodiscard]] bool MayLeaveExiting() const;
  [[nodiscard]] bool AnyAway(const std::vector<uint32_t>& nodes) const;
  [[nodiscard]] std::vector<uint32_t> PresentNodes() const;

  // placement.cc
  [[nodiscard]] bool Usable(uint32_t node, Free free) const;
  [[nodiscard]] uint32_t FullSize(uint32_t role) const;
  [[nodiscard]] uint32_t LeastSize(uint32_t role) const;
  // `without` counts as not usable, and so do those then that are to be left at the next checkpoint.
  [[nodiscard]] Placement Place(Free free, std::optional<uint32_t> without = std::nullopt) const;
  [[nodiscard]] std::string WhyUnusable(uint32_t node) const;
  void PlaceRole(uint32_t role, Free when, std::optional<uint32_t> without, Placement* out) const;
  [[nodiscard]] std::vector<uint32_t>::const_iterator SpareFor(uint32_t node,
                                                               const std::vector<uint32_t>& free,
                                                               const std::vector<uint32_t>& beside) const;
  [[nodiscard]] uint32_t RoleIndex(uint32_t node) const;
  [[nodiscard]] bool Trains(uint32_t node) const;
  void AssignRanks();

  // preflight.cc
  void TestOrStart(const Placement& placement, Actions& out);
  void TestSpoiled(uint32_t node, Actions& out);
  void TestTimedOut(Actions& out);
  void AfterTest(Actions& out);
  [[nodiscard]] bool MayLeaveOut(uint32_t node) const;

  // members.cc
  void ExitSeen(uint32_t task, const Exit& exit, Actions& out);
  void SupervisorLost(uint32_t task, const Exit& exit, Actions& out);
  void MaybeRunning(Actions& out);
  void MaybeAllExited(Actions& out);

  // generations.cc
  void StartNext(const Placement& placement, Actions& out);
  void PlaceAgain(Actions& out);
  void FindPlacedAgain();
  void StartReady(Actions& out);  // nodes whose role need not wait any more
  void StartAgain(uint32_t node, Actions& out);
  [[nodiscard]] bool RoleReady(uint32_t role) const;
  void ChargeUserFault(int64_t time_ns);
  void Recharge();
  void Fail(Fault fault, Actions& out);  // stop this generation; the next one follows if the budget allows
  void GiveUp(const std::string& why, Actions& out);
  void Stop(Actions& out);
  void WhenStopped(Actions& out, bool leave_exiting = false);
  [[nodiscard]] bool LastWords() const;
  void EndLastWords(Actions& out);
  void NoteLastWords(Actions& out);
  [[nodiscard]] std::string Judge(const Fault& fault);
  [[nodiscard]] bool MeansStop(const Member& member) const;
  [[nodiscard]] std::optional<uint32_t> WhoAskedToStop() const;
  // The members have Slurm's signal, and the job is to be requeued: what they do now, save and end with any code, is no fault.
  [[nodiscard]] bool Warned() const { return requeue_for_ && no_time_; }
  void Finish(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code, Actions& out);
  void OrderFinish(std::vector<uint32_t> nodes, Actions& out) const;
  void Requeue(const std::string& why, Actions& out);
  void OrderRequeue(const std::string& why, Actions& out);
  void Unkillable(uint32_t node, uint32_t count, Actions& out);
  void MadeProgress();

  // launch.cc
  [[nodiscard]] bool MayBeDead() const;

  // recovery.cc
  void Reconcile(const NodeJoined& event, Actions& out);
  void ReconcileOther(const NodeJoined& event, Actions& out);
  void AllAreHere(Actions& out);
  void LimitRecovering(Actions& out);
  void Stranded(Actions& out);
  void Recover(Actions& out);
  std::vector<uint32_t> FindWhatRuns();
  [[nodiscard]] std::optional<Fault> FaultMeanwhile() const;

  // planned.cc
  void Announce(const EndNear& event, Actions& out);
  void AskForCheckpoint(Actions& out);
  void GraceOver(Actions& out);
  void PlannedStop(Actions& out);
  void LeaveDrained(Actions& out);
  void Stay(uint32_t node, const std::string& why, Actions& out);
  void MaybeGrow(Actions& out);
  [[nodiscard]] bool Planned() const;
  // Memory::terminating and Memory::warned.
  [[nodiscard]] std::pair<bool, std::optional<CauseClass>> EndForRecord() const;
  [[nodiscard]] bool CanRequeue() const;

  // gang_report.cc
  [[nodiscard]] Fault MemberFault(uint32_t task, const Exit& exit) const;
  [[nodiscard]] std::string Who(uint32_t task) const;  // "rank 3 on n1"
  [[nodiscard]] std::string Missing() const;
  [[nodiscard]] std::string OrderText() const;
  [[nodiscard]] uint32_t Speaker(const Fault& fault) const;
  [[nodiscard]] std::string ReportText(const Fault& fault) const;

  Settings settings_;
  std::optional<SwitchTree> tree_;  // when ranks follow it
  std::string no_tree_;             // why they do not, though they should
  State state_ = State::kJoining;
  uint64_t generation_ = 0;
  uint64_t placed_ = 0;       // Memory::placed, of the record that this coordinator has found
  uint64_t newest_seen_ = 0;  // of any member that has joined
  std::vector<Node> nodes_;
  std::vector<Member> members_;
  std::vector<uint32_t> active_;
  std::vector<uint32_t>
      before_;  // the active nodes before, if they could start again without a record; else empty
  uint32_t world_size_ = 0;
  std::vector<int64_t> user_fault_times_;
  bool progress_since_user_fault_ = false;
  bool progress_before_charge_ =
      false;  // progress_since_user_fault_ before the charge that charged_user_ counts
  RestartCounts restarts_;
  uint32_t restarts_without_progress_ = 0;
  uint64_t max_step_ = 0;
  int64_t fault_time_ns_ = 0;
  int64_t last_exec_ns_ = 0;
  int64_t recovery_ns_ = 0;
  bool began_ = false;  // a generation of this gang has been started, by this coordinator or one before it
  bool inherited_ = false;            // by one before it
  bool durable_ = false;              // the next generation's record must be durable before it starts
  uint32_t charged_ = 0;              // restarts that the fault of this generation has been counted as, and
  uint32_t charged_user_ = 0;         // user faults: a coordinator that takes over finds that fault again
  std::optional<CheckpointBad> bad_;  // while recovering: the report of the newest generation
  std::optional<uint64_t> rejected_;  // the step of this generation's bad checkpoint
  bool leads_ = false;
  bool recovering_limited_ = false;
  bool terminating_ = false;
  bool undecided_ = false;    // why Slurm ends the job is being asked
  bool why_unknown_ = false;  // terminating_ is the record's, and the coordinator before may have been asking
  bool launch_failed_ = false;  // of the step: srun has ended, or will
  bool requeue_ordered_ = false;
  bool no_time_ =
      false;  // Slurm has signalled the members: they end, and no other generation comes before the requeue
  bool succeeded_ = false;
  Next next_ = Next::kRestart;
  std::string last_signature_;  // of the last user fault without progress since
  std::string origin_;
  std::optional<Fault> fault_;  // of the generation that is being stopped
  std::optional<Fault> last_fault_;
  std::optional<uint32_t> finish_cause_;
  std::optional<int> finish_code_;

  // kTesting
  std::vector<uint32_t> tested_;  // the first leads
  uint64_t tests_ = 0;            // begun
  bool test_runs_ = false;
  bool links_done_ = false;  // nothing more is to be learned of them

  std::optional<uint32_t> batch_node_;
  bool slurm_requeues_ = true;             // as far as is known
  std::optional<CauseClass> requeue_for_;  // planned: the job's end is near
  bool timed_ = false;                     // the timer kGrace was set by an EndNear
  std::optional<uint64_t> told_of_end_;    // the generation that was asked to exit for it
  bool growing_ = false;                   // planned: at the next checkpoint
};

// "was killed by SIGKILL", "exited with code 3", for messages.
std::string DescribeStatus(int status, bool oom_killed);
// "SIGTERM".
std::string SignalName(uint32_t signal);

}  // namespace muster::gang
