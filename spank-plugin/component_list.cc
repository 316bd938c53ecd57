#include "spank-plugin/component_list.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace muster::plugin {
namespace {

// The variable's value: "GROUPS:OPTIONS;..." in the order of the components, GROUPS as in --het-group, "" without.
constexpr unsigned kMaxComponents = 128;
constexpr size_t kMaxList = 32 * 1024;

// Appends to a terminated text; false when it does not fit.
class Writer {
 public:
  Writer(char* text, size_t size) : text_(text), size_(size), used_(strlen(text)) {}

  __attribute__((format(printf, 2, 3))) bool Add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(text_ + used_, size_ - used_, format, arguments);
    va_end(arguments);
    if (written < 0 || static_cast<size_t>(written) >= size_ - used_) return false;
    used_ += static_cast<size_t>(written);
    return true;
  }

 private:
  char* text_;
  size_t size_;
  size_t used_;
};

// Whether "0,2-3" has a number.
bool HasGroup(const char* groups, size_t size, unsigned group) {
  const char* const end = groups + size;
  while (groups < end) {
    char* next = nullptr;
    const unsigned long low = strtoul(groups, &next, 10);
    if (next == groups) return false;
    unsigned long high = low;
    if (*next == '-') high = strtoul(next + 1, &next, 10);
    if (group >= low && group <= high) return true;
    groups = *next == ',' ? next + 1 : end;
  }
  return false;
}

struct Entry {
  const char* groups = nullptr;
  size_t groups_size = 0;
  const char* options = nullptr;
  size_t options_size = 0;
};

// Takes the next entry off the list; false at its end, or where it is none.
bool Next(const char** list, Entry* entry) {
  if (**list == '\0') return false;
  const char* colon = strchr(*list, ':');
  if (colon == nullptr) return false;
  const size_t rest = strcspn(colon + 1, ";");
  *entry = {*list, static_cast<size_t>(colon - *list), colon + 1, rest};
  *list = colon + 1 + rest;
  if (**list == ';') ++*list;
  return true;
}

// The entry of a component of the heterogeneous job: by its number, else by its place.
bool Find(const char* list, unsigned group, Entry* entry) {
  for (unsigned place = 0; Next(&list, entry); ++place) {
    if (entry->groups_size > 0 ? HasGroup(entry->groups, entry->groups_size, group) : place == group)
      return true;
  }
  return false;
}

// A variable of a component of the job. Slurm has two names for each, and sets one or both.
bool GetOfGroup(spank_t spank, const char* name, unsigned group, char* value, size_t size) {
  constexpr const char* kWords[] = {"HET", "PACK"};
  for (const char* word : kWords) {
    char variable[64];
    snprintf(variable, sizeof(variable), "%s_%s_GROUP_%u", name, word, group);
    if (spank_getenv(spank, variable, value, static_cast<int>(size)) == ESPANK_SUCCESS) return true;
  }
  return false;
}

uint32_t JobOfGroup(spank_t spank, unsigned group) {
  char text[16] = "";
  return GetOfGroup(spank, "SLURM_JOB_ID", group, text, sizeof(text))
             ? static_cast<uint32_t>(strtoul(text, nullptr, 10))
             : 0;
}

bool AllAlike(const char* list) {
  Entry first;
  if (!Next(&list, &first)) return false;
  for (Entry entry; Next(&list, &entry);) {
    if (entry.options_size != first.options_size ||
        memcmp(entry.options, first.options, first.options_size) != 0)
      return false;
  }
  return true;
}

constexpr char kTooLong[] = "the description of this step's components is too long";

// Adds a line for each component of a heterogeneous job that is in the step. What is wrong, or null.
const char* AddJobs(spank_t spank, const char* list, uint32_t own, Writer* out) {
  static char nodes[kMaxList];
  bool found = false;
  for (unsigned group = 0; group < kMaxComponents; ++group) {
    const uint32_t job = JobOfGroup(spank, group);
    if (job == 0) break;
    Entry entry;
    if (!Find(list, group, &entry)) continue;
    if (!GetOfGroup(spank, "SLURM_JOB_NODELIST", group, nodes, sizeof(nodes)))
      return "SLURM_JOB_NODELIST_HET_GROUP_* is missing from this step's environment";
    if (!out->Add("%u %s %.*s\n", job, nodes, static_cast<int>(entry.options_size), entry.options))
      return kTooLong;
    found = found || job == own;
  }
  return found ? nullptr : "this task's job is none of the heterogeneous job's components";
}

// Components within one job: Slurm tells its tasks nothing of them.
const char* AddOneJob(spank_t spank, const char* list, uint32_t own, Writer* out) {
  static char nodes[kMaxList];
  if (!AllAlike(list)) {
    return "--gang: the components of this srun have different options, but run in one job, where Slurm does "
           "not "
           "tell a task which component it is of: for a gang of several roles submit a heterogeneous job "
           "(#SBATCH hetjob, or srun A : B outside of a job)";
  }
  Entry entry;
  if (!Next(&list, &entry) ||
      spank_getenv(spank, "SLURM_STEP_NODELIST", nodes, sizeof(nodes)) != ESPANK_SUCCESS ||
      !out->Add("%u %s %.*s\n", own, nodes, static_cast<int>(entry.options_size), entry.options))
    return kTooLong;
  return nullptr;
}

}  // namespace

const char* AddComponent(bool given, const char* value, const char* groups) {
  static unsigned count = 0;
  static unsigned with = 0;
  static char list[kMaxList] = "";
  ++count;
  with += given ? 1 : 0;
  if (count == 1) unsetenv(kComponentsVariable);  // of an srun around this one
  if (with > 0 && with < count) {
    return "--gang: a component of this srun has it and another has not: a gang is a whole step; give each "
           "component its own, with its role (--gang=role=NAME), or --gang=off to each";
  }
  if (with == 0) return nullptr;
  if (count > kMaxComponents ||
      !Writer(list, sizeof(list)).Add("%s%s:%s", count > 1 ? ";" : "", groups, value))
    return "--gang: this srun has too many components, or their options are too long";
  if (count > 1) setenv(kComponentsVariable, list, 1);
  return nullptr;
}

const char* DescribeComponents(spank_t spank, char* text, size_t size) {
  static char list[kMaxList];
  static char tasks[kMaxList];
  text[0] = '\0';
  const spank_err_t got = spank_getenv(spank, kComponentsVariable, list, sizeof(list));
  if (got == ESPANK_ENV_NOEXIST) return nullptr;
  uint32_t own = 0;
  if (got != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_ID, &own) != ESPANK_SUCCESS) return kTooLong;
  if (spank_getenv(spank, "SLURM_STEP_TASKS_PER_NODE", tasks, sizeof(tasks)) != ESPANK_SUCCESS)
    return "SLURM_STEP_TASKS_PER_NODE is missing from this step's environment";
  const uint32_t leader = JobOfGroup(spank, 0);
  Writer out(text, size);
  if (!out.Add("job=%u tasks=%s\n", leader != 0 ? leader : own, tasks)) return kTooLong;
  return leader != 0 ? AddJobs(spank, list, own, &out) : AddOneJob(spank, list, own, &out);
}

}  // namespace muster::plugin
