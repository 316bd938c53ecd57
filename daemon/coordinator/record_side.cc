#include "daemon/coordinator/record_side.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "daemon/coordinator/record_of_gang.h"
#include "daemon/coordinator/take_over.h"

namespace muster {
namespace {

constexpr auto kRetry = std::chrono::milliseconds(1000);
constexpr auto kRaiseRetry = std::chrono::milliseconds(300);
// A commit that is under way comes before the next generation's record, under which it would be refused.
constexpr auto kForCommits = std::chrono::milliseconds(500);

}  // namespace

std::vector<CoordinatorCore::Listed> GoodOf(const GangHead& head) {
  std::vector<CoordinatorCore::Listed> good;
  for (const CheckpointInfo& checkpoint : head.checkpoints) {
    if (checkpoint.good) good.push_back({checkpoint.step, checkpoint.fence.generation, checkpoint.manifest});
  }
  return good;
}

RecordSide::RecordSide(Loop& loop, std::shared_ptr<const BeatClock> clock, Worker* reader,
                       std::shared_ptr<Catalog> catalog, std::shared_ptr<CommitOrder> order,
                       const GangJob& job, CoordinatorCore& core, Hooks hooks)
    : clock_(std::move(clock)),
      loop_(loop),
      reader_(reader),
      catalog_(std::move(catalog)),
      order_(std::move(order)),
      job_(job),
      core_(core),
      hooks_(std::move(hooks)),
      calls_(loop) {}

void RecordSide::Read(HeadRead then) {
  reader_->Do([read = calls_.Back(std::move(then)), catalog = catalog_, clock = clock_] {
    const lease::Nanos asked_at = clock->Now();
    read(catalog->Load(), asked_at);
  });
}

void RecordSide::WriteRecord(const RecordFence::Advance& advance) {
  auto done = calls_.Back([this, generation = advance.to.generation, state = core_.gang().state()](
                              const Status& written, lease::Nanos asked) {
    if (core_.lost()) return;
    if (written) return core_.RecordWritten(generation, state, asked);
    if (written.error().code == Errc::kConflict) return core_.Deposed(written.error().message);
    spdlog::error("gang {}: record not written: {}", job_.Id(), written.error().message);
  });
  writer_.Do([done = std::move(done), mine = core_.fence().Mine(), catalog = catalog_, clock = clock_,
              order = order_, advance, record = hooks_.record().Encode(), id = job_.Id()] {
    if (advance.to.generation > advance.from.generation) order->AwaitCommits(kForCommits);
    lease::Nanos asked = clock->Now();
    // Nothing may overtake: what is queued behind is of the next fence.
    const Status written = catalog->AdvanceForSure(advance.from, advance.to, record, [&](const Error& error) {
      if (!mine()) return false;
      spdlog::warn("gang {}: record not written: {}; trying again", id, error.message);
      std::this_thread::sleep_for(kRetry);
      asked = clock->Now();
      return mine();
    });
    order->Recorded(advance.to.generation);
    done(written, asked);
  });
}

void RecordSide::WriteTerm(const RecordFence::Advance& advance, const Terms::Sets& sets) {
  GangRecord record = hooks_.record();
  record.term = advance.to.term;
  SetWitnesses(sets, &record);
  writer_.Do([done = calls_.Back([this](const Status& raised) { core_.TermRaised(raised); }),
              mine = core_.fence().Mine(), catalog = catalog_, advance, text = record.Encode()] {
    done(catalog->AdvanceForSure(advance.from, advance.to, text, [&](const Error&) {
      if (!mine()) return false;
      std::this_thread::sleep_for(kRaiseRetry);
      return mine();
    }));
  });
}

// A newer term has the record: this coordinator is not obeyed any more. Another node may coordinate this gang now,
// and then its members run on; or another job has taken the key, and then they must not.
void RecordSide::FindSuccessor(const std::string& why) {
  Read([this, why](const Result<GangHead>& head, lease::Nanos /*asked_at*/) {
    if (core_.lost()) return;
    if (!head) return hooks_.step_down("");  // nobody knows whose it is
    const Result<GangRecord> record = GangRecord::Decode(head->record);
    if (record && record->IsOf(job_)) return hooks_.step_down(record->coordinator);
    // A later job of the same name goes on from here.
    if (core_.ending().finished()) return hooks_.step_down("");
    if (const Status may = record ? TakeOver::MayRunOn(*record, job_) : Status(); !may)
      return hooks_.refuse(may.error().message, TakeOver::IsJobOver(may.error()));
    hooks_.refuse(
        fmt::format("another coordinator has taken over {} ({}); does another job use the same name=KEY?",
                    job_.Key(), why),
        false);
  });
}

void RecordSide::AskTerm() {
  if (asking_term_) return;
  asking_term_ = true;
  Read([this](const Result<GangHead>& head, lease::Nanos asked_at) {
    asking_term_ = false;
    if (head) core_.StoreHasTerm(head->fence.term, asked_at);
  });
}

// A store that does not answer is waited for: the members will need it for an older one.
void RecordSide::MarkBad(const gang::RejectCheckpoint& bad, bool later) {
  if (later) {
    loop_.After(kRetry, calls_.Here([this, bad] {
      if (!core_.lost()) MarkBad(bad, false);
    }));
    return;
  }
  auto done =
      calls_.Back([this, fence = core_.fence().fence(), bad](
                      const Status& marked, const std::optional<std::vector<CoordinatorCore::Listed>>& good) {
        core_.Marked(fence, bad, marked, good);
      });
  writer_.Do([done = std::move(done), mine = core_.fence().Mine(), catalog = catalog_,
              fence = core_.fence().fence(), bad, id = job_.Id()] {
    const auto settled = [](const auto& result) { return result || !MayPass(result.error()); };
    for (;;) {
      const Status marked = catalog->MarkBad(fence, bad.step, bad.manifest, bad.reason);
      const Result<GangHead> head = catalog->Load();
      if (settled(marked) && settled(head)) {
        if (!marked && marked.error().code != Errc::kNotFound && marked.error().code != Errc::kConflict)
          spdlog::error("gang {}: {}", id, marked.error().message);
        return done(marked, head ? std::optional(GoodOf(*head)) : std::nullopt);
      }
      if (!mine()) return;
      spdlog::warn("gang {}: the checkpoint of step {} is not marked bad: {}; trying again", id, bad.step,
                   marked ? head.error().message : marked.error().message);
      std::this_thread::sleep_for(kRetry);
    }
  });
}

}  // namespace muster
