// Which nodes live: this coordinator's side of daemon/lease, and what a connection to a node's port tells of nodes that are not heard.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/owned_calls.h"
#include "base/timer.h"
#include "base/worker.h"
#include "daemon/beat/beat.h"
#include "daemon/beat/probe.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/node_links.h"
#include "daemon/gang_job/gang_job.h"

namespace muster {

// On the loop's thread only; a thread of its own waits for connections. The destructor waits for that thread.
class LeaseSide final : public CoordinatorCore::LeaseShell {
 public:
  struct Settings {
    int64_t silence_ms = 0;
    uint16_t port = 0;  // of every node's musterd
    // Called on that thread. The result has a port for each address.
    std::function<std::vector<Port>(const std::vector<BeatAddress>& addresses,
                                    std::chrono::milliseconds timeout)>
        probe = &ProbePorts;
  };
  // `beat`: null where there are no leases. `clock`: the beats'. `ask_term`: RecordShell::AskTerm.
  LeaseSide(Loop& loop, Beat* beat, std::shared_ptr<const BeatClock> clock, const GangJob& job,
            CoordinatorCore& core, const NodeLinks& nodes, Settings settings, std::function<void()> ask_term);

  // Takes over the gang's key for beats; "": makes one. Without leases there is no key.
  void Take(const std::string& key);
  // Has the core lead when `records` has done all that it was given before. The record that names the witnesses must be in the store
  // before the lease begins, so that the next coordinator knows which nodes to ask.
  void LeadBehind(Worker& records);
  // Ends the lease. If the core has not lost the record, it leads again.
  void End() { leadership_.reset(); }
  // What this gives is to be called before this object's end, on any thread: it calls `then` when all questions so far are answered.
  [[nodiscard]] std::function<void()> AtTheEnd(std::function<void()> then) const;

  [[nodiscard]] lease::Nanos Now() const override { return clock_->Now(); }
  [[nodiscard]] bool HasLease() const override { return leadership_ != nullptr; }
  void Lead(const lease::LeadSettings& settings) override;
  void Attend(uint32_t node) override;
  void NodeAttached(uint32_t node) override;
  void NodeClosed(uint32_t node) override;
  void NodeRemoved(uint32_t node) override;
  void SetStop(uint64_t generation) override;
  void StoreConfirmed(lease::Nanos asked_at) override;
  void Depose(uint64_t term) override;
  void RaiseAt(std::optional<lease::Nanos> at) override;
  void Probe() override;
  void ProbeAbsent() override;

 private:
  [[nodiscard]] LeadEvents MakeLeadEvents();
  void Probed(const std::vector<lease::NodeIndex>& closed, uint64_t term);
  void AbsentProbed(const std::map<uint32_t, Port>& ports, uint64_t term);
  void ProbeAbsentLater();
  Worker& Prober();

  Beat* const beat_;
  const std::shared_ptr<const BeatClock> clock_;
  const GangJob& job_;
  CoordinatorCore& core_;
  const NodeLinks& nodes_;
  const Settings settings_;
  const std::function<void()> ask_term_;
  std::string beat_key_;
  std::vector<BeatAddress> addresses_;
  std::unique_ptr<Leadership> leadership_;
  std::map<uint32_t, uint32_t> silent_rounds_;  // of nodes that have not joined, in this term
  Timer probe_timer_;
  Timer absent_timer_;
  Timer raise_timer_;
  OwnedCalls calls_;
  std::unique_ptr<Worker> prober_;  // asks nodes' ports; from the first question on
};

}  // namespace muster
