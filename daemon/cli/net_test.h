// `muster net test`: one process on each node of a gang, which measure with each other.
#pragma once

#include "daemon/cli/ask.h"
#include "net/roce/fabric_interfaces.h"
#include "net/roce/settings.h"

namespace muster::cli {

struct TestWords {
  bool full = false;
  int wait_seconds = 60;
  bool nccl = false;
  int largest_mib = 1024;
};

// Where the others are is in the environment, as Muster and torchrun set it: GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
// The node of rank 0 leads, and prints what was found; the others end with the same code. A node's other members end at once.
int TestFabric(const Common& common, const roce::Host& host, const roce::Settings& settings,
               const TestWords& words);

// The same of the gang's GPUs, one process for each: becomes muster-nccl-test. Returns only when that cannot be executed.
int TestGpus(const Common& common, const roce::Host& host, const roce::Settings& settings,
             const TestWords& words);

}  // namespace muster::cli
