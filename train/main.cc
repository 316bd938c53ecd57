// muster-train: the reference trainer.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <xxhash.h>

#include "net/collectives/collectives.h"
#include "train/checkpoint.h"
#include "train/cuda_ops.h"
#include "train/data.h"
#include "train/host_ops.h"
#include "train/matrix.h"
#include "train/muster_api.h"
#include "train/train_options.h"
#include "train/trainer.h"

namespace muster::train {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void OnStop(int /*signal*/) {
  stop_requested = 1;
}

void InstallStop() {
  struct sigaction action {};
  action.sa_handler = &OnStop;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

void Say(const std::string& line) {
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

// Written aside and renamed, so that a reader never sees half of it.
Status WriteParameters(const std::string& path, const std::vector<float>& parameters) {
  const std::string aside = path + ".part";
  const auto failed = [&] {
    Error error{Errc::kUnavailable, "writing '" + path + "': " + std::generic_category().message(errno)};
    (void)std::remove(aside.c_str());
    return error;
  };
  std::FILE* file = std::fopen(aside.c_str(), "wb");
  if (file == nullptr) return failed();
  const bool written =
      std::fwrite(parameters.data(), sizeof(float), parameters.size(), file) == parameters.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(aside.c_str(), path.c_str()) != 0) return failed();
  return {};
}

Status Report(const CommandLine& command, const Outcome& outcome) {
  if (!outcome.finished) return {};
  if (!command.parameters_out.empty()) {
    if (Status written = WriteParameters(command.parameters_out, outcome.parameters); !written)
      return written;
  }
  const XXH64_hash_t digest =
      XXH3_64bits(outcome.parameters.data(), outcome.parameters.size() * sizeof(float));
  Say(fmt::format("final loss {:.4f} digest {:016x} params {}", outcome.loss, digest,
                  outcome.parameters.size()));
  return {};
}

// What it computes with; `group` is told of the memory that this takes.
Result<std::unique_ptr<Ops>> MakeOps(const CommandLine& command, GroupOptions& group) {
  if (command.device == "cpu") return std::unique_ptr<Ops>(std::make_unique<HostOps>());
  if (command.collectives == "nccl") {
    group.memory = MemoryKind::kCuda;
  } else if (group.size > 1) {
    return Error{Errc::kInvalid,
                 fmt::format("--device=cuda with {} members needs --collectives=nccl", group.size)};
  }
  return MakeCudaOps({.cuda = group.cuda_library}, group.device);
}

Status Run(const CommandLine& command, bool& in_gang) {
  Result<GroupOptions> group_options = GroupOptionsFromEnvironment();
  if (!group_options) return group_options.error();
  // Before the others are met: a member that cannot start says so itself instead of being missed.
  Result<Corpus> corpus = Corpus::Load(command.text, command.train.model.context);
  if (!corpus) return corpus.error();
  const Result<std::unique_ptr<Ops>> ops = MakeOps(command, *group_options);
  if (!ops) return ops.error();
  Result<Handle> muster = OpenMuster();
  if (!muster) return muster.error();
  in_gang = *muster != nullptr;
  std::optional<Checkpoints> checkpoints;
  if (in_gang) {
    checkpoints.emplace(muster->get(), command.train.model, group_options->rank, group_options->size);
    group_options->exchange = ExchangeOver(muster->get());
  } else if (group_options->rank == 0) {
    Say("not started by Muster: training without checkpoints");
  }
  group_options->operation_timeout = std::chrono::seconds(command.operation_timeout_s);
  Result<std::unique_ptr<Collectives>> group = MakeCollectives(command.collectives, *group_options);
  if (!group) return group.error();
  if (!(*group)->repeatable() && group_options->rank == 0)
    Say(fmt::format("sums over {}: other nodes may give other bits", command.collectives));
  const TrainContext context{**ops, **group, checkpoints ? &*checkpoints : nullptr, &Say,
                             [] { return stop_requested != 0; }};
  Result<Outcome> outcome = Train(command.train, *corpus, context);
  if (!outcome) {
    // To close it would wait for the device, which may never be done.
    if ((*ops)->memory() == MemoryKind::kCuda) (void)muster->release();
    return outcome.error();
  }
  return group_options->rank == 0 ? Report(command, *outcome) : Status();
}

int Main(int argc, char** argv) {
  const Parsed parsed = ParseCommandLine(argc, argv);
  if (!parsed.command) return parsed.status;
  UseOneThread();
  InstallStop();
  bool in_gang = false;
  const Status status = Run(*parsed.command, in_gang);
  if (status) return 0;
  const char* rank = std::getenv("RANK");
  fmt::print(stderr, "muster-train: rank {}: {}\n", rank == nullptr ? "0" : rank, status.error().message);
  // A peer that is gone is why this member ends, not the cause of the fault. Muster stops the gang within
  // milliseconds of the peer's death; ending first would put this exit status into its report.
  if (in_gang && status.error().code == Errc::kUnavailable)
    std::this_thread::sleep_for(std::chrono::seconds(2));
  return 1;
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  return muster::train::Main(argc, argv);
}
