#include "spank-plugin/plugin_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/gang_options.h"
#include "wire/wire.h"

namespace muster::plugin {
namespace {

constexpr char kArguments[] = "socket=PATH, signals=tasks|all, wait=SECONDS (0..3600), muster=PATH";

// Where sbatch and salloc leave their --gang for the job's sruns.
constexpr char kOfTheJob[] = "SLURM_SPANK__SLURM_SPANK_OPTION_muster_gang";

constinit GangOption gang;
constinit char value[wire::kMaxOptions + 1] = "";
constinit char error[wire::kMaxOptionError] = "";

int OnGang(int /*val*/, const char* argument, int remote) {
  // Slurm 22.05 hands an absent argument on as "(null)" in some of its ways between the contexts.
  if (argument == nullptr || strcmp(argument, "(null)") == 0) argument = "";
  wire::GangOptions parsed;
  const size_t size = strlen(argument);
  if (!wire::ParseGangOptions(argument, size, &parsed, error, sizeof(error))) {
    if (remote == 0) {
      slurm_error("%s", error);
      return -1;
    }
    // Slurm would log this and start the program without its gang. The task is to fail instead.
    gang.error = error;
  } else {
    memcpy(value, argument, size + 1);
    gang.error = "";
  }
  gang.value = value;
  gang.given = gang.error[0] != '\0' || !parsed.off;
  ++gang.times;
  return 0;
}

const char* Value(const char* argument, const char* key) {
  const size_t size = strlen(key);
  return strncmp(argument, key, size) == 0 ? argument + size : nullptr;
}

}  // namespace

int RegisterGangOption(spank_t spank) {
  static char name[] = "gang";
  static char info[] = "key=value,...";
  static char usage[sizeof(wire::kGangKeysText) + 128];
  snprintf(usage, sizeof(usage),
           "run the tasks as a gang that Muster restarts together after a fault; keys: %s",
           wire::kGangKeysText.text);
  constexpr int kOptionalArgument = 2;
  gang.inherited = getenv(kOfTheJob) != nullptr;
  static spank_option option = {name, info, usage, kOptionalArgument, 0, OnGang};
  return spank_option_register(spank, &option);
}

const GangOption& Gang() {
  return gang;
}

void LeaveOutSpares(uint32_t nodes) {
  constexpr char kKey[] = "spares=";
  char* item = value;
  while (item != nullptr && strncmp(item, kKey, strlen(kKey)) != 0) {
    item = strchr(item, ',');
    if (item != nullptr) ++item;
  }
  if (item == nullptr) return;
  char* number = item + strlen(kKey);
  char* end = nullptr;
  const unsigned long spares = strtoul(number, &end, 10);
  char digits[24];
  const int size = snprintf(digits, sizeof(digits), "%lu", spares > nodes ? spares - nodes : 0);
  // The new number has no more digits than the old one.
  memcpy(number, digits, static_cast<size_t>(size));
  memmove(number + size, end, strlen(end) + 1);
}

Arguments ReadArguments(int argc, char** argv, bool complain) {
  Arguments arguments{wire::kDefaultSocket};
  for (int i = 0; i < argc; ++i) {
    bool good = false;
    if (const char* path = Value(argv[i], "socket=")) {
      good = path[0] == '/';
      if (good) arguments.socket = path;
    } else if (const char* command = Value(argv[i], "muster=")) {
      good = command[0] == '/';
      if (good) arguments.muster = command;
    } else if (const char* signals = Value(argv[i], "signals=")) {
      good = strcmp(signals, "tasks") == 0 || strcmp(signals, "all") == 0;
      if (good) arguments.forward_signals = signals[0] == 't';
    } else if (const char* wait = Value(argv[i], "wait=")) {
      good = wire::detail::ParseNumber(wait, strlen(wait), 0, 3600, &arguments.wait_seconds);
    }
    if (!good && complain) {
      slurm_error("muster: plugstack.conf: '%s' is not an argument of spank_muster.so; they are %s", argv[i],
                  kArguments);
    }
  }
  return arguments;
}

}  // namespace muster::plugin
