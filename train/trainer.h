// Data-parallel training: every member computes the gradient of its own batch, all-reduces add them up part by part
// while the next part is computed, every member makes the same update.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "net/collectives/collectives.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/gradient_exchange.h"
#include "train/ops.h"
#include "train/weight_layout.h"

namespace muster::train {

struct TrainOptions {
  ModelConfig model;
  int batch = 1;  // sequences a member and step
  std::uint64_t steps = 1000;
  float learning_rate = 1e-3F;
  std::uint64_t seed = 1;
  std::uint64_t checkpoint_every = 100;  // steps; 0: none
  std::uint64_t log_every = 10;          // steps; 0: none
  double step_seconds = 0;               // that a step takes at least
  ExchangeOptions exchange;
};

// How training ended.
struct Outcome {
  std::uint64_t step = 0;
  double loss = 0;
  std::vector<float> parameters;
  // False: asked to stop before the last step; what there is has been saved.
  bool finished = false;
};

// What training needs of its surroundings. Rank 0 alone speaks, a line at a time.
struct TrainContext {
  // Where it computes. A group of several members takes the same memory. After an error they are abandoned.
  Ops& ops;
  Collectives& group;
  Checkpoints* checkpoints = nullptr;  // null: train without
  std::function<void(const std::string& line)> say;
  // Whether this process was told to stop (SIGTERM). One member's word stops all at the same step.
  std::function<bool()> stop_requested;
};

// Trains to the last step, from the newest checkpoint if there is one. The weights that come out are a
// function of options, text, size of the group and kind of Ops: bit for bit the same whether the run was interrupted or
// not, where the group's sums are repeatable(). A lost member is kUnavailable; a checkpoint that is not committed at the
// end is an error too.
[[nodiscard]] Result<Outcome> Train(const TrainOptions& options, const Corpus& corpus,
                                    const TrainContext& context);

}  // namespace muster::train
