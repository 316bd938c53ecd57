#include "spank-plugin/no_kill.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank-plugin/front_end.h"
#include "spank-plugin/spank_header.h"

namespace muster::plugin {
namespace {

// What srun reads; sbatch and salloc hand it on to the job's sruns.
constexpr char kOfSrun[] = "SLURM_NO_KILL";
// Set while a program that was started again reads its options.
constexpr char kAgain[] = "MUSTER_NO_KILL_SET";

enum class Program { kSbatch, kSalloc, kSrun };

Program WhichProgram() {
  if (spank_context() == S_CTX_LOCAL) return Program::kSrun;
  return strcmp(program_invocation_short_name, "salloc") == 0 ? Program::kSalloc : Program::kSbatch;
}

// The variable that stands for the option.
const char* Variable(Program program) {
  switch (program) {
    case Program::kSbatch:
      return "SBATCH_NO_KILL";
    case Program::kSalloc:
      return "SALLOC_NO_KILL";
    case Program::kSrun:
      break;
  }
  return kOfSrun;
}

// The whole of a file of /proc as strings that each end with a NUL, the list ending with a null pointer; nullptr when it
// cannot be read.
char** Strings(const char* path, size_t more) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  size_t size = 0;
  size_t room = 64 * 1024;
  auto* text = static_cast<char*>(malloc(room + 1));
  while (text != nullptr) {
    const ssize_t got = read(fd, text + size, room - size);
    if (got < 0) text = nullptr;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
    if (size == room) text = static_cast<char*>(realloc(text, (room *= 2) + 1));
  }
  close(fd);
  if (text == nullptr) return nullptr;
  text[size] = '\0';
  size_t count = 0;
  for (size_t at = 0; at < size; at += strlen(text + at) + 1) ++count;
  auto** list = static_cast<char**>(calloc(count + more + 1, sizeof(char*)));
  if (list == nullptr) return nullptr;
  count = 0;
  for (size_t at = 0; at < size; at += strlen(text + at) + 1) list[count++] = text + at;
  return list;
}

// Whether a program that is started again finds its input as it was: sbatch may have read its script there.
bool RewindInput(Program program) {
  struct stat input {};
  if (program != Program::kSbatch || fstat(STDIN_FILENO, &input) != 0) return true;
  if (S_ISREG(input.st_mode)) return lseek(STDIN_FILENO, 0, SEEK_SET) == 0;
  if (!S_ISFIFO(input.st_mode) && !S_ISSOCK(input.st_mode)) return true;
  pollfd ended = {STDIN_FILENO, POLLIN, 0};
  int left = 0;
  const bool read_up = poll(&ended, 1, 0) == 1 && ioctl(STDIN_FILENO, FIONREAD, &left) == 0 && left == 0;
  return !read_up;
}

// Starts this program anew, as it was started, with the option in its environment. Nothing has been submitted yet.
// Returns when that is not possible.
void StartAgain(Program program) {
  if (!RewindInput(program)) return;
  // Never freed: either execve follows, or the few lines of this program that are left.
  static char** arguments = nullptr;
  static char** environment = nullptr;
  arguments = Strings("/proc/self/cmdline", 0);
  environment = Strings("/proc/self/environ", 2);
  if (arguments == nullptr || environment == nullptr) return;
  char option[64];
  char again[64];
  snprintf(option, sizeof(option), "%s=set", Variable(program));
  snprintf(again, sizeof(again), "%s=1", kAgain);
  size_t count = 0;
  while (environment[count] != nullptr) ++count;
  environment[count++] = option;
  environment[count++] = again;
  environment[count] = nullptr;
  execve("/proc/self/exe", arguments, environment);
}

// A job that was submitted without --gang may be one that ends with its first lost node; nobody can see that from here.
void WarnOfItsJob() {
  const char* job = getenv("SLURM_JOB_ID");
  if (job == nullptr || getenv(kOfSrun) != nullptr) return;
  slurm_info(
      "muster: --gang was not given when job %s was submitted: unless it has --no-kill, Slurm ends the whole "
      "job "
      "when one of its nodes fails",
      job);
}

}  // namespace

void AskForNoKill() {
  static bool started_again = false;
  const Program program = WhichProgram();
  const char* by_user = getenv(Variable(program));
  if (getenv(kAgain) != nullptr) {
    started_again = true;
    unsetenv(kAgain);
    unsetenv(Variable(program));
    if (program != Program::kSrun) setenv(kOfSrun, "set", 1);
  }
  if (started_again) return;
  if (program == Program::kSrun) WarnOfItsJob();
  if (front_end::IsSet("no-kill")) {
    const char* value = front_end::Get("no-kill");
    const bool off = value != nullptr && strcmp(value, "set") != 0;
    if (program != Program::kSrun) setenv(kOfSrun, off ? "off" : "set", 1);
    return;
  }
  if (front_end::Set("no-kill", "set")) {
    if (program != Program::kSrun) setenv(kOfSrun, "set", 1);
    return;
  }
  if (by_user != nullptr) return;
  StartAgain(program);
  slurm_info(
      "muster: this job has no --no-kill: Slurm will end all of it when one of its nodes fails; add '#SBATCH "
      "--no-kill' to the script");
}

}  // namespace muster::plugin
