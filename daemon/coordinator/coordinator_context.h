// What the coordinators of one daemon share.
#pragma once

#include <memory>
#include <string>

#include "base/loop.h"
#include "base/worker.h"
#include "ceph/store/store.h"
#include "daemon/config/config.h"

namespace muster {

class Beat;
class Slurm;
class TopologyFile;

struct CoordinatorContext {
  Loop& loop;
  const Config& config;
  std::string self;  // this node's name
  std::shared_ptr<Store> store;
  Worker* reader = nullptr;                // for reading records; not behind what is being written
  Beat* beat = nullptr;                    // null in tests that need no leases
  Slurm* slurm = nullptr;                  // null where there is no Slurm
  std::shared_ptr<TopologyFile> topology;  // may be null
};

}  // namespace muster
