#include "tests/sim/schedule.h"

#include <algorithm>
#include <csignal>
#include <iterator>

#include "tests/sim/daemon.h"
#include "tests/sim/simulation.h"

namespace muster::sim {

Schedule::Schedule(Simulation& simulation) : sim_(simulation), world_(simulation.world) {}

Nanos Schedule::Plan() {
  const int64_t faults = world_.Pick(5, 9);
  Nanos at = world_.Chance(0.1) ? 0 : 350 * kMs;
  for (int64_t i = 0; i < faults; ++i) {
    // Often at once: one fault at a time is the unit tests' business.
    at += world_.Chance(0.4) ? world_.Pick(0, 20) * kMs : world_.Pick(20, 900) * kMs;
    world_.After(at, [this] { Fault(); });
  }
  return at + world_.Pick(0, 3'000) * kMs;
}

void Schedule::Count(const char* name) {
  sim_.coverage.Fault(name);
  world_.Log("FAULT: {}", name);
}

Host& Schedule::Any() {
  return *sim_.hosts[static_cast<size_t>(world_.Pick(0, static_cast<int64_t>(sim_.hosts.size()) - 1))];
}

Host& Schedule::AnyBusy() {
  for (int i = 0; i < 5; ++i) {
    Host& host = Any();
    const auto runs = [](const Supervisor& s) { return s.executing; };
    if (!host.crashed() && std::any_of(host.supervisors.begin(), host.supervisors.end(), runs)) return host;
  }
  return Any();
}

// A majority of the hosts that may be witnesses stays: without one a gang ends only by Slurm.
bool Schedule::MayDie(const Host& host) const {
  const auto dead =
      std::count_if(sim_.hosts.begin(), sim_.hosts.end(), [](const auto& h) { return h->crashed(); });
  return !host.crashed() && static_cast<size_t>(dead + 1) * 2 + 1 < sim_.hosts.size();
}

void Schedule::Fault() {
  if (sim_.job_over) return;
  const int64_t dice = world_.Pick(0, 99);
  if (dice < 30) return OnProcess();
  if (dice < 55) return OnMachine();
  if (dice < 80) return OnNetwork();
  if (dice < 90) return OnStore();
  OnPurpose();
}

void Schedule::OnProcess() {
  Host& host = AnyBusy();
  const auto local = static_cast<size_t>(world_.Pick(0, static_cast<int64_t>(host.supervisors.size()) - 1));
  switch (world_.Pick(0, 7)) {
    case 0:
    case 1: {
      Count("a program fails");
      const Supervisor& s = host.supervisors[local];
      if (!host.crashed() && s.alive && s.state == gang::MemberState::kRunning && s.executing &&
          !host.Frozen()) {
        ++sim_.invariants.user_faults;
        host.EndProgram(local, world_.Chance(0.5) ? SIGSEGV : 1 << 8);
      }
      return;
    }
    case 2:
      Count("a program is killed");
      if (!host.crashed() && !host.Frozen()) host.EndProgram(local, SIGKILL);
      return;
    case 3:
      if (!world_.Chance(0.3)) return OnMachine();
      Count("a supervisor is killed");
      if (!host.crashed() && !host.Frozen()) host.KillSupervisor(local);
      return;
    case 4:
      Count("the program hangs");
      sim_.invariants.Cause(0);
      if (Coordinator* leader = sim_.Leader())
        leader->Feed(gang::Hung{.task = 0, .generation = leader->gang().generation(), .what = "it hangs"});
      return;
    case 5:
      Count("kills are slow");
      for (const auto& h : sim_.hosts) h->slow_kill = true;
      return world_.After(world_.Pick(300, 3'000) * kMs, [this] { Drain(Any().index()); });
    case 6: {
      Count("a process cannot be killed");
      host.may_be_unkillable = true;
      host.Later(world_.Pick(100, 3'000) * kMs, [&host] { host.may_be_unkillable = false; });
      return;
    }
    default:
      Count("a checkpoint is bad");
      ReadBad();
  }
}

// A member reads the checkpoint from which its generation started, which is listed, and finds it bad (LocalGang::ReportIfBad). Most
// programs end then, which is not counted as a fault of theirs.
void Schedule::ReadBad() {
  const Coordinator* leader = sim_.Leader();
  if (leader == nullptr || !leader->restore()) return;
  const auto& listed = sim_.store.head().checkpoints;
  const auto found = listed.find(*leader->restore());
  if (found == listed.end() || found->second.generation == leader->gang().generation()) return;
  const uint64_t generation = leader->gang().generation();
  Host& host = AnyBusy();
  const auto local = static_cast<size_t>(world_.Pick(0, static_cast<int64_t>(host.supervisors.size()) - 1));
  const Supervisor& reader = host.supervisors[local];
  const bool reads = reader.alive && reader.executing && reader.generation == generation;
  if (!reads || host.daemon() == nullptr || host.crashed() || host.Frozen()) return;
  const bool known =
      host.daemon()->local.FoundBad(local, {.generation = generation,
                                            .step = found->first,
                                            .reason = "a chunk has another digest",
                                            .manifest = ManifestOf(found->first, found->second)});
  if (!known) return;
  sim_.invariants.Cause(generation);
  if (world_.Chance(0.3)) return;
  host.Later(world_.Pick(1, 300) * kMs, [&host, local, generation] {
    const Supervisor& s = host.supervisors[local];
    if (s.generation == generation && !host.crashed() && !host.Frozen()) host.EndProgram(local, 1 << 8);
  });
}

void Schedule::OnMachine() {
  Coordinator* leader = sim_.Leader();
  // The coordinator's host more often than another.
  Host* host = &AnyBusy();
  if (leader != nullptr && world_.Chance(0.35)) {
    for (const auto& h : sim_.hosts) {
      if (h->daemon() != nullptr && h->daemon()->coordinator() == leader) host = h.get();
    }
  }
  const auto restart = [this](Host& h) {
    h.KillDaemon();
    h.Later(world_.Chance(0.1) ? world_.Pick(2'000, 6'000) * kMs : world_.Pick(30, 900) * kMs,
            [&h] { h.StartDaemon(); });
  };
  switch (world_.Pick(0, 6)) {
    case 0:
    case 1:
      if (!MayDie(*host)) return OnNetwork();
      Count("a host dies");
      return host->Crash();
    case 2:
      Count("a machine stands still");
      return host->Freeze(world_.Pick(100, 4'000) * kMs);
    case 3:
      Count("musterd restarts");
      return restart(*host);
    case 4:
      Count("all musterds restart");
      for (const auto& h : sim_.hosts) restart(*h);
      return;
    case 5:
      Count("musterd is stopped");
      return host->PauseDaemon(world_.Pick(100, 4'000) * kMs);
    default:
      Count("musterd's loop is busy");
      return host->StallLoop(world_.Pick(50, 250) * kMs);
  }
}

void Schedule::OnNetwork() {
  const auto hosts = static_cast<uint32_t>(sim_.hosts.size());
  const auto heal = [this] {
    world_.After(world_.Pick(200, 4'000) * kMs, [this] {
      world_.Log("the network heals");
      for (const auto& host : sim_.hosts) {
        if (host->hurt_at() >= 0) host->Hurt();
      }
      sim_.network.Heal();
    });
  };
  Host& hit = AnyBusy();
  const uint32_t one = hit.index();
  world_.After(0, [this] {
    for (const auto& host : sim_.hosts) host->MaybeHidden();
  });
  const auto all_hurt = [this] {
    for (const auto& host : sim_.hosts) host->Hurt();
  };
  hit.Hurt();
  switch (world_.Pick(0, 5)) {
    case 0:
      Count("a node is cut off");
      for (uint32_t other = 0; other < hosts; ++other) {
        if (other == one) continue;
        sim_.network.Cut(one, other);
        sim_.network.Cut(other, one);
      }
      if (world_.Chance(0.5)) sim_.store.SetReachable(one, false);
      return heal();
    case 1: {
      Count("the network is split");
      all_hurt();
      const auto part = static_cast<uint32_t>(world_.Pick(1, hosts - 1));
      for (uint32_t a = 0; a < part; ++a) {
        for (uint32_t b = part; b < hosts; ++b) {
          sim_.network.Cut(a, b);
          sim_.network.Cut(b, a);
        }
      }
      return heal();
    }
    case 2:
      Count("a node is not heard");
      for (uint32_t other = 0; other < hosts; ++other) {
        if (other != one) sim_.network.Cut(one, other);
      }
      return heal();
    case 3: {
      Count("two nodes do not reach each other");
      Host& far = Any();
      const uint32_t other = far.index();
      if (other == one) return;
      far.Hurt();
      sim_.network.Cut(one, other);
      if (world_.Chance(0.5)) sim_.network.Cut(other, one);
      return heal();
    }
    case 4:
      Count("links break");
      return sim_.network.BreakLinksOf(one);
    default:
      Count("bad weather");
      all_hurt();
      sim_.network.SetWeather({.loss = static_cast<double>(world_.Pick(0, 30)) / 100,
                               .twice = world_.Chance(0.5) ? 0.1 : 0,
                               .late = world_.Chance(0.5) ? 0.2 : 0,
                               .late_by = world_.Pick(5, 600) * kMs});
      return heal();
  }
}

void Schedule::OnStore() {
  switch (world_.Pick(0, 3)) {
    case 0: {
      Count("the store is down");
      sim_.store.SetDown(true);
      world_.After(world_.Pick(100, 3'000) * kMs, [this] { sim_.store.SetDown(false); });
      return;
    }
    case 1: {
      Count("a node does not reach the store");
      const uint32_t host = Any().index();
      sim_.store.SetReachable(host, false);
      world_.After(world_.Pick(100, 3'000) * kMs, [this, host] { sim_.store.SetReachable(host, true); });
      return;
    }
    case 2:
      Count("the store is slow");
      return sim_.store.SetSlow(0.5);
    default:
      Count("the store's answers are lost");
      return sim_.store.SetForgetful(0.3);
  }
}

void Schedule::Drain(uint32_t node) {
  if (sim_.job_over) return;
  Count("a node is drained");
  sim_.invariants.Cause(0);
  if (Coordinator* leader = sim_.Leader()) leader->Feed(gang::DrainNode{node, "maintenance"});
}

void Schedule::OnPurpose() {
  Coordinator* leader = sim_.Leader();
  const uint32_t node = Any().index();
  sim_.invariants.Cause(0);
  switch (world_.Pick(0, 7)) {
    case 0:
    case 1:
      return Drain(node);
    case 2:
    case 3:
      Count("a node is sick");
      if (leader != nullptr) leader->Feed(gang::NodeSick{node, "a GPU is gone"});
      return;
    case 4:
    case 5:
      Count("nodes are given back");
      if (leader != nullptr) {
        for (uint32_t n = 0; n < sim_.hosts.size() && leader->Leads(); ++n)
          leader->Feed(gang::NodeReturned{n});
      }
      return;
    case 6:
      Count("the job's end is near");
      sim_.invariants.JobEnds();
      if (leader != nullptr) {
        const int64_t left_ms = world_.Pick(100, 2'000);
        leader->Feed(gang::EndNear{.left_ms = left_ms});
        if (left_ms % 4 == 0 && leader->Leads()) leader->Feed(gang::EndMoved{});
      }
      return;
    default:
      Count("the job is cancelled");
      sim_.invariants.JobEnds();
      for (const auto& host : sim_.hosts) host->Terminate();
      world_.After(3'000 * kMs, [this] {  // KillWait
        if (!sim_.job_over) sim_.EndJob();
      });
  }
}

}  // namespace muster::sim
