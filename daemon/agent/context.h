// What the agent's parts share. Everything is used on the loop's thread, but for store and engine
// (thread-safe).
#pragma once

#include <memory>
#include <string>

#include "ceph/engine/engine.h"
#include "ceph/store/store.h"
#include "daemon/base/loop.h"
#include "daemon/base/worker.h"
#include "daemon/config/config.h"

namespace muster {

struct AgentContext {
  Loop& loop;
  const Config& config;
  std::string self;  // this node's name
  std::shared_ptr<Store> store;
  Engine& engine;
  Worker& reader;  // for blocking reads of manifests
  Worker& dialer;  // for opening links: MUNGE may block
};

}  // namespace muster
