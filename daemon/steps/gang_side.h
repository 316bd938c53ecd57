// What the coordinator asks of members at a step, in all worlds of a generation: those that train, and each other role's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/steps/agreement.h"

namespace muster::steps {

// On one thread.
class GangSide {
 public:
  struct Hooks {
    Agreement::Hooks talk;
    std::function<int64_t()> now;  // CLOCK_BOOTTIME, milliseconds
    std::function<void(int64_t ms, std::function<void()>)> after;
  };
  explicit GangSide(Hooks hooks) : hooks_(std::move(hooks)) {}

  // `term`: of this coordinator. `inherited`: a coordinator before this one has started the generation. Again
  // of the same generation: nothing.
  void Begin(uint64_t generation, uint64_t term, std::vector<Agreement::World> worlds, bool inherited);
  void Want(bool save, bool exit, const std::string& reason);
  void Joined(uint32_t node);
  void Left(uint32_t node);
  void Take(uint32_t node, const v1::StepAnswer& answer);
  void Take(uint32_t node, const v1::StepNews& news);

 private:
  Agreement* Of(uint32_t node);
  void Watch();

  Hooks hooks_;
  uint64_t generation_ = 0;
  v1::StepWish early_;  // what is wanted of a generation that is not known yet
  std::vector<Agreement> worlds_;
  std::shared_ptr<int> ticking_;  // while a tick is to come
};

}  // namespace muster::steps
