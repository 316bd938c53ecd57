// The thread that proves life: one UDP socket and the lease machines (daemon/lease) of all gangs on this daemon, apart
// from the main loop and scheduled above it, so that neither a busy loop nor a starved host makes a node look dead.
//
// Two guards against the opposite, a node that looks alive and is not: supervisors are beaten only while the node's
// right to run is fresh (so they fence by themselves when this process is stopped or its loop does not act on kFence),
// and everything falls silent when the main loop has not shown life for `loop_stall`.
//
// Threads: Start, handles and LoopAlive are used from the main loop's thread; events come there, through its mailbox,
// and never after their handle is destroyed. The handles must not outlive Beat.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "daemon/beat/address.h"
#include "daemon/beat/beat_clock.h"
#include "daemon/beat/beat_socket.h"
#include "daemon/lease/agent_lease.h"
#include "daemon/lease/coordinator_lease.h"
#include "daemon/lease/types.h"

namespace muster {

struct BeatOptions {
  lease::Times times;
  std::string listen_address = "0.0.0.0";
  uint16_t port = 303;  // UDP; 0: any (tests)
  int64_t loop_stall_ms = 10'000;
  // Called on the beats' thread when the main loop has stood still for so long; empty: nothing is.
  std::function<void()> stalled;
  // A small file on a tmpfs where promises outlive this process (a musterd that restarts must keep them); "": none.
  std::string state_path;
  std::shared_ptr<Mailbox> mailbox;    // of the main loop
  std::shared_ptr<BeatClock> clock;    // null: this host's
  std::shared_ptr<BeatSocket> socket;  // null: UDP, of the address and port above
};

// All on the main loop's thread. What is not set is not called.
struct AgentEvents {
  std::function<void(uint64_t term)>
      attended;  // members may be started: the coordinator has acknowledged this node
  // Kill all members of the gang on this node, now: when it returns, every supervisor must have been sent the order.
  // Until then supervisors are not beaten, and fence by themselves if it takes long.
  std::function<void()> fence;
  std::function<void(uint64_t term)> abandoned;  // for the log
  // Compare-and-swap the record from `term` to the next one, then Lead() with promised = true. Answer with Claimed.
  std::function<void(uint64_t term)> claim;
  // The same without the answer. It comes again while there is no successor; ignore it while a try is under way.
  // `closed`: lease::LeadSettings::closed.
  std::function<void(uint64_t term, lease::WitnessSet closed)> take_over;
  // Obeyed already for beats; the owner opens a link to that node and registers there.
  std::function<void(uint64_t term, uint32_t node)> successor;
  std::function<void(uint64_t term, uint64_t generation)> stop_ordered;  // stop it, and all before
};

struct LeadEvents {
  std::function<void(uint32_t node)> heard;
  std::function<void(uint32_t node)> silent;  // its members are certainly fenced: replace it
  std::function<void(uint32_t node, uint64_t generation)> stopped;  // nothing of it or earlier runs there
  std::function<void()> quorum;
  std::function<void()> lost_quorum;
  // Take Beat::Now(), read the record, and if its term is still this one: StoreConfirmed(that time); if it is higher:
  // Depose(it). When the store does not answer: nothing; it is asked again.
  std::function<void()> confirm_in_store;
  // Raise the term in the record and Lead() again: until then some node cannot come back.
  std::function<void()> term_spent;
  std::function<void(uint64_t term)> deposed;
};

// `term` 0, with no key: not attended yet. Nothing is sent to other nodes, but supervisors are beaten (until
// `grace_until`, when members run already); Follow attends.
struct AttendOptions {
  std::string gang;  // GangJob::Unique
  std::string key;   // 32 bytes
  uint64_t term = 0;
  uint32_t self = 0;  // node indexes
  uint32_t coordinator = 0;
  std::vector<BeatAddress> addresses;  // by node index; an invalid one is never sent to
  lease::WitnessSet witnesses;
  std::vector<lease::NodeIndex> candidates;
  // Members of this gang run already (musterd was restarted) and may until then without being acknowledged:
  // Beat::last_alive() + reconnect. 0: none runs.
  lease::Nanos grace_until = 0;
};

struct LeadOptions {
  std::string gang;
  std::string key;  // the gang's: a successor goes on with the one it attended with
  std::vector<BeatAddress> addresses;
  lease::LeadSettings lease;  // times, gang, nodes and first_sequence are filled in here
};

class BeatPage;
class BeatThread;
struct AgentView;

// This node's part in one gang. Destroying it ends that: nothing is sent for the gang any more.
class Attendance {
 public:
  ~Attendance();
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

