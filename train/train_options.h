// The command line of muster-train.
#pragma once

#include <optional>
#include <string>

#include "train/trainer.h"

namespace muster::train {

struct CommandLine {
  TrainOptions train;
  std::string text;
  std::string parameters_out;  // empty: not written
  std::string collectives = "gloo";
  int operation_timeout_s = 300;
  std::string device = "cpu";  // or "cuda"
};

// What to run, or the exit status when that is settled: 0 after --help, 2 after a usage error, which has been
// printed.
struct Parsed {
  std::optional<CommandLine> command;
  int status = 0;
};
[[nodiscard]] Parsed ParseCommandLine(int argc, const char* const* argv);

}  // namespace muster::train
