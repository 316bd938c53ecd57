// The nodes of one simulated gang: each with a link of its own to the coordinator, none with processes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/worker.h"
#include "daemon/link/link.h"
#include "daemon/proto/muster.pb.h"

namespace muster {

struct FleetOptions {
  std::string coordinator;  // its node name, "nK"
  std::string address;      // "host:port"
  uint32_t job = 0;
  uint32_t nodes = 0;
  uint32_t tasks = 0;  // a node
};

// Used by one thread; links call back on gRPC's.
class Fleet {
 public:
  using Clock = std::chrono::steady_clock;

  Fleet(FleetOptions options, std::vector<std::unique_ptr<Worker>>& dialers);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Dials. What is sent before the connection is up waits.
  void Open(uint32_t node);
  void Register(uint32_t node);
  // All its members have exec'd.
  void Executed(uint32_t node, uint64_t generation);
  void Exited(uint32_t node, uint64_t generation, int wait_status);
  void Stopped(uint32_t node, uint64_t generation);
  // 128 bytes of each of its members, for muster_exchange.
  void Give(uint32_t node, uint64_t generation);

  // Each waits until so many nodes have it, gives the time of the last, and ends the program when that takes minutes.
  Clock::time_point WaitAttended(uint32_t nodes);
  // Attended, and with the whole spec of that generation: what a node needs to start its members.
  Clock::time_point WaitReady(uint64_t generation);
  Clock::time_point WaitStopOrdered(uint64_t generation);
  // With all members' values.
  Clock::time_point WaitGathered();
  Clock::time_point WaitFinished();

  [[nodiscard]] size_t spec_bytes() const { return spec_bytes_; }

 private:
  struct Node {
    std::shared_ptr<Link> link;
    bool attended = false;
    uint64_t started = 0;  // generations
    uint64_t stop_ordered = 0;
    bool finished = false;
    bool gathered = false;
  };
  v1::AgentMessage Message() const;
  void Send(uint32_t node, const v1::AgentMessage& message);
  void Heard(uint32_t node, const std::string& payload);
  void Take(Node& node, const v1::CoordinatorMessage& message);
  void TakeValues(uint32_t node, const v1::Gathered& gathered);
  void Closed(uint32_t node, const std::string& why);
  [[nodiscard]] bool IsWhole(v1::Start start) const;
  template <typename Has>
  Clock::time_point WaitFor(const char* what, uint32_t count, Has has);

  const FleetOptions options_;
  const std::string gang_;
  const std::string node_list_;
  std::vector<std::unique_ptr<Worker>>& dialers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Node> nodes_;
  Clock::time_point last_{};  // the newest message
  // The newest spec, checked: the same bytes need no second look. A node has no other to parse but its own.
  std::shared_ptr<const std::string> spec_;
  uint64_t spec_generation_ = 0;
  size_t spec_bytes_ = 0;
  bool closing_ = false;
  uint32_t open_ = 0;
};

}  // namespace muster
