// PyTorch's flight recorder. A program with TORCH_NCCL_DEBUG_INFO_PIPE_FILE makes a FIFO: that name, its rank, ".pipe". When a byte
// comes there, the program writes what its communicators have done into a file of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace muster::capture {

struct AskedDumps {
  std::vector<std::string> asked;  // FIFOs
  std::string error;               // of the last FIFO that was not written to
};

// Writes to each of these processes' FIFOs once. For a caller that has no other rights than the processes' user, for the names are
// the user's.
AskedDumps AskForDumps(const std::vector<pid_t>& pids);

}  // namespace muster::capture
