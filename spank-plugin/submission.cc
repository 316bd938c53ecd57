#include "spank-plugin/submission.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "spank-plugin/front_end.h"
#include "spank-plugin/plugin_options.h"

namespace muster::plugin {
namespace {

constexpr size_t kDigits = 16;

bool SetNumber(const char* variable, uint64_t number) {
  char text[kDigits + 1];
  snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return setenv(variable, text, 1) == 0;
}

uint64_t NumberIn(spank_t spank, const char* variable) {
  char text[kDigits + 1] = "";
  if (spank_getenv(spank, variable, text, sizeof(text)) != ESPANK_SUCCESS ||
      strspn(text, "0123456789abcdef") != kDigits) {
    return 0;
  }
  return strtoull(text, nullptr, 16);
}

}  // namespace

void NumberSubmission() {
  static bool done = false;  // a heterogeneous job is one submission
  // Within a job, and with --jobid, srun starts a step of a job that has its number already. After salloc --no-shell the environment
  // lacks that number, so srun --jobid draws one for its step.
  const bool srun = spank_context() == S_CTX_LOCAL;
  const bool step = getenv("SLURM_JOB_ID") != nullptr ||
                    (front_end::IsSet("jobid") && getenv(kSubmissionVariable) != nullptr);
  if (done || (srun && (step || !Gang().given))) return;
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) return;
  }
  done = SetNumber(kSubmissionVariable, number);
}

void NoteLaunch() {
  static bool done = false;  // all components of a step are launched together
  if (done || spank_context() != S_CTX_LOCAL || !Gang().given) return;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  done = SetNumber(kLaunchVariable,
                   static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec));
}

uint64_t SubmissionOf(spank_t spank) {
  return NumberIn(spank, kSubmissionVariable);
}

int64_t LaunchOf(spank_t spank) {
  return static_cast<int64_t>(NumberIn(spank, kLaunchVariable));
}

}  // namespace muster::plugin
