// What the agent's parts share. Everything is used on the loop's thread, but for store and engine
// (thread-safe).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/worker.h"
#include "ceph/engine/engine.h"
#include "ceph/store/store.h"
#include "daemon/agent/node_health.h"
#include "daemon/config/config.h"
#include "daemon/lease/witnesses.h"
#include "daemon/link/link.h"

namespace muster {

class Beat;
class CommandConnections;
class FabricEnvironment;
struct GangJob;
class KernelLog;
class MemoryGrants;
class PartnerTier;
class Slurm;
namespace watch {
class FabricWatch;
}

// A gang's coordinator is dead, and it is this node's turn.
struct TakeOverRequest {
  uint64_t after_term = 0;
  std::string key;           // for beats
  lease::WitnessSet closed;  // nodes whose musterd had gone
  std::function<void(bool taken)> done;
};

// By a gang's record.
struct RecordedCoordinator {
  uint64_t term = 0;
  std::string host;
  lease::WitnessSet witnesses;
};

// The newest test of links in which this node took part for a user, and that found nothing.
struct GoodLinks {
  std::string test;
  bool full = false;
  Loop::Time at;
};

struct AgentContext {
  Loop& loop;
  const Config& config;
  std::string self;  // this node's name
  std::string door;  // where the program muster-door is
  std::shared_ptr<Store> store;
  Engine& engine;
  Worker& reader;   // for blocking reads of manifests
  Worker& dialer;   // for opening links: MUNGE and the resolver may block
  Worker& sampler;  // for reading /proc
  // For what takes long and nobody waits for: memory that is let go (let_go.h), a job that is ended.
  std::shared_ptr<Worker> chores;
  NodeHealth& health;
  DialLink dial;                    // opens links to coordinators
  Beat* beat = nullptr;             // null in tests that need no leases
  KernelLog* kernel_log = nullptr;  // may be null
  std::function<void(const GangJob& job, TakeOverRequest request)> take_over;  // may be empty
  // `done` gets nothing when the store does not answer. May be empty.
  std::function<void(const GangJob& job, std::function<void(std::optional<RecordedCoordinator>)> done)>
      read_coordinator;
  Slurm* slurm = nullptr;                           // null in tests that have none
  CommandConnections* commands = nullptr;           // null in tests that have none
  PartnerTier* partners = nullptr;                  // null where no copies are kept
  FabricEnvironment* fabric_environment = nullptr;  // null in tests that have none
  // Null in tests where there is memory enough.
  std::shared_ptr<MemoryGrants> memory = nullptr;
  const watch::FabricWatch* fabric = nullptr;  // null in tests that have none
  std::map<uint32_t, GoodLinks> good_links{};  // by uid
};

}  // namespace muster
