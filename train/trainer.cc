#include "train/trainer.h"

#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <xxhash.h>

#include "train/group_values.h"
#include "train/model.h"
#include "train/optimizer.h"

namespace muster::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGradientNorm = 1.0;
// After a request to stop there are some seconds until SIGKILL. musterd has the shard by then and goes on
// without us.
constexpr std::chrono::milliseconds kLastWait(10'000);
constexpr std::chrono::milliseconds kFinalWait(600'000);

// What travels with the gradient's last part: sums over the members, so that all of them decide
// alike.
struct Shared {
  float loss = 0;
  float not_ready = 0;  // members that cannot take a checkpoint now
  float stop = 0;       // members that were asked to stop
};
constexpr std::size_t kSharedFloats = sizeof(Shared) / sizeof(float);

// Tokens a second since the last time it was asked.
class Speed {
 public:
  double Read(std::uint64_t step, double tokens_a_step) {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - since_).count();
    const double tokens = static_cast<double>(step - from_) * tokens_a_step;
    since_ = now;
    from_ = step;
    return seconds > 0 ? tokens / seconds : 0;
  }
  void Start(std::uint64_t step) {
    since_ = Clock::now();
    from_ = step;
  }

 private:
  Clock::time_point since_;
  std::uint64_t from_ = 0;
};

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Corpus& corpus, const TrainContext& context)
      : options_(options),
        corpus_(corpus),
        context_(context),
        ops_(context.ops),
        model_(ops_, options.model, options.batch),
        state_(ops_, model_.layout().size),
        exchange_(ops_, context.group, options.exchange, model_.layout().size, kSharedFloats) {}

  Result<Outcome> Run() {
    if (Status ready = Start(); !ready) return ready.error();
    bool stop = false;
    speed_.Start(state_.step);
    while (state_.step < options_.steps && !stop) {
      Result<bool> stepped = Step();
      if (!stepped) return stepped.error();
      stop = *stepped;
    }
    const bool finished = state_.step >= options_.steps;
    if (Status saved = SaveLast(finished); !saved) return saved.error();
    const std::span<const float> parameters = state_.parameters();
    Outcome outcome{state_.step, state_.loss, std::vector<float>(parameters.size()), finished};
    ops_.Copy(outcome.parameters.data(), parameters.data(), parameters.size_bytes());
    if (Status there = ops_.Wait(); !there) return there.error();
    if (Status same = CheckSame(outcome.parameters); !same) return same.error();
    return outcome;
  }

 private:
  Status Start() {
    if (context_.group.size() > 1 && context_.group.memory() != ops_.memory())
      return Error{Errc::kInvalid, "several members train in the memory that their collectives take"};
    // That there was no room is said before anything is done.
    if (Status allocated = ops_.Wait(); !allocated) return allocated;
    bool restored = false;
    if (context_.checkpoints != nullptr) {
      Result<bool> found = context_.checkpoints->Restore(context_.group, state_);
      if (!found) return found.error();
      restored = *found;
    }
    if (restored) {
      resumed_from_ = state_.step;
      Say(fmt::format("resumed from step {}", state_.step));
    } else {
      std::vector<float> parameters(state_.parameters().size());
      Initialize(model_.layout(), options_.seed, parameters);
      ops_.Copy(state_.parameters().data(), parameters.data(), state_.parameters().size_bytes());
      if (Status there = ops_.Wait(); !there) return there;
    }
    return {};
  }

  // One step; whether to stop after it.
  Result<bool> Step() {
    const auto began = Clock::now();
    const std::uint64_t step = state_.step + 1;
    const int size = context_.group.size();

    const Batch batch =
        corpus_.Sample({options_.seed, step, context_.group.rank()}, options_.batch, options_.model.context);
    const std::span<float> gradient = exchange_.gradient();
    Shared shared;
    model_.Forward(state_.parameters(), batch);
    model_.Backward(state_.parameters(), gradient, [this](Slice part) { exchange_.Ready(part); });
    const Result<double> loss = model_.Loss();
    if (!loss) return loss.error();
    shared.loss = static_cast<float>(*loss);
    // Before the others are waited for: it tells who is slow.
    const Checkpoints::Wish wish =
        context_.checkpoints != nullptr ? context_.checkpoints->Enter(step) : Checkpoints::Wish();

    const bool asked = wish.save || owed_;
    const bool due = IsDue(step, asked);
    const bool begun = due && context_.checkpoints->TryBegin(step, state_.all().size());
    shared.not_ready = due && !begun ? 1.0F : 0.0F;
    shared.stop = context_.stop_requested && context_.stop_requested() ? 1.0F : 0.0F;
    if (Status reduced = Exchange(shared); !reduced) return reduced.error();

    ops_.Divide(gradient, static_cast<float>(size));
    ops_.ClipNorm(gradient, kGradientNorm);
    AdamStep(ops_, {}, model_.layout(), step, LearningRate(options_.learning_rate, step, options_.steps),
             gradient, state_.parameters(), state_.first_moment(), state_.second_moment());
    state_.step = step;
    state_.loss = shared.loss / static_cast<float>(size);
    if (due) FinishSave(begun, shared.not_ready);
    owed_ = asked && shared.not_ready > 0;
    if (options_.log_every != 0 && (step % options_.log_every == 0 || step == options_.steps)) Log();
    std::this_thread::sleep_until(began + std::chrono::duration<double>(options_.step_seconds));
    return wish.exit || shared.stop > 0;
  }

  // The last step's checkpoint is SaveLast's, which may wait.
  [[nodiscard]] bool IsDue(std::uint64_t step, bool asked) const {
    if (context_.checkpoints == nullptr || step == options_.steps) return false;
    return asked || (options_.checkpoint_every != 0 && step % options_.checkpoint_every == 0);
  }

  // On a device: a few bytes up and down. With the loss that is all that a step copies of it besides the batch.
  Status Exchange(Shared& shared) {
    const std::span<float> sums = exchange_.shared();
    ops_.Copy(sums.data(), &shared, sizeof(shared));
    if (Status reduced = exchange_.Finish(); !reduced) return reduced;
    ops_.Copy(&shared, sums.data(), sizeof(shared));
    return ops_.Wait();
  }

  // A checkpoint is whole or not at all: when one member still has two older saves under way, all leave this
  // one out and train on. A save that fails later is not committed, and the one before it stays the newest.
  void FinishSave(bool begun, float not_ready) {
    if (not_ready > 0) {
      if (begun) context_.checkpoints->Abort();
      Say(fmt::format("checkpoint of step {} left out: {} of {} members still have older ones under way",
                      state_.step, static_cast<int>(not_ready), context_.group.size()));
      return;
    }
    if (Status saved = context_.checkpoints->Commit(state_); !saved) {
      fmt::print(stderr, "muster-train: rank {}: {}\n", context_.group.rank(), saved.error().message);
      return;
    }
    saved_ = state_.step;
  }

  Status SaveLast(bool finished) {
    if (finished && (context_.checkpoints == nullptr || options_.checkpoint_every == 0)) return {};
    if (resumed_from_ == state_.step) return {};  // nothing was done
    if (context_.checkpoints == nullptr) {
      Say(fmt::format("stopped after step {}", state_.step));
      return {};
    }
    if (saved_ != state_.step) {
      if (Status saved = context_.checkpoints->Save(state_); !saved) return saved;
    }
    Status committed = context_.checkpoints->Wait(state_.step, finished ? kFinalWait : kLastWait);
    if (finished) return committed;
    Say(committed
            ? fmt::format("stopped after step {}, checkpoint committed", state_.step)
            : fmt::format("stopped after step {}, checkpoint handed to musterd but not committed yet: {}",
                          state_.step, committed.error().message));
    return {};
  }

  // Members that have drifted apart would have saved slices of different models.
  Status CheckSame(std::span<const float> parameters) {
    std::vector<std::int64_t> digests(static_cast<std::size_t>(context_.group.size()));
    const auto mine = static_cast<std::size_t>(context_.group.rank());
    digests[mine] = std::bit_cast<std::int64_t>(XXH3_64bits(parameters.data(), parameters.size_bytes()));
    if (Status gathered = AllGather(ops_, context_.group, digests); !gathered) return gathered;
    for (std::size_t rank = 1; rank < digests.size(); ++rank) {
      if (digests[rank] == digests[0]) continue;
      return Error{Errc::kCorrupt, fmt::format("after step {} the weights of rank {} are not those of rank 0",
                                               state_.step, rank)};
    }
    return {};
  }

  void Log() {
    const double tokens_a_step =
        static_cast<double>(options_.batch) * options_.model.context * context_.group.size();
    Say(fmt::format("step {} loss {:.4f} tokens/s {:.0f}", state_.step, state_.loss,
                    speed_.Read(state_.step, tokens_a_step)));
  }

  void Say(const std::string& line) const {
    if (context_.group.rank() == 0 && context_.say) context_.say(line);
  }

  const TrainOptions options_;
  const Corpus& corpus_;
  const TrainContext& context_;
  Ops& ops_;
  Model model_;
  TrainingState state_;
  GradientExchange exchange_;
  Speed speed_;
  std::optional<std::uint64_t> resumed_from_;
  std::optional<std::uint64_t> saved_;  // the newest step that this run has handed over
  bool owed_ = false;                   // a save that was asked for has been left out
};

}  // namespace

Result<Outcome> Train(const TrainOptions& options, const Corpus& corpus, const TrainContext& context) {
  Trainer trainer(options, corpus, context);
  Result<Outcome> outcome = trainer.Run();
  if (!outcome) context.ops.Abandon();
  return outcome;
}

}  // namespace muster::train
