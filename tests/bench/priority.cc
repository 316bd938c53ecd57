// What a drain takes from a program that uses the same processors, by the niceness of the engine's threads, for
// tests/bench/priority.py. A thread on each processor computes for some milliseconds and waits for some, as one that drives an
// accelerator does, while the engine writes a shard into a directory store. Prints one JSON object.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/engine_bench.h"
#include "tests/unit/ceph/chunk_samples.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// The same work each time: no clock, so that what others take of the processor makes it longer.
void Compute(uint64_t rounds) {
  volatile uint64_t state = 1;
  for (uint64_t i = 0; i < rounds; ++i) state = state * 6364136223846793005 + 1442695040888963407;
}

class Trainer {
 public:
  Trainer(unsigned threads, uint64_t rounds, std::chrono::microseconds wait) {
    for (unsigned i = 0; i < threads; ++i) {
      threads_.emplace_back([this, rounds, wait] {
        while (!stop_) {
          Compute(rounds);
          steps_.fetch_add(1, std::memory_order_relaxed);
          std::this_thread::sleep_for(wait);
        }
      });
    }
  }
  ~Trainer() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] uint64_t steps() const { return steps_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> steps_{0};
  std::vector<std::thread> threads_;
};

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  using namespace muster;
  BenchOptions bench{.mib = 512};
  int status = 0;
  if (!bench.Parse("What a drain takes from a program on the same processors.", "of the shard", argc, argv,
                   &status))
    return status;
  const std::shared_ptr<Store> store = BenchStore(bench.directory);
  const std::string data = NoiseBytes(bench.mib << 20);
  const auto memory = Staged(data);

  constexpr std::chrono::microseconds kCompute{7'000};
  constexpr std::chrono::microseconds kWait{3'000};
  constexpr uint64_t kTrial = 20'000'000;
  const auto begun = Clock::now();
  Compute(kTrial);
  const auto work =
      static_cast<uint64_t>(kTrial * std::chrono::duration<double>(kCompute).count() / SecondsSince(begun));

  nlohmann::json result;
  uint64_t step = 0;
  const auto save = [&](Engine& engine) {
    RemoveShard(*store, SaveShard(engine, *memory, data.size(), ++step));
  };
  for (int round = 0; round < bench.rounds; ++round) {
    for (const int niceness : {0, 5, 10, 19}) {
      EngineOptions options;
      options.write_niceness = niceness;
      Engine engine(store, options);
      save(engine);  // makes its memory real
      const Trainer trainer(std::max(1U, std::thread::hardware_concurrency()), work, kWait);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const auto rate = [&trainer](const auto& meanwhile) {
        const uint64_t before = trainer.steps();
        const auto since = Clock::now();
        meanwhile();
        return static_cast<double>(trainer.steps() - before) / SecondsSince(since);
      };
      const double alone = rate([] { std::this_thread::sleep_for(std::chrono::seconds(1)); });
      const auto since = Clock::now();
      const double beside = rate([&] {
        for (int i = 0; i < 4; ++i) save(engine);
      });
      auto& of = result[std::to_string(niceness)];
      of["loss"].push_back(1 - beside / alone);
      of["mib_per_s"].push_back(4 * static_cast<double>(bench.mib) / SecondsSince(since));
    }
  }
  std::printf("%s\n", result.dump().c_str());
}
