// What the gang machine hears (events) and what it orders (actions).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/gang/cause.h"

namespace muster::gang {

// Where a member's supervisor says that it is: wire::MemberState.
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
  CauseClass cause = CauseClass::kUser;
  std::string facts;      // what the kernel said at the time, one line each; for the report
  std::string signature;  // equal for the same fault again; "": cannot be said
  std::string
      waited_for;  // whom, if it gave up waiting for others: "rank 3 on n2 did not enter step 80, as 3 others did"
};

struct MemberInfo {
  uint32_t task = 0;  // SLURM_PROCID
  uint32_t local_id = 0;
  MemberState state = MemberState::kWaiting;
  uint64_t generation = 0;
  uint32_t unkillable = 0;  // in kStopped: processes that SIGKILL did not remove
  std::optional<Exit> exit;
};

// ---- events
// ----------------------------------------------------------------------------------------------------

struct CheckpointBad {  // a member could not verify the checkpoint it was to start from
  uint32_t task = 0;
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string reason;
  std::string manifest;  // its name: the step may have been saved anew
  // This generation has committed the step again. The next one reads the new checkpoint, so no checkpoint is rejected.
  bool saved_anew = false;
};
struct NodeJoined {  // also when it comes back: then the members' states say what happened meanwhile
  uint32_t node = 0;
  std::string name;
  uint16_t lease_port = 0;  // a free port on that node, for MASTER_PORT
  std::vector<MemberInfo> members;
  std::string links_test;  // that a short time ago has found this node's links good; "": none
  std::optional<CheckpointBad> checkpoint_bad{};  // the node's newest report; its generation may be over
};
struct NodeLeft {  // its link has ended; its members may run on
  uint32_t node = 0;
};
// Dead or cut off, for so long that its own side has killed its members (daemon/lease says when that is sure).
struct NodeSilent {
  uint32_t node = 0;
  int64_t last_heard_ns = 0;  // CLOCK_REALTIME
};
struct NodeSick {  // its health check says that nothing may run there
  uint32_t node = 0;
  std::string reason;
};
struct DrainNode {  // an operator wants it empty
  uint32_t node = 0;
  std::string reason;
};
struct NodeReturned {  // an operator, or Slurm, gives it back after NodeSick or DrainNode
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
  uint16_t lease_port = 0;     // 0: as before
  uint32_t unkillable = 0;     // processes that SIGKILL did not remove
  uint32_t last_words_ms = 0;  // for so long its members had last words
  bool unsent = false;         // nobody has been told of the start of the gang's generation yet
};
// SIGKILL has ended all processes there, and some have not gone yet. NodeStopped follows.
struct NodeExiting {
  uint32_t node = 0;
  uint64_t generation = 0;
};
struct Terminating {  // Slurm's SIGTERM: cancel, time limit, preemption
  uint32_t task = 0;
  uint32_t signal = 15;
  // Slurm is being asked why: EndNear follows, or the same event with the question decided. Until then nothing new
  // starts, and nothing is given up.
  bool undecided = false;
  // The job was preempted, or Slurm has requeued it: a requeue for which the members are being stopped stays.
  bool may_run_again = false;
};
struct Hung {  // no member has got on for too long
  uint32_t task = 0;
  uint64_t generation = 0;
  std::string what;       // one sentence
  std::string report;     // lines for the job's stderr: the stacks
  std::string signature;  // as in Exit
};
struct Progressed {
  uint64_t step = 0;
};
struct CheckpointCommitted {
  uint64_t step = 0;
};
struct JobFacts {                      // what Slurm says of the job; until then nothing is known
  std::optional<uint32_t> batch_node;  // where its script runs, if it has one and it runs on one of the nodes
  bool can_requeue = false;
};
struct EndNear {  // Slurm will end the job soon
  CauseClass cause = CauseClass::kTimeLimit;
  int64_t left_ms = 0;
  bool signalled =
      false;  // Slurm has sent the members the signal that the job wants before its end (--signal)
};
struct EndMoved {};  // the time limit that was near has been extended
struct RequeueFailed {
  std::string why;
};
// While joining: the hosts that have not joined were looked for. `dead` have not answered for so long that they are; the
// others live.
struct AbsentProbed {
  std::vector<uint32_t> dead;
};
// What a test of the links between the nodes has found (net/preflight).
struct LinkVerdict {
  struct Bad {
    uint32_t node = 0;
    std::string why;
  };
  std::vector<Bad> bad;               // nodes at which a link is bad
  std::vector<std::string> warnings;  // what is no single node's, and who took no part
  std::string summary;                // one sentence
};
// A node's part in a test of the links is over.
struct LinksTested {
  uint32_t node = 0;
  uint64_t test = 0;
  uint16_t lease_port = 0;             // a new one, for the test has used the one before; 0: as before
  std::string error;                   // why there is no verdict
  std::optional<LinkVerdict> verdict;  // of the node that leads
};
// This coordinator's leases have begun: from now on it hears nodes, or finds that they are lost.
struct Leads {};
enum class Timer { kJoin, kProgress, kGrace, kRequeue, kTest, kRecover, kExiting };
inline constexpr size_t kTimers = 7;
struct TimerFired {
  Timer timer = Timer::kJoin;
};

