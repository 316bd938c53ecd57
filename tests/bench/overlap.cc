// What the overlap of exchange and backward pass gains, for tests/bench/collectives.py: members on this machine train the
// same model with and without it, in turns. Prints one JSON object: seconds of a step, by pair, and the bytes of a gradient.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/collectives/collectives.h"
#include "tests/unit/net/processes.h"
#include "train/host_ops.h"
#include "train/matrix.h"
#include "train/trainer.h"

namespace muster::train {
namespace {

constexpr std::chrono::minutes kLimit{20};
constexpr int kMembers = 2;

struct Bench {
  TrainOptions options;
  int rounds = 9;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

Corpus Text() {
  std::vector<std::uint8_t> text(100'000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>('a' + i * i % 23);
  return Corpus(std::move(text));
}

// Seconds of a step.
double Time(Collectives& group, TrainOptions options, bool overlap, std::vector<float>& parameters) {
  options.exchange.overlap = overlap;
  if (Status met = group.Barrier(); !met) Fail(met.error().message);
  const auto begun = std::chrono::steady_clock::now();
  HostOps ops;
  Result<Outcome> outcome =
      Train(options, Text(), {.ops = ops, .group = group, .say = {}, .stop_requested = {}});
  if (!outcome) Fail(outcome.error().message);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
  parameters = std::move(outcome->parameters);
  return time.count() / static_cast<double>(options.steps);
}

int Measure(const Bench& bench, int rank, std::uint16_t port) {
  UseOneThread();
  GroupOptions group_options = test::LoopbackGroup(rank, kMembers, port);
  group_options.operation_timeout = kLimit;
  auto group = MakeCollectives("gloo", group_options);
  if (!group) Fail(group.error().message);
  nlohmann::json pairs = nlohmann::json::array();
  std::vector<float> with;
  std::vector<float> without;
  for (int round = 0; round < bench.rounds; ++round) {
    double overlapped = 0;
    if (round % 2 == 0) overlapped = Time(**group, bench.options, true, with);
    const double apart = Time(**group, bench.options, false, without);
    if (round % 2 != 0) overlapped = Time(**group, bench.options, true, with);
    if (with.size() != without.size() ||
        std::memcmp(with.data(), without.data(), with.size() * sizeof(float)) != 0)
      Fail("the weights are not the same with overlap and without");
    pairs.push_back({overlapped, apart});
  }
  if (rank == 0) {
    const nlohmann::json found = {{"pairs", pairs}, {"bytes", with.size() * sizeof(float)}};
    std::printf("%s\n", found.dump().c_str());
  }
  return std::fflush(stdout);
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  using namespace muster;
  train::Bench bench;
  train::TrainOptions& options = bench.options;
  options.model = {.width = 256, .depth = 6, .heads = 4, .context = 64};
  options.batch = 4;
  options.steps = 5;
  options.log_every = 0;
  CLI::App app("What the overlap of exchange and backward pass gains.");
  app.add_option("--rounds", bench.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--steps", options.steps, "in each turn")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const std::uint16_t port = test::FreePort();
  const std::vector<int> ended = test::RunMembers(
      train::kMembers, [&](int rank) { return train::Measure(bench, rank, port); }, train::kLimit);
  return std::all_of(ended.begin(), ended.end(), test::Succeeded) ? 0 : 1;
}
