// What a drain takes from a program that uses the same processors, by the niceness of the engine's threads, for
// tests/bench/priority.py. A thread on each processor computes for some milliseconds and waits for some, as one that drives an
// accelerator does, while the engine writes a shard into a directory store. Prints one JSON object.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ceph/engine/engine.h"
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

void Save(Engine& engine, Store& store, const std::shared_ptr<StagedMemory>& memory, size_t bytes,
          uint64_t step) {
  std::promise<Result<Shard>> done;
  engine.WriteShard("u0", "bench", step, {1, 1}, 0, *memory, bytes, {},
                    [&done](Result<Shard> shard) { done.set_value(std::move(shard)); });
  const auto shard = done.get_future().get();
  if (!shard) {
    std::fprintf(stderr, "%s\n", shard.error().message.c_str());
    std::exit(1);
  }
  for (uint64_t i = 0; i < shard->chunks.size(); ++i) (void)store.Remove({"u0", shard->ObjectOf(i)});
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  using namespace muster;
  CLI::App app("What a drain takes from a program on the same processors.");
  size_t mib = 512;
  int rounds = 5;
  std::string directory;
  app.add_option("--mib", mib, "of the shard")->check(CLI::Range(4, 4096));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--directory", directory, "for a store, best of memory")->required();
  CLI11_PARSE(app, argc, argv);
  auto opened = OpenStore({.url = "dir:" + directory});
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.error().message.c_str());
    return 1;
  }
  const std::shared_ptr<Store> store = *std::move(opened);
  const std::string data = NoiseBytes(mib << 20);
  UniqueFd fd(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::write(fd.get(), data.data(), data.size()) != static_cast<ssize_t>(data.size()) ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    std::perror("memfd");
    return 1;
  }
  const auto memory = *StagedMemory::Take(std::move(fd));

  constexpr std::chrono::microseconds kCompute{7'000};
  constexpr std::chrono::microseconds kWait{3'000};
  constexpr uint64_t kTrial = 20'000'000;
  const auto begun = Clock::now();
  Compute(kTrial);
  const auto work =
      static_cast<uint64_t>(kTrial * std::chrono::duration<double>(kCompute).count() / SecondsSince(begun));

  nlohmann::json result;
  uint64_t step = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const int niceness : {0, 5, 10, 19}) {
      EngineOptions options;
      options.write_niceness = niceness;
      Engine engine(store, options);
      Save(engine, *store, memory, data.size(), ++step);  // makes its memory real
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
        for (int i = 0; i < 4; ++i) Save(engine, *store, memory, data.size(), ++step);
      });
      auto& of = result[std::to_string(niceness)];
      of["loss"].push_back(1 - beside / alone);
      of["mib_per_s"].push_back(4 * static_cast<double>(mib) / SecondsSince(since));
    }
  }
  std::printf("%s\n", result.dump().c_str());
}
