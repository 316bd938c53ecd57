// What the collectives' interface costs over Gloo's own calls, for tests/bench/collectives.py: members on this machine, over
// loopback, do the same operations through both, in turns. Prints one JSON object: milliseconds of an operation, by pair.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/collectives/collectives.h"
#include "tests/unit/net/processes.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBytesATurn = 16U << 20U;
constexpr std::size_t kMostATurn = 100;
constexpr std::chrono::minutes kLimit{20};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

void Check(const Status& status) {
  if (!status) Fail(status.error().message);
}

using RawContext = std::shared_ptr<gloo::rendezvous::Context>;

// One member's connections: Muster's, and Gloo's own.
class Member {
 public:
  Member(int rank, int size, std::uint16_t port, const std::string& directory)
      : ours_(MakeOurs(rank, size, port)),
        raw_(MakeRaw(rank, size, directory, "all")),
        raw_reduce_scatter_(MakeRaw(rank, size, directory, "reduce_scatter")) {}

  // Milliseconds of one of `count` operations, until all members have done all.
  double Time(std::size_t count, const std::function<void()>& operation) {
    Check(ours_->Barrier());
    const auto begun = Clock::now();
    for (std::size_t i = 0; i < count; ++i) operation();
    Check(ours_->Barrier());
    return std::chrono::duration<double, std::milli>(Clock::now() - begun).count() /
           static_cast<double>(count);
  }

  [[nodiscard]] Collectives& ours() { return *ours_; }
  [[nodiscard]] const RawContext& raw() const { return raw_; }
  // Gloo gives the sockets of a pair a small send buffer for it, with which all else would be slow.
  [[nodiscard]] const RawContext& raw_reduce_scatter() const { return raw_reduce_scatter_; }

 private:
  static std::unique_ptr<Collectives> MakeOurs(int rank, int size, std::uint16_t port) {
    auto made = MakeCollectives("gloo", test::LoopbackGroup(rank, size, port));
    if (!made) Fail(made.error().message);
    return *std::move(made);
  }

  static RawContext MakeRaw(int rank, int size, const std::string& directory, const std::string& name) {
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    gloo::transport::tcp::attr loopback;
    loopback.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    gloo::rendezvous::FileStore files(directory);
    gloo::rendezvous::PrefixStore store(name, files);
    context->connectFullMesh(store, device);
    return context;
  }

  const std::unique_ptr<Collectives> ours_;
  const RawContext raw_;
  const RawContext raw_reduce_scatter_;
};

// Gloo's own sum.
std::function<void()> RawAllReduce(const RawContext& context, std::vector<float>& values,
                                   gloo::AllreduceOptions::Algorithm algorithm) {
  return [context, &values, algorithm] {
    gloo::AllreduceOptions options(context);
    options.setOutput(values.data(), values.size());
    options.setAlgorithm(algorithm);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
}

struct Pair {
  const char* name;
  std::function<void()> ours;
  std::function<void()> raw;
};

// The same operations of `values`, which has a part for each member.
std::vector<Pair> Operations(Member& member, std::vector<float>& values) {
  const auto size = static_cast<std::size_t>(member.ours().size());
  const Numbers numbers{std::span<float>(values)};
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  const auto all_reduce = [&member, numbers] { Check(member.ours().AllReduce(numbers, ReduceOp::kSum)); };
  return {
      {"all_reduce", all_reduce, RawAllReduce(member.raw(), values, Algorithm::RING)},
      {"all_reduce_bcube", all_reduce, RawAllReduce(member.raw(), values, Algorithm::BCUBE)},
      {"all_gather", [&member, numbers] { Check(member.ours().AllGather(numbers)); },
       [&member, &values] {
         gloo::AllgatherOptions options(member.raw());
         options.setOutput(values.data(), values.size());
         gloo::allgather(options);
       }},
      {"reduce_scatter", [&member, numbers] { Check(member.ours().ReduceScatter(numbers, ReduceOp::kSum)); },
       // As a program has it that reduces the same buffer again and again.
       [algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
            member.raw_reduce_scatter(), std::vector<float*>{values.data()}, static_cast<int>(values.size()),
            std::vector<int>(size, static_cast<int>(values.size() / size)))] { algorithm->run(); }},
  };
}

int Measure(Member& member, const std::vector<std::size_t>& sizes, int rounds) {
  nlohmann::json found;
  for (const std::size_t bytes : sizes) {
    std::vector<float> values(bytes / sizeof(float));
    const std::size_t count = std::clamp<std::size_t>(kBytesATurn / bytes, 1, kMostATurn);
    for (const Pair& pair : Operations(member, values)) {
      nlohmann::json pairs = nlohmann::json::array();
      for (int round = -1; round < rounds; ++round) {  // the first maps memory and opens windows
        std::fill(values.begin(), values.end(), 0.0F);
        double ours = 0;
        double raw = 0;
        if (round % 2 == 0) ours = member.Time(count, pair.ours);
        raw = member.Time(count, pair.raw);
        if (round % 2 != 0) ours = member.Time(count, pair.ours);
        if (round >= 0) pairs.push_back({ours, raw});
      }
      found[pair.name][std::to_string(bytes)] = pairs;
    }
  }
  if (member.ours().rank() == 0) std::printf("%s\n", found.dump().c_str());
  return std::fflush(stdout);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  using namespace muster;
  int members = 2;
  int rounds = 9;
  std::vector<std::size_t> sizes;
  std::string directory;
  CLI::App app("What the collectives' interface costs over Gloo's own calls.");
  app.add_option("--members", members)->check(CLI::Range(2, 64));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--bytes", sizes, "of a buffer")->required()->check(CLI::Range(4096, 1 << 30));
  app.add_option("--directory", directory, "in which members find each other")->required();
  CLI11_PARSE(app, argc, argv);
  const std::uint16_t port = test::FreePort();
  const std::vector<int> ended = test::RunMembers(
      members,
      [&](int rank) {
        Member member(rank, members, port, directory);
        return Measure(member, sizes, rounds);
      },
      kLimit);
  return std::all_of(ended.begin(), ended.end(), test::Succeeded) ? 0 : 1;
}
