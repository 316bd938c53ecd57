#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/daemon.h"
#include "tests/sim/schedule.h"

namespace muster::sim {
namespace {

constexpr Nanos kPeace = 120'000 * kMs;  // until which every gang must have come to its end

Options MakeOptions(World& world) {
  Options options;
  options.times.reconnect = 4'000 * kMs;
  const auto nodes = static_cast<uint32_t>(world.Pick(8, 10));
  options.tasks_per_host = static_cast<size_t>(world.Pick(1, 2));
  gang::Settings& gang = options.gang;
  gang.id = "1.0";
  gang.node_count = nodes;
  gang.task_count = static_cast<uint32_t>(nodes * options.tasks_per_host);
  gang.roles[0].spares = static_cast<uint32_t>(world.Pick(0, 2));
  if (world.Chance(0.5)) gang.roles[0].min_nodes = static_cast<uint32_t>(world.Pick(3, 6));
  gang.grow = world.Chance(0.5);
  gang.restarts = static_cast<uint32_t>(world.Chance(0.2) ? world.Pick(0, 2) : 20);
  gang.requeue = world.Chance(0.7);
  gang.join_timeout_ms = 3'000;
  gang.grace_ms = 600;
  gang.exiting_ms = 200;
  gang.progress_after_ms = 1'500;
  options.job = {.batch_node = 0, .can_requeue = world.Chance(0.8)};
  for (uint32_t i = 0; i < nodes; ++i) {
    gang.node_names.push_back(fmt::format("n{}", i));
    options.candidates.push_back((i + 1) % nodes);
  }
  if (world.Chance(0.25)) {  // a role of services on the last node, which the workers wait for
    gang.roles.push_back({.name = "ps", .kind = gang::RoleKind::kService});
    gang.node_roles.assign(nodes, 0);
    gang.node_roles.back() = 1;
    if (world.Chance(0.5)) gang.roles[0].after = 1;
  }
  gang.order_by_topology = nodes == 8;  // not drawn: all other seeds stay what they were
  gang.preflight = nodes == 9 && options.tasks_per_host == 1 && gang.roles[0].spares == 2;  // nor is this
  gang.test_timeout_ms = 1'500;
  if (nodes == 10 && options.tasks_per_host == 2) gang.last_words_ms = 700;  // nor this
  for (uint32_t i = 0; i < nodes; ++i) gang.node_switches.push_back({"spine", fmt::format("leaf{}", i % 3)});
  options.gang_job = {.job_id = 1, .submission = 1, .launched_ns = 1, .task_count = gang.task_count};
  options.gang_job.hosts = gang.node_names;
  options.gang_job.options.restarts = gang.restarts;
  std::strcpy(options.gang_job.options.name, "model");
  return options;
}

}  // namespace

Simulation::Simulation(uint64_t seed, bool tracing, Coverage& coverage_)
    : world(seed, tracing),
      options(MakeOptions(world)),
      network(world, options.gang.node_count,
              [this](uint32_t to, uint32_t from, const lease::Datagram& datagram) {
                Host& host = *hosts[to];
                if (!host.crashed() && host.daemon() != nullptr) host.daemon()->Receive(from, datagram);
              }),
      store(world, options.gang.node_count),
      invariants(*this),
      coverage(coverage_),
      rival_(*this, seed) {
  for (uint32_t i = 0; i < options.gang.node_count; ++i) {
    hosts.push_back(std::make_unique<Host>(*this, i, options.tasks_per_host));
  }
}

Simulation::~Simulation() = default;

void Simulation::Dial(const std::shared_ptr<Link>& link) {
  world.After(50'000, [this, link] {
    if (!link->ends[kAgentEnd].open) return;
    const Host& peer = *hosts[link->ends[kCoordinatorEnd].host];
    if (peer.crashed() || peer.Frozen() || !network.Joined(link->ends[0].host, link->ends[1].host)) {
      world.After(20 * kMs, [this, link] {
        if (link->ends[kAgentEnd].open) Dial(link);
      });
      return;
    }
    link->accepted = true;
    if (peer.daemon() == nullptr) return link->Break();  // refused
    peer.daemon()->Accept(link);
  });
}

Coordinator* Simulation::Leader() const {
  Coordinator* leader = nullptr;
  for (const auto& host : hosts) {
    Coordinator* here = host->daemon() != nullptr ? host->daemon()->coordinator() : nullptr;
    if (here != nullptr && here->Leads() && (leader == nullptr || here->term() > leader->term()))
      leader = here;
  }
  return leader;
}

uint32_t Simulation::NodeOf(const std::string& name) const {
  const std::vector<std::string>& hosts = options.gang_job.hosts;
  return static_cast<uint32_t>(std::find(hosts.begin(), hosts.end(), name) - hosts.begin());
}

void Simulation::Requeue(std::function<void(const std::string&)> failed) {
  world.Log("Slurm is asked to requeue the job");
  const bool works = options.job.can_requeue && world.Chance(0.8);
  world.After(world.Pick(100, 900) * kMs, [this, works, failed = std::move(failed)] {
    if (job_over) return;
    requeued = works;
    if (works) return EndJob();
    failed("Slurm does not want to");
  });
}

void Simulation::EndJob() {
  world.Log("Slurm ends the job");
  job_over = true;
  for (const auto& host : hosts) host->EndJob();
}

void Simulation::Join() {
  for (const auto& host : hosts) {
    world.After(world.Pick(0, 150) * kMs, [&host] { host->StartDaemon(); });
  }
}

void Simulation::Heal() {
  world.Log("the faults stop");
  calm = true;
  network.Heal();
  store.Heal();
  for (const auto& host : hosts) {
    host->may_be_unkillable = host->slow_kill = false;
    if (host->hurt_at() >= 0) host->Hurt();
    host->Later(0, [&host] { host->StartDaemon(); });
  }
}

bool Simulation::Over() const {
  return std::all_of(hosts.begin(), hosts.end(),
                     [](const auto& host) { return host->crashed() || host->AllGone(); });
}

std::string Simulation::Run() {
  world.Log("{} nodes, {} tasks each, {} spares, min {}, grow {}, restarts {}", hosts.size(),
            options.tasks_per_host, options.gang.roles[0].spares, options.gang.roles[0].min_nodes,
            options.gang.grow, options.gang.restarts);
  Join();
  rival_.Begin();
  Schedule schedule(*this);
  const Nanos end = schedule.Plan();
  while (world.Step(end)) {
  }
  if (!world.failure().empty()) return world.failure();
  Heal();
  while (!Over() && world.Step(end + kPeace)) {
  }
  if (world.failure().empty() && !Over()) {
    const Coordinator* leader = Leader();
    std::string left;
    for (const auto& host : hosts) {
      if (!host->crashed() && !host->AllGone()) left += fmt::format(" n{}", host->index());
    }
    world.Fail(
        Invariant::kComesToEnd,
        fmt::format("the gang has not come to its end: {}; these were not told:{}",
                    leader == nullptr ? "nobody leads" : gang::ToString(leader->gang().state()), left));
  }
  coverage.Schedule(world.events(), store.head().fence.generation,
                    store.head().record && store.head().record->succeeded);
  return world.failure();
}

}  // namespace muster::sim
