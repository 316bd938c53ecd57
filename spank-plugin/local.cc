#include "spank-plugin/local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank-plugin/component_list.h"
#include "spank-plugin/front_end.h"
#include "spank-plugin/job_nodes.h"
#include "spank-plugin/no_kill.h"
#include "spank-plugin/outcome.h"
#include "spank-plugin/plugin_options.h"
#include "wire/gang_options.h"
#include "wire/member_variables.h"

// srun's own variable of the MPIR debugger interface; there is none in the other programs that load the
// plugin.
extern "C" __attribute__((weak)) int MPIR_being_debugged;

namespace muster::plugin {
namespace {

// Of the component whose options were read last: its --gang is the job's, and not its own.
constinit bool inherited = false;
// As srun found the variable, which is an outer srun's then.
constinit const char* outer_terminal = nullptr;

// Whether the gang can be had on so many nodes; says why not.
bool Fits(uint32_t nodes) {
  wire::GangOptions options;
  char error[wire::kMaxOptionError];
  const bool parsed =
      wire::ParseGangOptions(Gang().value, strlen(Gang().value), &options, error, sizeof(error));
  if (parsed && wire::CheckNodes(options, nodes, error, sizeof(error))) return true;
  const char* program = program_invocation_short_name;
  if (!parsed || !inherited) {
    slurm_error("%s", error);
  } else {
    slurm_error(
        "%s; --gang is inherited from the job: write %s --gang=off for no gang, or %s -N%u for a gang", error,
        program, program, options.spares + (options.min_nodes > 0 ? options.min_nodes : 1));
  }
  return false;
}

const char* TerminalPort() {
  return getenv("SLURM_PTY_PORT");
}

// srun has set the variable by now, unless srun disregards --pty for want of a terminal. An outer srun's is the same string still.
bool HasTerminal() {
  const char* port = TerminalPort();
  return port != nullptr && port != outer_terminal;
}

// Why a step with the job's --gang is no gang, or null.
const char* WhyPlain(uint32_t job, uint32_t tasks) {
  static char why[64];
  if (HasTerminal()) return "a terminal";
  if (tasks != 1) return nullptr;
  const uint32_t nodes = NodesLeft(job);
  snprintf(why, sizeof(why), "one task of a job with %u nodes", nodes);
  return nodes > 1 ? why : nullptr;
}

// Of an srun in a job that has lost nodes: prints a line where the flags ask for nodes or tasks that were lost, of which Slurm's errors
// do not speak, and where the step has fewer tasks than the script counts on.
void NameLostNodes() {
  const Left& left = LeftToTheJob();
  const char* job = front_end::IsSet("jobid") ? front_end::Get("jobid") : nullptr;
  const char* own = getenv("SLURM_JOB_ID");
  if (left.nodes == 0 || (job != nullptr && own != nullptr && strcmp(job, own) != 0)) return;
  const char* nodes = front_end::IsGiven('N') ? front_end::Get("nodes") : nullptr;  // "4" or "2-4"
  const char* tasks = front_end::IsGiven('n') ? front_end::Get("ntasks") : nullptr;
  const char* list = front_end::IsGiven('w') ? front_end::Get("nodelist") : nullptr;
  const bool counts = left.tasks > 0 && !front_end::IsSet("overcommit") && !front_end::IsGiven('c');
  const bool too_many = (nodes != nullptr && strtoul(nodes, nullptr, 10) > left.nodes) ||
                        (tasks != nullptr && counts && strtoul(tasks, nullptr, 10) > left.tasks) ||
                        (list != nullptr && !AllLeft(list));
  char with[32] = "";
  if (left.tasks > 0) snprintf(with, sizeof(with), ", with %u tasks", left.tasks);
  if (too_many) {
    slurm_error(
        "muster: of its %u nodes the job has %s left: srun without -N, -n and -w starts on all of them%s",
        left.nodes_before, left.list, with);
  } else if (left.tasks > 0 && tasks == nullptr) {
    slurm_info("muster: of its %u nodes the job has %s left: %u tasks, not %u", left.nodes_before, left.list,
               left.tasks, left.tasks_before);
  }
}

// A step or a job that a member starts is not that member. Where it is a gang, its members get variables of their own.
void ForgetMember() {
  if (getenv("MUSTER_TOKEN") == nullptr) return;
  slurm_verbose(
      "muster: the variables of the member that starts this are unset: name what is to stay, as "
      "--export=ALL,NAME=VALUE");
  for (const char* variable : wire::kMemberVariables) unsetenv(variable);
}

}  // namespace

int OnOptions() {
  static unsigned read = 0;  // of the components before this one
  const unsigned times = Gang().times - read;
  const bool given = times > 0 && Gang().given;
  read = Gang().times;
  inherited = times == 1 && Gang().inherited;
  const bool srun = spank_context() == S_CTX_LOCAL;
  ForgetMember();
  if (srun) {
    outer_terminal = TerminalPort();
    unsetenv(kStepVariable);  // of an srun around this one
    NameLostNodes();
    const char* groups = front_end::IsSet("het-group") ? front_end::Get("het-group") : nullptr;
    if (const char* why = AddComponent(given, Gang().value, groups != nullptr ? groups : "")) {
      slurm_error("%s", why);
      exit(1);  // a plugin that is `optional` in plugstack.conf cannot refuse by what it returns
    }
  }
  if (!given) return 0;
  // sbatch and salloc hand the first component's on to the others, which it need not fit.
  static bool handed_on = false;
  const bool own = srun || !handed_on;
  handed_on = true;
  // Whether a step with the job's --gang is a gang at all is known once it has its nodes: OnLocal.
  const uint32_t nodes = own && !(srun && inherited) ? front_end::NodesAskedFor() : 0;
  if (nodes > 0 && !Fits(nodes)) exit(1);
  AskForNoKill();
  return 0;
}

int OnLocal(spank_t spank, const char* muster) {
  if (!Gang().given) return 0;
  uint32_t job = 0;
  uint32_t step = 0;
  uint32_t nodes = 0;
  uint32_t tasks = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS)
    return 0;
  const char* leader = getenv("SLURM_JOB_ID");
  if (getenv(kComponentsVariable) != nullptr) {
    // Each has options of its own, which musterd checks. The gang has the first one's job.
    if (leader != nullptr) job = static_cast<uint32_t>(strtoul(leader, nullptr, 10));
  } else {
    if (const char* why = inherited ? WhyPlain(job, tasks) : nullptr) {
      slurm_verbose("muster: no gang: %s; %s --gang makes it one", why, program_invocation_short_name);
      setenv(kStepVariable, kPlain, 1);
      return 0;
    }
    if (const Left& left = LeftToTheJob(); inherited && left.nodes > 0) {
      const uint32_t lost = left.nodes_before - left.nodes;
      LeaveOutSpares(lost);
      char said[32];
      snprintf(said, sizeof(said), "%s%u", kLost, lost);
      setenv(kStepVariable, said, 1);
    }
    // The step is to be launched all the same: Slurm keeps the CPUs of a step that was only created until the job's end.
    if (!Fits(nodes)) {
      setenv(kStepVariable, kRefused, 1);
      return 0;
    }
  }
  EndAsTheGang(job, step, muster);
  if (&MPIR_being_debugged != nullptr && MPIR_being_debugged != 0) setenv(kDebuggerVariable, "1", 1);
  return 0;
}

}  // namespace muster::plugin
