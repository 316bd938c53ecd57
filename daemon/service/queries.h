// Answers the muster command: from memory for the gangs that are coordinated here, else from the store.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/worker.h"
#include "ceph/engine/engine.h"
#include "ceph/store/store.h"
#include "daemon/link/link.h"
#include "daemon/service/coordinators.h"

namespace muster {

class Agent;
class Slurm;

// Ask may be called from any thread.
class Queries {
 public:
  Queries(Loop& loop, const Config& config, std::string self, std::shared_ptr<Store> store, Engine& engine,
          const Coordinators& coordinators, Agent& agent, Slurm& slurm);

  void Ask(AskedBy who, std::string question, std::function<void(std::string)> reply);

 private:
  void AskNode(const v1::Question& question, uint32_t uid, const std::function<void(std::string)>& reply);
  void WishNode(const v1::Question& question, const std::function<void(std::string)>& reply);

  Loop& loop_;
  const Config& config_;
  std::string self_;
  std::shared_ptr<Store> store_;
  Engine& engine_;
  const Coordinators& coordinators_;
  Agent& agent_;
  Slurm& slurm_;
  Worker worker_;
};

}  // namespace muster
