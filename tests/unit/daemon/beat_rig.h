// Three musterds in one process with leases, and a gang of one task on each. Node 0 has the batch script, node 1 coordinates,
// node 2 is next in line.
//
// What leases are counted in is the test's: it moves on by Advance, and not because the machine is slow. What takes real time
// (a store's answer, a link that is tried again) is waited for by Eventually while that time stands still.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ceph/catalog/catalog.h"
#include "daemon/agent/port_lease.h"
#include "daemon/coordinator/record.h"
#include "tests/support/loop_gate.h"
#include "tests/unit/ceph/memory_store.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/daemon/beat_net.h"
#include "tests/unit/daemon/daemon_rig.h"

namespace muster {

class BeatRig : public ::testing::Test {
 protected:
  static constexpr uint32_t kNodes = BeatNet::kNodes;
  static constexpr uint32_t kBatch = 0;
  static constexpr uint32_t kCoordinator = 1;
  static constexpr uint32_t kSuccessor = 2;
  // Whoever looks at a condition after each step may see it so much later.
  static constexpr lease::Nanos kStep = 25 * lease::kMillisecond;

  void SetUp() override;
  void TearDown() override;

  void StartDaemon(uint32_t node, LoopClock& clock = SteadyLoopClock());
  // musterd's process ends; its host and its supervisors live.
  void EndDaemon(uint32_t node);
  void CutOff(uint32_t node);
  void MendAll(uint32_t node);

  void Join(const char* options = "min=2,join=1h");
  // Takes the Start of these nodes' tasks, which run then.
  void ExpectStart(uint64_t generation, const std::vector<uint32_t>& nodes = {0, 1, 2});
  void ExpectStopAndStop(uint64_t generation, const std::vector<uint32_t>& nodes);
  // Joins and runs the first generation, with all that follows from it done.
  void RunFirst();
  bool HasStop(uint32_t node) { return members_[node].Has(wire::Type::kStop); }
  bool HasStart(uint32_t node) { return members_[node].Has(wire::Type::kStart); }

  // Until everything that follows from what has happened has happened, but for what takes real time.
  void Settle();
  void Advance(lease::Nanos time);
  // Moves on until it is so; gives how long that took, at most `limit`, else fails.
  lease::Nanos AdvanceUntil(const char* what, lease::Nanos limit, const std::function<bool()>& so);
  // Waits, in real time, until it is so. Leases stand still meanwhile.
  bool Eventually(const std::function<bool()>& so);

  // The same while time passes, where no lease is to run out.
  bool InTime(const std::function<bool()>& so);

  // ---- what there is to see
  [[nodiscard]] std::optional<GangRecord> RecordIn(uint32_t node);  // of the coordinator there
  [[nodiscard]] KnownCoordinator KnownIn(uint32_t node);            // to the agent there
  [[nodiscard]] GangHead InStore();
  [[nodiscard]] bool Lost(uint32_t node, uint32_t coordinator = kCoordinator);
  [[nodiscard]] bool Noted(uint32_t coordinator, const std::string& kind);

  // Changes of the gang's head wait from then on until they are let go.
  void HoldRecord();
  void ReleaseRecord();
  [[nodiscard]] bool RecordWaits();  // one does

  // A daemon's main loop stands still from then on until it is let go.
  void HoldLoop(uint32_t node);
  void ReleaseLoop(uint32_t node);

  lease::Times times_;
  TemporaryDirectory directory_;
  std::optional<PortLease> port_;
  std::optional<BeatNet> net_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::unique_ptr<TestDaemon> daemons_[kNodes];
  TestSupervisor members_[kNodes] = {TestSupervisor(StepHello(12, 0, 3)), TestSupervisor(StepHello(12, 1, 3)),
                                     TestSupervisor(StepHello(12, 2, 3))};

 private:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool shut = false;
    size_t waiting = 0;
  };
  const std::shared_ptr<Gate> record_gate_ = std::make_shared<Gate>();
  std::optional<LoopGate> loop_gates_[kNodes];
};

}  // namespace muster
