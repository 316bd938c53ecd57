#include "spank-plugin/remote.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "spank-plugin/component_list.h"
#include "spank-plugin/local.h"
#include "spank-plugin/plugin_options.h"
#include "spank-plugin/submission.h"
#include "spank-plugin/supervisor/anchors.h"
#include "spank-plugin/supervisor/supervisor.h"
#include "wire/gang_options.h"

namespace muster::plugin {
namespace {

constexpr int kRetryMs = 50;

// What OnTaskPrivileged leaves for OnTask. Plain descriptors: nothing may run when slurmstepd unloads the
// plugin.
struct Prepared {
  int root = -1;
  int proc = -1;
  int cgroups = -1;
  int socket = -1;
  supervisor::Identity identity;
  supervisor::WarmSettings warm;
  char** arguments = nullptr;
  bool disabled = false;   // musterd says that Muster is switched off
  char failure[512] = "";  // why the task cannot go on
};
constinit Prepared prepared;

constinit char node_list[48 * 1024] = "";
constinit char components[48 * 1024] = "";

// What srun has found out about a step with --gang: kPlain, kRefused, or kLost with a number; "" for nothing.
const char* SrunsWord(spank_t spank) {
  static char said[32];
  return spank_getenv(spank, kStepVariable, said, sizeof(said)) == ESPANK_SUCCESS ? said : "";
}

bool SrunSays(spank_t spank, const char* word) {
  return strcmp(SrunsWord(spank), word) == 0;
}

// A task of a step that a user has started as a gang: not the batch script, the extern step, or salloc's shell.
bool IsGangTask(spank_t spank) {
  uint32_t step_id = 0;
  return Gang().given && spank_get_item(spank, S_JOB_STEPID, &step_id) == ESPANK_SUCCESS &&
         step_id <= SLURM_MAX_NORMAL_STEP_ID && !SrunSays(spank, kPlain);
}

// Ends the task with a message on its stderr and in the node's log. Not by the hook's return value: when the
// plugin is "optional" in plugstack.conf, Slurm would go on and start the program without its gang.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  slurm_error("muster: %s", text);
  _exit(1);
}

// To be told to the user in OnTask, when stderr is the task's own.
__attribute__((format(printf, 1, 2))) void FailLater(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(prepared.failure, sizeof(prepared.failure), format, arguments);
  va_end(arguments);
}

// slurmstepd has SIGTERM blocked here and will forget a pending one, so that scancel has to be looked for.
bool ToldToStop() {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGTERM) == 1;
}

