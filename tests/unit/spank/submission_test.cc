// What slurmstepd reads of the job's --signal, with stand-ins for the functions of Slurm's that are called.
#include "spank-plugin/submission.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstring>
#include <optional>
#include <string>

#include "spank-plugin/plugin_options.h"

namespace {

std::optional<std::string> in_environment;  // of the job

}  // namespace

extern "C" spank_err_t spank_getenv(spank_t /*spank*/, const char* /*name*/, char* value, int size) {
  if (!in_environment) return ESPANK_ENV_NOEXIST;
  if (in_environment->size() >= static_cast<size_t>(size)) return ESPANK_NOSPACE;
  memcpy(value, in_environment->c_str(), in_environment->size() + 1);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

extern "C" spank_context_t spank_context() {
  return S_CTX_REMOTE;
}

namespace muster::plugin {

const GangOption& Gang() {
  static GangOption none;
  return none;
}

namespace {

TEST(Warning, IsReadAsSlurmWritesIt) {
  struct Case {
    const char* text;
    int signal;  // 0: the job's steps get none
    uint32_t seconds;
  };
  for (const Case& test :
       {Case{"TERM@120", SIGTERM, 120}, Case{"USR1", SIGUSR1, 60}, Case{"R:USR2@5", SIGUSR2, 5},
        Case{"10@30", 10, 30}, Case{"B:TERM@60", 0, 0}, Case{"RB:USR1", 0, 0}, Case{"@30", 0, 0},
        Case{"", 0, 0}, Case{"term@30", 0, 0}, Case{"FOO@30", 0, 0}, Case{"TERM@0", 0, 0},
        Case{"TERM@x", 0, 0}, Case{"-5@30", 0, 0}, Case{"9999@30", 0, 0}, Case{":", 0, 0}}) {
    in_environment = test.text;
    int signal = 0;
    uint32_t seconds = 0;
    ReadWarning(nullptr, &signal, &seconds);
    EXPECT_EQ(signal, test.signal) << test.text;
    EXPECT_EQ(seconds, test.seconds) << test.text;
  }
}

TEST(Warning, IsNoneWhereTheVariableIsAbsentOrTooLong) {
  for (const auto& text : {std::optional<std::string>(), std::optional("TERM@" + std::string(100, '1'))}) {
    in_environment = text;
    int signal = 0;
    uint32_t seconds = 0;
    ReadWarning(nullptr, &signal, &seconds);
    EXPECT_EQ(signal, 0);
  }
}

}  // namespace
}  // namespace muster::plugin