  // The link to a (new) coordinator is up and has brought its term, key and witnesses, or the record names them.
  void Follow(uint64_t term, uint32_t coordinator, const std::string& key, const lease::WitnessSet& witnesses,
              lease::Source source);
  void SetAddresses(std::vector<BeatAddress> addresses);
  void SetStopped(uint64_t generation);
  void Claimed(uint64_t term, bool ok);
  // Whether members may be started now: this node has been acknowledged (or carried) very recently. At once, without
  // asking the thread.
  [[nodiscard]] bool MayStart() const;
  // Beats a supervisor's connection (SOCK_SEQPACKET) from now on; `fd` is duplicated. Gives a number for Remove; call
  // that before the owner closes its own, or the peer sees no end of file.
  uint64_t AddSupervisor(int fd);
  void RemoveSupervisor(uint64_t number);
  // The page (wire::BeatPage) that says the same as the beats, to be handed to supervisors; -1: none. One that reads it
  // needs no beats any more.
  [[nodiscard]] int page() const;
  void SupervisorReadsPage(uint64_t number);

 private:
  friend class Beat;
  Attendance(std::shared_ptr<BeatThread> thread, uint64_t id, std::shared_ptr<AgentEvents> events,
             std::shared_ptr<AgentView> view, std::shared_ptr<BeatPage> page);
  std::shared_ptr<BeatThread> thread_;
  uint64_t id_;
  std::shared_ptr<AgentEvents> events_;
  std::shared_ptr<AgentView> view_;
  std::shared_ptr<BeatPage> page_;
  uint64_t next_supervisor_ = 1;
};

// This daemon's lead of one gang. Destroying it ends acks and announcements.
class Leadership {
 public:
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  void SetStop(uint64_t generation);
  void NodeAttached(uint32_t node);
  void NodeClosed(uint32_t node);
  void NodeRemoved(uint32_t node);
  void SetAddress(uint32_t node, const BeatAddress& address);
  void StoreConfirmed(lease::Nanos at);
  void Depose(uint64_t term);

 private:
  friend class Beat;
  Leadership(std::shared_ptr<BeatThread> thread, uint64_t id, std::shared_ptr<LeadEvents> events);
  std::shared_ptr<BeatThread> thread_;
  uint64_t id_;
  std::shared_ptr<LeadEvents> events_;
};

class Beat {
 public:
  // Errors: the port is taken, the state file cannot be made. A refused priority is only logged.
  static Result<std::unique_ptr<Beat>> Start(BeatOptions options);
  ~Beat();
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

  std::unique_ptr<Attendance> Attend(AttendOptions options, AgentEvents events);
  std::unique_ptr<Leadership> Lead(LeadOptions options, LeadEvents events);

  // A timer of the main loop calls this at least every second.
  void LoopAlive();
  [[nodiscard]] uint16_t port() const;
  // When the process before this one was last alive, by the state file; 0: not known.
  [[nodiscard]] lease::Nanos last_alive() const;
  // What all times here are counted in. It may outlive this.
  [[nodiscard]] const std::shared_ptr<BeatClock>& clock() const;
  [[nodiscard]] lease::Nanos Now() const;

 private:
  explicit Beat(std::shared_ptr<BeatThread> thread);
  std::shared_ptr<BeatThread> thread_;
  uint64_t next_id_ = 1;
};

}  // namespace muster
