// One node's part in a test of the fabric: it says what its ports are, measures what the referee asks, and hears the verdict.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/preflight/line_stream.h"
#include "net/preflight/rail.h"

namespace muster::preflight {

struct AgentOptions {
  std::string run;   // of which test: a node of another one is refused
  std::string host;  // the referee's
  uint16_t port = 0;
  uint32_t node = 0;
  std::string name;
  std::string switches;  // the way to the node in the fabric's tree, as Slurm writes it: "s0.s4"; "": unknown
  std::vector<std::string> networks;  // of the settings
  int64_t rate_mbit_s = 0;            // what the settings say that a link carries; 0: they do not
  std::vector<Rail> rails;
  uint8_t traffic_class = 0;
  std::string root;  // what /sys and /dev are below
};

// Whether the fabric is good, as the referee says at the end. Blocks until then; kUnavailable when the referee cannot be reached until `deadline` or ends
// before it has said one.
Result<bool> RunAgent(const AgentOptions& options, Deadline deadline);

}  // namespace muster::preflight
