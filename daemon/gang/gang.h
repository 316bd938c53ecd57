// The gang state machine: events in, actions out. Pure: no I/O, no clock, no threads. The coordinator feeds
// it and carries out what it orders; tests and simulations feed it with what they like.
//
//   joining ──all nodes here──▶ starting ──all members exec'd──▶ running ──all exited 0──▶ finished
//      │                          │    ▲                            │                        ▲
//      │                          ▼    │ next generation            ▼                        │
//      └──join timeout──▶       stopping ◀──a member failed─────────┘                        │
//                                  └──budget used up, cancelled──────────────────────────────┘
//
// A coordinator that takes a running gang over begins in `recovering` and waits for the nodes to say where
// they are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace muster::gang {

enum class State { kJoining, kRecovering, kStarting, kRunning, kStopping, kFinished };
const char* ToString(State state);

enum class MemberState { kWaiting, kRunning, kExited, kStopped };

// How a member's program ended. `status` is waitpid's.
struct Exit {
  int status = 0;
  int pid = 0;
  bool oom_killed = false;
  bool supervisor_lost = false;  // the supervisor itself is gone: the task cannot run again in this step
  int64_t time_ns = 0;           // CLOCK_REALTIME on the member's host
  std::string program;
  std::string stderr_tail;
};

struct MemberInfo {
  uint32_t task = 0;  // rank in the step: SLURM_PROCID
  uint32_t local_id = 0;
  MemberState state = MemberState::kWaiting;
  uint64_t generation = 0;
  uint32_t unkillable = 0;  // in kStopped: processes that SIGKILL did not remove
  std::optional<Exit> exit;
};

struct Settings {
  std::string id;  // for messages: "12.0"
  uint32_t node_count = 1;
  std::vector<std::string> node_names;  // by index, so that a node that never came has a name in messages
  uint32_t task_count = 1;
  uint32_t restarts = 3;  // user faults allowed
  int64_t join_timeout_ms = 60'000;
  int64_t reconnect_ms = 30'000;  // how long a node may be away (musterd restarting)
  int64_t progress_after_ms =
      60'000;  // a generation that has run so long has made progress even if nobody said so
};
inline constexpr uint32_t kMaxRestartsWithoutProgress = 10;

// ---- events
// ----------------------------------------------------------------------------------------------------

struct NodeJoined {  // also when it comes back: then the members' states say what happened meanwhile
  uint32_t node = 0;
  std::string name;
  uint16_t lease_port = 0;  // a free port on that node, for MASTER_PORT
  std::vector<MemberInfo> members;
};
struct NodeLeft {
  uint32_t node = 0;
};
struct MemberExecuted {
  uint32_t task = 0;
  uint64_t generation = 0;
  int64_t time_ns = 0;
};
struct MemberExited {
  uint32_t task = 0;
  uint64_t generation = 0;
  Exit exit;
};
struct NodeStopped {
  uint32_t node = 0;
  uint64_t generation = 0;
  uint16_t lease_port = 0;
  uint32_t unkillable = 0;  // processes that SIGKILL did not remove
};
struct Terminating {  // Slurm's SIGTERM: cancel, time limit, preemption
  uint32_t task = 0;
  uint32_t signal = 15;
};
struct Progressed {
  uint64_t step = 0;
};
struct CheckpointCommitted {
  uint64_t step = 0;
};
struct CheckpointBad {  // a member could not verify the checkpoint it was to start from
  uint32_t task = 0;
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string reason;
};
enum class Timer { kJoin, kReconnect, kProgress };
struct TimerFired {
  Timer timer = Timer::kJoin;
};

using Event = std::variant<NodeJoined, NodeLeft, MemberExecuted, MemberExited, NodeStopped, Terminating,
                           Progressed, CheckpointCommitted, CheckpointBad, TimerFired>;

// ---- actions
// ---------------------------------------------------------------------------------------------------

struct StartGeneration {  // to `nodes`; the others have it already
  uint64_t generation = 0;
  std::vector<uint32_t> nodes;
};
struct StopGeneration {
  uint64_t generation = 0;
  std::vector<uint32_t> nodes;
};
// The gang is over. Without `code` a supervisor exits as its program did; with `cause`, only that task's does
// and the others exit 0, so that srun returns the exit code of the first cause and not that of its
// consequences.
struct FinishGang {
  bool succeeded = false;
  std::optional<uint32_t> cause;
  std::optional<int> code;  // every supervisor exits with it
  std::vector<uint32_t> nodes;
};
struct Persist {};    // write the record, behind
struct ReportToJob {  // text for the job's stderr, through the supervisor of `task`
  uint32_t task = 0;
  std::string text;
};
struct Note {  // one line of the gang's history
  std::string kind;
  std::string text;
  uint64_t generation = 0;  // which it is about
};
struct TellMembers {
  bool should_checkpoint = false;
  bool should_exit = false;
};
struct SetTimer {  // replaces an earlier one of that kind; ms < 0 cancels
  Timer timer = Timer::kJoin;
  int64_t ms = -1;
};
struct RejectCheckpoint {  // mark it bad in the store; `restore_step` must be chosen anew before the next
                           // start
  uint64_t step = 0;
  std::string reason;
};

