#include "spank-plugin/submission.h"

#include <signal.h>
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

// Slurm tells nobody later what the job's --signal was.
void KeepWarning() {
  const char* signal = front_end::IsSet("signal") ? front_end::Get("signal") : nullptr;
  if (signal != nullptr) {
    setenv(kWarningVariable, signal, 1);
  } else {
    unsetenv(kWarningVariable);  // of the job that submits this one
  }
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
  KeepWarning();
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

void ReadWarning(spank_t spank, int* signal, uint32_t* seconds) {
  constexpr uint32_t kSlurmsOwn = 60;
  char text[64] = "";
  if (spank_getenv(spank, kWarningVariable, text, sizeof(text)) != ESPANK_SUCCESS) return;
  const char* name = text;
  if (char* colon = strchr(text, ':')) {
    *colon = '\0';
    if (strchr(text, 'B') != nullptr) return;
    name = colon + 1;
  }
  uint32_t before = kSlurmsOwn;
  if (char* at = strchr(const_cast<char*>(name), '@')) {
    *at = '\0';
    before = static_cast<uint32_t>(strtoul(at + 1, nullptr, 10));
  }
  int number = static_cast<int>(strtol(name, nullptr, 10));
  for (int known = 1; known < NSIG && number == 0; ++known) {
    const char* abbreviated = sigabbrev_np(known);
    if (abbreviated != nullptr && strcmp(abbreviated, name) == 0) number = known;
  }
  if (number <= 0 || number >= NSIG || before == 0) return;
  *signal = number;
  *seconds = before;
}

int64_t LaunchOf(spank_t spank) {
  return static_cast<int64_t>(NumberIn(spank, kLaunchVariable));
}

}  // namespace muster::plugin