// Says hello to musterd and waits for its answer, which is left in the socket for the supervisor. Trying
// again covers a musterd that is just restarting, whose old socket may still take connections that it never
// answers.
UniqueFd Greet(int root_fd, const Arguments& arguments, int* error) {
  const int64_t end = supervisor::MonotonicMs() + int64_t{arguments.wait_seconds} * 1000;
  for (;;) {
    UniqueFd fd = supervisor::Connect(root_fd, arguments.socket);
    *error = errno;
    if (fd.valid() && supervisor::SendHello(fd.get(), prepared.identity, {}) == supervisor::Sent::kWhole) {
      pollfd answer = {fd.get(), POLLIN, 0};
      while (poll(&answer, 1, kRetryMs) == 0 && supervisor::MonotonicMs() < end && !ToldToStop()) {
      }
      char byte = 0;
      if (recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return fd;
      *error = ETIMEDOUT;
    }
    if (supervisor::MonotonicMs() >= end || ToldToStop()) return UniqueFd();
    poll(nullptr, 0, kRetryMs);
  }
}

// Whether musterd's answer, which stays in the socket, is that Muster is switched off.
bool SwitchedOff(int fd) {
  alignas(wire::Refused) char packet[sizeof(wire::Refused)];
  wire::Refused refused{};
  if (recv(fd, packet, sizeof(packet), MSG_PEEK | MSG_DONTWAIT) < static_cast<ssize_t>(sizeof(packet)))
    return false;
  memcpy(&refused, packet, sizeof(refused));
  return refused.header.magic == wire::kMagic &&
         refused.header.type == static_cast<uint16_t>(wire::Type::kRefused) &&
         refused.reason == static_cast<uint32_t>(wire::Refusal::kDisabled);
}

bool SetEnvironment(void* context, const char* key, const char* value) {
  return spank_setenv(static_cast<spank_t>(context), key, value, 1) == ESPANK_SUCCESS;
}

bool DefaultEnvironment(void* context, const char* key, const char* value) {
  const spank_err_t set = spank_setenv(static_cast<spank_t>(context), key, value, 0);
  return set == ESPANK_SUCCESS || set == ESPANK_ENV_EXISTS;
}

bool UnsetEnvironment(void* context, const char* key) {
  return spank_unsetenv(static_cast<spank_t>(context), key) == ESPANK_SUCCESS;
}

bool GetEnvironment(void* context, const char* key, char* value, size_t size) {
  return spank_getenv(static_cast<spank_t>(context), key, value, static_cast<int>(size)) == ESPANK_SUCCESS;
}

void Log(void* /*context*/, const char* line) {
  slurm_info("muster: %s", line);
}

// Fills in prepared.identity.
bool ReadIdentity(spank_t spank) {
  supervisor::Identity& identity = prepared.identity;
  wire::SupervisorHello& hello = identity.hello;
  uid_t uid = 0;
  gid_t gid = 0;
  int local_id = 0;
  const bool good =
      spank_get_item(spank, S_JOB_ID, &hello.job_id) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_STEPID, &hello.step_id) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_UID, &uid) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_GID, &gid) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_NODEID, &hello.node_id) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_NNODES, &hello.node_count) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &hello.task_count) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &hello.local_task_count) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_TASK_GLOBAL_ID, &hello.task_id) == ESPANK_SUCCESS &&
      spank_get_item(spank, S_TASK_ID, &local_id) == ESPANK_SUCCESS;
  if (!good) {
    FailLater("Slurm does not tell this task's place in its step");
    return false;
  }
  hello.uid = uid;
  hello.gid = gid;
  hello.local_id = static_cast<uint32_t>(local_id);
  hello.supervisor_pid = static_cast<uint32_t>(getpid());
  hello.submission = SubmissionOf(spank);
  hello.launched_ns = LaunchOf(spank);
  char count[16] = "";
  if (spank_getenv(spank, "SLURM_RESTART_COUNT", count, sizeof(count)) == ESPANK_SUCCESS) {
    hello.restart_count = static_cast<uint32_t>(strtoul(count, nullptr, 10));
  }
  if (spank_getenv(spank, "SLURM_STEP_NODELIST", node_list, sizeof(node_list)) != ESPANK_SUCCESS &&
      spank_getenv(spank, "SLURM_JOB_NODELIST", node_list, sizeof(node_list)) != ESPANK_SUCCESS) {
    FailLater("SLURM_STEP_NODELIST is missing from this step's environment, or longer than %zu bytes",
              sizeof(node_list));
    return false;
  }
  if (const char* why = DescribeComponents(spank, components, sizeof(components))) {
    FailLater("%s", why);
    return false;
  }
  identity.components = components;
  identity.node_list = node_list;
  if (const char* said = SrunsWord(spank); strncmp(said, kLost, strlen(kLost)) == 0)
    LeaveOutSpares(static_cast<uint32_t>(strtoul(said + strlen(kLost), nullptr, 10)));
  identity.options = Gang().value;
  return true;
}

// PMI servers live in slurmstepd and count their clients once: a second generation would find no place there.
bool UsesPmi(spank_t spank) {
  char type[64] = "";
  if (spank_getenv(spank, "SLURM_MPI_TYPE", type, sizeof(type)) != ESPANK_SUCCESS ||
      strcmp(type, "none") == 0) {
    return false;
  }
  FailLater(
      "a gang cannot be started with --mpi=%s, because %s keeps state in slurmstepd that does not survive a "
      "restart of the program; use srun --mpi=none (Muster itself tells the members where they are)",
      type, type);
  return true;
}

bool UnderDebugger(spank_t spank) {
  char set[4];
  return spank_getenv(spank, kDebuggerVariable, set, sizeof(set)) != ESPANK_ENV_NOEXIST;
}