using Action = std::variant<StartGeneration, StopGeneration, FinishGang, Persist, ReportToJob, Note,
                            TellMembers, SetTimer, RejectCheckpoint>;

// ---- the machine
// -------------------------------------------------------------------------------------------------

// Why a generation ended: the first cause.
struct Fault {
  std::string what;  // one sentence
  uint32_t task = 0;
  bool from_member = false;  // a member's exit (else: a bad checkpoint, a lost node)
  bool user = true;          // counts against `restarts`
  Exit exit;
};

// Not thread-safe.
class Gang {
 public:
  // `generation` and `restarts_used` as the record had them; `recovering` when the record says that the gang
  // was running.
  Gang(Settings settings, uint64_t generation, uint32_t restarts_used, bool recovering);

  // Orders what follows from starting: the join timer. Call once.
  std::vector<Action> Begin();
  std::vector<Action> Handle(const Event& event);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] bool succeeded() const { return succeeded_; }
  [[nodiscard]] uint64_t generation() const { return generation_; }
  [[nodiscard]] uint32_t user_faults() const { return user_faults_; }
  [[nodiscard]] uint32_t restarts() const { return restarts_; }
  [[nodiscard]] uint64_t max_step() const { return max_step_; }
  [[nodiscard]] const std::optional<Fault>& last_fault() const { return last_fault_; }
  // In kFinished, as in FinishGang.
  [[nodiscard]] std::optional<uint32_t> finish_cause() const { return finish_cause_; }
  [[nodiscard]] std::optional<int> finish_code() const { return finish_code_; }

  struct Member {
    uint32_t node = 0;
    uint32_t local_id = 0;
    bool known = false;
    MemberState state = MemberState::kWaiting;
    uint64_t generation = 0;  // that `state` is of
    bool executed = false;
    std::optional<Exit> exit;
  };
  struct Node {
    std::string name;
    bool joined = false;   // has ever been here
    bool present = false;  // is connected
    bool stopped = true;   // nothing of the current generation runs there
    uint16_t lease_port = 0;
    std::vector<uint32_t> tasks;
  };
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }

 private:
  using Actions = std::vector<Action>;
  void On(const NodeJoined& event, Actions& out);
  void On(const NodeLeft& event, Actions& out);
  void On(const MemberExecuted& event, Actions& out);
  void On(const MemberExited& event, Actions& out);
  void On(const NodeStopped& event, Actions& out);
  void On(const Terminating& event, Actions& out);
  void On(const Progressed& event, Actions& out);
  void On(const CheckpointCommitted& event, Actions& out);
  void On(const CheckpointBad& event, Actions& out);
  void On(const TimerFired& event, Actions& out);

  void StartNext(Actions& out);
  void Fail(Fault fault, Actions& out);  // stop this generation; the next one follows if the budget allows
  void GiveUp(const std::string& why, Actions& out);
  void WhenStopped(Actions& out);
  void Finish(bool succeeded, std::optional<uint32_t> cause, std::optional<int> code, Actions& out);
  void OrderFinish(std::vector<uint32_t> nodes, Actions& out) const;
  void ExitSeen(uint32_t task, const Exit& exit, Actions& out);
  void MaybeRunning(Actions& out);
  void MaybeAllExited(Actions& out);
  void Reconcile(const NodeJoined& event, Actions& out);
  void Recover(Actions& out);
  void StopUnkillable(const Node& node, uint32_t unkillable);
  void MadeProgress();
  [[nodiscard]] std::vector<uint32_t> PresentNodes() const;
  [[nodiscard]] bool AllPresent() const;
  [[nodiscard]] bool AllStopped(bool present_only) const;
  [[nodiscard]] std::string Missing() const;
  [[nodiscard]] Fault MemberFault(uint32_t task, const Exit& exit) const;
  [[nodiscard]] uint32_t Speaker(const Fault& fault) const;
  [[nodiscard]] std::string ReportText(const Fault& fault) const;

  Settings settings_;
  State state_ = State::kJoining;
  uint64_t generation_;
  std::vector<Node> nodes_;
  std::vector<Member> members_;
  uint32_t user_faults_ = 0;
  uint32_t restarts_ = 0;
  uint32_t restarts_without_progress_ = 0;
  uint64_t max_step_ = 0;
  int64_t fault_time_ns_ = 0;
  int64_t last_exec_ns_ = 0;
  bool began_ = false;  // a generation of this gang has been started, by this coordinator or one before it
  bool terminating_ = false;
  bool giving_up_ = false;
  bool succeeded_ = false;
  std::optional<Fault> fault_;  // of the generation that is being stopped
  std::optional<Fault> last_fault_;
  std::optional<uint32_t> finish_cause_;
  std::optional<int> finish_code_;
};

// "was killed by SIGKILL", "exited with code 3", for messages.
std::string DescribeStatus(int status, bool oom_killed);

}  // namespace muster::gang
