// Simulated nodes against a real musterd: how long until every node has the whole spec of a generation.
//   rendezvous_bench --musterd PROGRAM --nodes N [--tasks 8] [--rounds R]
// A round is two gangs. The first dials and registers with all nodes at once (cold), is restarted by a fault, and
// ends; of the second all links are up and all nodes but one attended, when that one registers (spec), and all members give each
// other 128 bytes (exchange). Prints one line
// of JSON with a list of milliseconds for each. Needs root: it runs in a mount namespace of its own, with its own
// munged and /etc/hosts.
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/rendezvous/fleet.h"
#include "tests/bench/rendezvous/musterd_process.h"
#include "tests/unit/ceph/temporary_directory.h"
#include "tests/unit/daemon/private_munge.h"

namespace muster {
namespace {

constexpr uint16_t kPort = 303;        // in a network namespace or on a machine without another musterd
constexpr char kCoordinator[] = "n2";  // as nodes choose it: the second of the step
constexpr size_t kDialers = 4;

struct Options {
  std::string musterd;
  uint32_t nodes = 64;
  uint32_t tasks = 8;
  uint32_t rounds = 3;
  uint16_t port = kPort;
};

double Ms(Fleet::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// Every node's name resolves, to this host.
bool NameNodes(uint32_t nodes) {
  std::ofstream hosts("/run/hosts");
  hosts << "127.0.0.1 localhost\n";
  for (uint32_t node = 1; node <= nodes; ++node) hosts << "127.0.0.1 n" << node << "\n";
  hosts.close();
  return ::mount("/run/hosts", "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
}

// A socket a link on both sides.
void AllowManyFiles() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    for (size_t i = 0; i < kDialers; ++i) dialers_.push_back(std::make_unique<Worker>());
  }

  void Round() {
    Cold();
    Warm();
  }

  [[nodiscard]] nlohmann::json Result() const {
    return {{"cold_ms", cold_},
            {"restart_ms", restart_},
            {"spec_ms", spec_},
            {"exchange_ms", exchange_},
            {"spec_bytes", spec_bytes_}};
  }

 private:
  Fleet::Clock::time_point Now() { return Fleet::Clock::now(); }

  FleetOptions Next() {
    return {kCoordinator, fmt::format("127.0.0.1:{}", options_.port), ++job_, options_.nodes, options_.tasks};
  }

  void Cold() {
    Fleet fleet(Next(), dialers_);
    const auto began = Now();
    for (uint32_t node = 0; node < options_.nodes; ++node) {
      fleet.Open(node);
      fleet.Register(node);
    }
    cold_.push_back(Ms(fleet.WaitReady(1) - began));
    spec_bytes_ = fleet.spec_bytes();
    Restart(fleet);
    End(fleet, 2);
  }

  void Restart(Fleet& fleet) {
    for (uint32_t node = 0; node < options_.nodes; ++node) fleet.Executed(node, 1);
    fleet.Exited(0, 1, SIGKILL);
    fleet.WaitStopOrdered(1);
    for (uint32_t node = 0; node + 1 < options_.nodes; ++node) fleet.Stopped(node, 1);
    const auto began = Now();
    fleet.Stopped(options_.nodes - 1, 1);
    restart_.push_back(Ms(fleet.WaitReady(2) - began));
  }

  void Warm() {
    Fleet fleet(Next(), dialers_);
    // The last node's link is the first to be dialled, so it has long been up when all others are attended.
    for (uint32_t node = options_.nodes; node-- > 0;) fleet.Open(node);
    for (uint32_t node = 0; node + 1 < options_.nodes; ++node) fleet.Register(node);
    fleet.WaitAttended(options_.nodes - 1);
    const auto began = Now();
    fleet.Register(options_.nodes - 1);
    spec_.push_back(Ms(fleet.WaitReady(1) - began));
    const auto given = Now();
    for (uint32_t node = 0; node < options_.nodes; ++node) fleet.Give(node, 1);
    exchange_.push_back(Ms(fleet.WaitGathered() - given));
    End(fleet, 1);
  }

  // As after a person's Ctrl-C: the gang is over, and its coordinator goes.
  void End(Fleet& fleet, uint64_t generation) {
    for (uint32_t node = 0; node < options_.nodes; ++node) fleet.Executed(node, generation);
    fleet.Exited(0, generation, SIGINT);
    fleet.WaitStopOrdered(generation);
    for (uint32_t node = 0; node < options_.nodes; ++node) fleet.Stopped(node, generation);
    fleet.WaitFinished();
  }

  const Options options_;
  std::vector<std::unique_ptr<Worker>> dialers_;
  uint32_t job_ = 0;
  std::vector<double> cold_;
  std::vector<double> restart_;
  std::vector<double> spec_;
  std::vector<double> exchange_;
  size_t spec_bytes_ = 0;
};

int Run(const Options& options) {
  AllowManyFiles();
  const PrivateMunge& munge = PrivateMunge::Get();
  if (!munge.problem().empty() || !NameNodes(options.nodes)) {
    std::fprintf(stderr, "rendezvous_bench: no namespace of its own: %s\n", munge.problem().c_str());
    return 1;
  }
  const TemporaryDirectory directory;
  const MusterdProcess musterd(options.musterd, directory.path(), kCoordinator, options.port);
  const double idle_mb = musterd.PeakRssMb();
  const double idle_cpu = musterd.CpuSeconds();
  Bench bench(options);
  for (uint32_t round = 0; round < options.rounds; ++round) bench.Round();
  nlohmann::json result = bench.Result();
  result["nodes"] = options.nodes;
  result["peak_rss_mb"] = musterd.PeakRssMb();
  result["idle_rss_mb"] = idle_mb;
  result["cpu_s"] = (musterd.CpuSeconds() - idle_cpu) / options.rounds;
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  CLI::App app{"How long a coordinator takes until every node has the spec"};
  muster::Options options;
  app.add_option("--musterd", options.musterd, "The program")->required();
  app.add_option("--nodes", options.nodes, "Simulated nodes")->check(CLI::Range(2, 60'000));
  app.add_option("--tasks", options.tasks, "Tasks a node")->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "How often each is measured")->check(CLI::Range(1, 1000));
  app.add_option("--port", options.port, "musterd's, on the loopback");
  CLI11_PARSE(app, argc, argv);
  return muster::Run(options);
}
