// muster-slurm: libslurm in a process of its own, for musterd (daemon/slurm/slurm.h). Reads questions from its standard
// input, answers on its standard output, one JSON object a line, until the input ends.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "daemon/slurm/helper/libslurm.h"
#include "daemon/slurm/helper/operations.h"
#include "daemon/slurm/messages.h"

namespace muster::slurm {
namespace {

// Reads a line without its end. False at the end of the input, or when the line is too long to be musterd's.
bool ReadLine(std::string* line) {
  line->clear();
  for (int c = std::cin.get(); c != EOF; c = std::cin.get()) {
    if (c == '\n') return true;
    if (line->size() >= kMaxRequest) return false;
    *line += static_cast<char>(c);
  }
  return false;
}

}  // namespace
}  // namespace muster::slurm

int main() {
  // musterd may be killed while this process waits for slurmctld.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ios::sync_with_stdio(false);
  const std::unique_ptr<muster::slurm::Calls> calls = muster::slurm::OpenLibslurm();
  for (std::string line; muster::slurm::ReadLine(&line);) {
    std::cout << muster::slurm::Answer(*calls, line) << '\n' << std::flush;
  }
  return 0;
}