// A standby gets on at idle priority, and an ordinary user's process leaves that with this limit only.
void PrepareWarmStarts() {
  wire::GangOptions options;
  char error[wire::kMaxOptionError];
  if (!wire::ParseGangOptions(Gang().value, strlen(Gang().value), &options, error, sizeof(error)) ||
      !options.warm)
    return;
  constexpr rlim_t kNiceZero = 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NICE, &limit) != 0 || limit.rlim_cur >= kNiceZero) return;
  prepared.warm.nice_soft = limit.rlim_cur;
  prepared.warm.nice_hard = limit.rlim_max;
  limit = {kNiceZero, limit.rlim_max > kNiceZero ? limit.rlim_max : kNiceZero};
  prepared.warm.nice_raised = setrlimit(RLIMIT_NICE, &limit) == 0;
}

void CloseAnchors() {
  for (int* fd : {&prepared.root, &prepared.proc, &prepared.cgroups, &prepared.socket}) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
}

}  // namespace

int OnTaskPrivileged(spank_t spank, int argc, char** argv) {
  if (!IsGangTask(spank) || SrunSays(spank, kRefused) || Gang().error[0] != '\0' || UnderDebugger(spank))
    return 0;
  if (UsesPmi(spank) || !ReadIdentity(spank)) return 0;
  supervisor::Anchors anchors = supervisor::OpenAnchors();
  const Arguments arguments = ReadArguments(argc, argv, false);
  // Said as root: that is how musterd knows that a hello is Slurm's and not a user's.
  int error = 0;
  prepared.socket = Greet(anchors.root.get(), arguments, &error).release();
  if (prepared.socket < 0) {
    FailLater(
        "musterd does not answer on this node: %s: %s (tried for %u s); start it with 'systemctl start %s'",
        arguments.socket, strerror(error), arguments.wait_seconds, wire::kUnit);
    return 0;
  }
  if (SwitchedOff(prepared.socket)) {
    close(prepared.socket);
    prepared.socket = -1;
    prepared.disabled = true;
    return 0;
  }
  int count = 0;
  if (spank_get_item(spank, S_JOB_ARGV, &count, &prepared.arguments) != ESPANK_SUCCESS || count == 0)
    prepared.arguments = nullptr;
  PrepareWarmStarts();
  prepared.root = anchors.root.release();
  prepared.proc = anchors.proc.release();
  prepared.cgroups = anchors.cgroups.release();
  return 0;
}

int OnTask(spank_t spank, int argc, char** argv) {
  if (!IsGangTask(spank)) {
    for (const char* variable : {kStepVariable, kLaunchVariable}) spank_unsetenv(spank, variable);
    return 0;
  }
  if (SrunSays(spank, kRefused)) _exit(1);
  if (Gang().error[0] != '\0') Fail("%s", Gang().error);
  if (UnderDebugger(spank)) {
    slurm_spank_log("muster: srun is under a parallel debugger: this task runs without its gang");
    spank_unsetenv(spank, kDebuggerVariable);
    return 0;
  }
  for (const char* variable : {kComponentsVariable, kLaunchVariable, kStepVariable})
    spank_unsetenv(spank, variable);
  if (prepared.disabled) {
    slurm_info("muster: switched off on this node: the task runs without its gang");
    return 0;
  }
  if (prepared.failure[0] != '\0') Fail("%s", prepared.failure);
  const Arguments arguments = ReadArguments(argc, argv, false);
  supervisor::Settings settings;
  settings.socket_path = arguments.socket;
  settings.root_fd = prepared.root;
  settings.proc_fd = prepared.proc;
  settings.cgroups_fd = prepared.cgroups;
  settings.forward_signals = arguments.forward_signals;
  settings.identity = prepared.identity;
  ReadWarning(spank, &settings.warn_signal, &settings.warn_seconds);
  settings.warm = prepared.warm;
  settings.arguments = prepared.arguments;
  UniqueFd socket(prepared.socket);
  prepared.socket = -1;
  {
    supervisor::Supervisor supervisor(
        settings, {spank, SetEnvironment, UnsetEnvironment, DefaultEnvironment, Log, GetEnvironment});
    supervisor.Run(static_cast<UniqueFd&&>(socket));
  }
  CloseAnchors();
  return 0;
}

}  // namespace muster::plugin
