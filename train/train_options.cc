#include "train/train_options.h"

#include <CLI/CLI.hpp>

#include <limits>

namespace muster::train {

Parsed ParseCommandLine(int argc, const char* const* argv) {
  CommandLine command;
  TrainOptions& train = command.train;
  CLI::App app{
      "Trains a byte-level transformer language model, data-parallel over the members of a gang.\n"
      "Who is in the group comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; without them it trains "
      "alone.\n"
      "In a Muster gang its members meet through musterd; it saves checkpoints and resumes from the newest "
      "one."};
  app.option_defaults()->always_capture_default();
  const auto count = [](std::uint64_t low) {
    return CLI::Range(low, std::uint64_t{std::numeric_limits<std::int64_t>::max()});
  };
  app.add_option("--text", command.text, "file to learn from")->required();
  app.add_option("--width", train.model.width, "width of the residual stream")->check(CLI::Range(1, 16384));
  app.add_option("--depth", train.model.depth, "number of blocks")->check(CLI::Range(1, 1024));
  app.add_option("--heads", train.model.heads, "attention heads; a divisor of the width")
      ->check(CLI::Range(1, 1024));
  app.add_option("--context", train.model.context, "bytes in a sequence")->check(CLI::Range(1, 65536));
  app.add_option("--batch", train.batch, "sequences a member and step")->check(CLI::Range(1, 65536));
  app.add_option("--steps", train.steps, "steps in all")->check(count(1));
  app.add_option("--lr", train.learning_rate, "peak learning rate")->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", train.seed, "of the first weights and of the batches");
  app.add_option("--checkpoint-every", train.checkpoint_every, "steps between checkpoints; 0: none")
      ->check(count(0));
  app.add_option("--log-every", train.log_every, "steps between lines; 0: none")->check(count(0));
  app.add_option("--step-seconds", train.step_seconds,
                 "seconds that a step takes at least: a gang to try things with, which leaves the processors "
                 "to others")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--params-out", command.parameters_out, "file for the final weights, raw float32");
  app.add_option("--operation-timeout", command.operation_timeout_s,
                 "seconds that one exchange between the members may take")
      ->check(CLI::Range(1, 86'400));
  app.add_option("--collectives", command.collectives, "what carries them: gloo, or nccl on CUDA devices");
  app.add_option(
         "--device", command.device,
         "what computes: cpu, or cuda, one device a member; several members then need --collectives=nccl")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  try {
    app.parse(argc, argv);
    if (train.model.width % train.model.heads != 0) {
      throw CLI::ValidationError("--heads", "must divide the width, " + std::to_string(train.model.width));
    }
  } catch (const CLI::ParseError& e) {
    return {std::nullopt, app.exit(e) == 0 ? 0 : 2};
  }
  return {std::move(command), 0};
}

}  // namespace muster::train
