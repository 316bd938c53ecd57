#include "tests/sim/rival.h"

#include <cstring>
#include <memory>
#include <utility>
#include <variant>

#include "tests/sim/simulation.h"

namespace muster::sim {
namespace {

constexpr Nanos kJoin = 3'000 * kMs;

}  // namespace

void Rival::Later(int64_t least_ms, int64_t most_ms, World::Task task) {
  sim_.world.After(Pick(least_ms, most_ms) * kMs, std::move(task));
}

void Rival::Come() {
  GangJob job{.job_id = ++job_id_, .submission = job_id_, .launched_ns = job_id_, .task_count = 1};
  job.hosts = {"rival"};
  std::strcpy(job.options.name, sim_.options.gang_job.options.name);
  job.options.name_wait = Pick(0, 1) == 1;
  const Nanos refusal = sim_.world.now() + kJoin;
  rules_.emplace(TakeOver::Origin{.fresh = true}, job, "rival", TakeOver::Until{0, refusal});
  Look();
}

void Rival::Look() {
  const Store::Head& head = sim_.store.head();
  if (!head.record || sim_.store.down()) return Later(200, 900, [this] { Look(); });
  const TakeOver::Decision decision = rules_->Decide({head.fence, head.record.get()}, {sim_.world.now()}, {});
  if (const auto* held = std::get_if<TakeOver::Held>(&decision)) return Ask(held->record);
  if (const auto* swap = std::get_if<TakeOver::Swap>(&decision))
    Later(1, 400, [this, swap = *swap] { Take(swap); });
}

// The answer is under way for a while.
void Rival::Ask(const GangRecord& holder) {
  Later(1, 300, [this, holder] {
    Later(1, 300, [this, holder, said = Slurm()] {
      switch (rules_->claim().Heard(holder, said, sim_.world.now())) {
        case NameClaim::Next::kTake:
          return Look();
        case NameClaim::Next::kRefuse:
          return Later(500, 4'000, [this] { Come(); });
        default:
          return Later(200, 900, [this] { Look(); });
      }
    });
  });
}

Result<SlurmJob> Rival::Slurm() {
  if (Pick(0, 3) == 0) return Error{Errc::kUnavailable, "slurmctld does not answer"};
  SlurmJob job;
  job.state = sim_.requeued ? "PENDING" : sim_.job_over ? "CANCELLED" : sim_.Over() ? "COMPLETED" : "RUNNING";
  job.restart_count = sim_.requeued ? 1 : 0;
  return job;
}

// By compare-and-swap: if the record has another fence by now it is looked at again.
void Rival::Take(const TakeOver::Swap& swap) {
  if (sim_.store.head().fence != swap.from) return Look();
  sim_.world.Log("job {} takes the name", job_id_);
  sim_.invariants.NameTaken(*sim_.store.head().record);
}

}  // namespace muster::sim
