// muster-health: the checks of one node, for musterd (check.h says why it is a process) and for whoever wants to see
// them: muster-health [KEY=VALUE ...]. Prints lines (findings.h); exits 0 when all was looked at, 2 on a bad argument.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "daemon/health/findings.h"

namespace {

// At once, so that musterd knows what was looked at when nothing more comes. A reader that is gone ends this process
// by SIGPIPE.
void Tell(const muster::HealthLine& line) {
  const std::string text = muster::ToLine(line);
  for (size_t at = 0; at < text.size();) {
    const ssize_t size = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
    if (size <= 0) ::_exit(1);
    at += static_cast<size_t>(size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto options = muster::ParseHealthArguments({argv + 1, argv + argc});
  if (!options) {
    fmt::print(stderr, "muster-health: {}\n", options.error().message);
    return 2;
  }
  // Even if nobody is left to end it.
  ::alarm(static_cast<unsigned int>(std::clamp<int64_t>(options->timeout.count() / 1'000, 1, 3'600) + 2));
  muster::Findings findings(Tell);
  muster::CheckMemory(*options, findings);
  muster::CheckNics(*options, findings);
  muster::CheckDisks(*options, findings);
  muster::CheckGpus(*options, findings);
  // Last: where a service's filter forbids the call, it ends here.
  muster::CheckClock(findings);
  findings.Done();
  // Not return: a library's clean-up may hang where its use did not.
  ::_exit(0);
}