using Event = std::variant<NodeJoined, NodeLeft, NodeSilent, NodeSick, DrainNode, NodeReturned,
                           MemberExecuted, MemberExited, NodeStopped, NodeExiting, Terminating, Hung,
                           Progressed, CheckpointCommitted, CheckpointBad, JobFacts, EndNear, EndMoved,
                           RequeueFailed, AbsentProbed, LinksTested, Leads, TimerFired>;

// ---- actions
// ---------------------------------------------------------------------------------------------------

// To `nodes`; the others have it already, or wait for another role. `durable`: the record of this generation
// must be in the store before any of them is told, because not every member of the one before is known to be
// dead, or because other nodes make up the gang now.
struct StartGeneration {
  uint64_t generation = 0;
  std::vector<uint32_t> nodes;
  bool durable = false;
};
// The links between `nodes`, while nothing runs there yet; the first one leads. Ends with LinksTested.
struct TestLinks {
  uint64_t test = 0;  // its number: 1, 2, ...
  std::vector<uint32_t> nodes;
};
struct StopGeneration {
  uint64_t generation = 0;
  std::vector<uint32_t> nodes;
  // The generation runs on: these nodes are not of it, and what they have is of an older one.
  bool older = false;
  bool last_words = false;  // members that live may have them (--gang=last_words)
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
struct TellMembers {  // that they should, at a step that they agree on
  bool save = false;
  bool exit = false;
  std::string reason;
};
struct SetTimer {  // replaces an earlier one of that kind; ms < 0 cancels
  Timer timer = Timer::kJoin;
  int64_t ms = -1;
};
struct RejectCheckpoint {  // mark it bad in the store; `restore_step` must be chosen anew before the next
                           // start
  uint64_t step = 0;
  std::string reason;
  std::string manifest;
};
struct LoseNode {  // it is out of the gang: Slurm should know that it is down
  uint32_t node = 0;
  std::string reason;
};
struct DrainInSlurm {  // it lives, but nothing new should run there
  uint32_t node = 0;
  std::string reason;
};
struct RequeueJob {  // nothing of the gang runs any more; RequeueFailed if Slurm will not
  std::string reason;
  std::vector<uint32_t> dead;  // nodes
  bool launch_failed = false;  // of the step, and the job's script may have failed of that already
};

using Action =
    std::variant<StartGeneration, TestLinks, StopGeneration, FinishGang, Persist, ReportToJob, Note,
                 TellMembers, SetTimer, RejectCheckpoint, LoseNode, DrainInSlurm, RequeueJob>;

}  // namespace muster::gang
