// muster-nccl-test: what `muster net test --nccl` runs as, one process for each GPU of a gang.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/own_name.h"
#include "train/bandwidth.h"
#include "train/muster_api.h"

namespace muster::train {
namespace {

struct Words {
  bool json = false;
  std::size_t largest_mib = 1024;
  int wait_seconds = 60;
  double link_mbit_s = 0;
};

Status Run(const Words& words) {
  const Result<Handle> muster = OpenMuster();
  if (!muster) return muster.error();
  const char* const node = std::getenv("GROUP_RANK");
  if (*muster == nullptr || node == nullptr) {
    return Error{Errc::kInvalid,
                 "this is no gang: start it with one task for each GPU, as in "
                 "srun --gang=restarts=0 -N4 --ntasks-per-node=8 --gres=gpu:8 muster net test --nccl"};
  }
  BandwidthOptions options;
  Result<GroupOptions> gang = GroupOptionsFromEnvironment();
  if (!gang) return gang.error();
  options.gang = *std::move(gang);
  if (options.gang.size < 2)
    return Error{Errc::kInvalid, "a test needs two GPUs or more, and this gang has one"};
  options.gang.memory = MemoryKind::kCuda;
  options.gang.exchange = ExchangeOver(muster->get());
  options.gang.connect_timeout = std::chrono::seconds(words.wait_seconds);
  options.gang.operation_timeout = std::chrono::seconds(words.wait_seconds);
  options.node = std::atoi(node);
  options.in_node = options.gang.device;
  options.host = OwnName();
  options.largest = words.largest_mib << 20U;
  const Result<Bandwidth> found = MeasureBandwidth(options);
  if (!found) return found.error();
  if (options.gang.rank > 0) return {};
  const double link = words.link_mbit_s / 8000;
  fmt::print("{}", words.json ? BandwidthJson(*found, link) : BandwidthText(*found, link));
  return {};
}

int Main(int argc, char** argv) {
  Words words;
  CLI::App app{"Measures how fast the GPUs of a gang exchange by NCCL: `muster net test --nccl`"};
  app.add_flag("--json", words.json, "for programs");
  app.add_option("--largest-mib", words.largest_mib, "the largest all-reduce")->check(CLI::Range(1, 65'536));
  app.add_option("--wait", words.wait_seconds, "seconds to wait for the others")->check(CLI::Range(1, 3'600));
  app.add_option("--link-mbit", words.link_mbit_s, "what a link carries");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(words);
  if (status) return 0;
  const char* const rank = std::getenv("RANK");
  fmt::print(stderr, "muster: rank {}: {}\n", rank == nullptr ? "0" : rank, status.error().message);
  return status.error().code == Errc::kInvalid ? 2 : 1;
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  return muster::train::Main(argc, argv);
}
