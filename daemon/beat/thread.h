// Beat's thread: the socket, and the machines of all gangs. Internal to daemon/beat.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/beat/batch.h"
#include "daemon/beat/beat.h"
#include "daemon/beat/page.h"
#include "daemon/beat/state_file.h"
#include "daemon/lease/agent_lease.h"
#include "daemon/lease/coordinator_lease.h"

namespace muster {

// What handles read without asking the thread.
struct AgentView {
  std::atomic<int64_t> start_until{0};  // members may be started until then
};

class BeatThread : public std::enable_shared_from_this<BeatThread> {
 public:
  using Command = std::function<void(BeatThread&)>;

  // `options` with a clock and a socket.
  BeatThread(BeatOptions options, std::unique_ptr<StateFile> state);
  ~BeatThread();
  BeatThread(const BeatThread&) = delete;
  BeatThread& operator=(const BeatThread&) = delete;

  // ---- from any thread
  void Start();
  void Stop();
  void Do(Command command);
  void LoopAlive();
  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] const std::shared_ptr<BeatClock>& clock() const { return options_.clock; }
  [[nodiscard]] lease::Nanos last_alive() const { return last_alive_; }

  // ---- on the thread, by way of Do
  void AddAgent(uint64_t id, const AttendOptions& options, std::weak_ptr<AgentEvents> events,
                std::shared_ptr<AgentView> view, std::shared_ptr<BeatPage> page);
  void RemoveAgent(uint64_t id);
  void Follow(uint64_t id, uint64_t term, uint32_t coordinator, const std::string& key,
              const lease::WitnessSet& witnesses, lease::Source source);
  void WithAgent(uint64_t id, const std::function<void(lease::AgentLease&, lease::Nanos)>& what);
  void SetAddresses(uint64_t id, const std::vector<BeatAddress>& addresses);
  void AddSupervisor(uint64_t id, uint64_t number, std::shared_ptr<UniqueFd> fd);
  void RemoveSupervisor(uint64_t id, uint64_t number);
  void SupervisorReadsPage(uint64_t id, uint64_t number);

  void AddLead(uint64_t id, const LeadOptions& options, std::weak_ptr<LeadEvents> events);
  void RemoveLead(uint64_t id);
  void WithLead(uint64_t id,
                const std::function<void(lease::CoordinatorLease&, lease::Nanos, lease::Output*)>& what);
  void SetAddress(uint64_t id, uint32_t node, const BeatAddress& address);

 private:
  struct Supervisor {
    uint64_t number;
    UniqueFd fd;
    bool reads_page = false;
  };
  // Events are the handles' alone, and looked up on the main loop: whose handle is gone there is told nothing any more, also
  // of what was posted before, or is posted before this thread has heard that it is gone.
  struct Party {  // what an agent and a lead of one gang have in common
    uint64_t id = 0;
    uint64_t gang = 0;
    lease::NodeIndex self = 0;
    std::vector<BeatAddress> addresses;
    std::vector<lease::Authenticator> keys;  // newest first; at most two
  };
  struct Agent : Party {
    std::optional<lease::AgentLease> machine;
    std::weak_ptr<AgentEvents> events;
    std::shared_ptr<AgentView> view;
    std::shared_ptr<BeatPage> page;  // nullptr: none
    std::vector<Supervisor> supervisors;
    lease::Nanos run_until = 0;
    lease::Nanos beaten = 0;  // its supervisors
    uint64_t promised = 0;    // as the state file has it
  };
  struct Lead : Party {
    std::optional<lease::CoordinatorLease> machine;
    std::weak_ptr<LeadEvents> events;
  };

  void Run();
  void RaisePriority() const;
  void RunCommands();
  [[nodiscard]] bool Stalled(lease::Nanos now);
  [[nodiscard]] lease::Nanos NextDeadline(lease::Nanos now) const;
  void ReadSocket(bool discard);
  void TakePacket(std::span<const uint8_t> bytes, const BeatAddress& from);
  void Dispatch(const lease::Datagram& datagram, std::span<const uint8_t> bytes, const BeatAddress& from);
  void DeliverHere();
  void TickAll(lease::Nanos now);
  void Carry(Agent& agent, lease::Nanos now, std::span<const uint8_t> bytes, const BeatAddress& from);
  void Carry(Lead& lead, const BeatAddress& from);
  void SendAll(const Party& party, std::span<const uint8_t> bytes, const BeatAddress& from);
  void BeatSupervisors(Agent& agent, lease::Nanos now);
  void PostEvent(const Agent& agent, const lease::Event& event);
  void PostEvent(const Lead& lead, const lease::Event& event);
  Agent* FindAgent(uint64_t id);
  Lead* FindLead(uint64_t id);

  BeatOptions options_;
  BeatClock& clock_;
  BeatSocket& socket_;
  UniqueFd wake_;
  std::unique_ptr<StateFile> state_;
  uint16_t port_ = 0;
  lease::Nanos last_alive_ = 0;
  std::atomic<int64_t> loop_alive_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::vector<Command> commands_;  // under mutex_

  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<std::unique_ptr<Lead>> leads_;
  lease::Output output_;
  std::vector<lease::Datagram> here_;  // to this node itself: not by way of the network
  ReceiveBatch incoming_;
  SendBatch outgoing_;
  lease::Nanos looked_;          // when it last looked whether the main loop is alive
  lease::Nanos seen_alive_ = 0;  // what it saw then
  lease::Nanos still_ = 0;       // for how long it has seen the main loop stand still
  bool was_stalled_ = false;
  bool put_off_ = false;  // commands wait for the lock
  std::thread thread_;
};

}  // namespace muster
