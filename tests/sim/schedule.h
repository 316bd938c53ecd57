// Faults at random, of every kind, at least five in a run.
#pragma once

#include "tests/sim/world.h"

namespace muster::sim {

class Simulation;
class Host;

class Schedule {
 public:
  explicit Schedule(Simulation& simulation);
  // Gives the time when the faults stop.
  Nanos Plan();

 private:
  void Fault();
  void OnProcess();
  void ReadBad();
  void OnMachine();
  void OnNetwork();
  void OnStore();
  void OnPurpose();
  void Drain(uint32_t node);
  void Count(const char* name);
  Host& Any();
  Host& AnyBusy();  // where something runs, or any
  [[nodiscard]] bool MayDie(const Host& host) const;

  Simulation& sim_;
  World& world_;
};

}  // namespace muster::sim
