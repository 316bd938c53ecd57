// The plugin's option and arguments, with a stand-in for the three functions of Slurm's that they call.
#include "spank-plugin/plugin_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdarg.h>

#include <optional>
#include <string>
#include <vector>

namespace {

std::vector<std::string> errors;
std::optional<spank_option> registered;

}  // namespace

extern "C" void slurm_error(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  errors.emplace_back(text);
}

extern "C" spank_err_t spank_option_register(spank_t /*spank*/, spank_option* option) {
  registered = *option;
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

namespace muster::plugin {
namespace {

using testing::HasSubstr;

constexpr int kLocal = 0;
constexpr int kRemote = 1;

class Options : public testing::Test {
 protected:
  void SetUp() override {
    errors.clear();
    ASSERT_EQ(RegisterGangOption(nullptr), ESPANK_SUCCESS);
    ASSERT_TRUE(registered);
  }
  static int Give(const char* value, int where) { return registered->cb(0, value, where); }

  Arguments Read(std::vector<std::string> list) {
    list_ = std::move(list);  // the arguments point into it
    std::vector<char*> argv;
    for (std::string& item : list_) argv.push_back(item.data());
    return ReadArguments(static_cast<int>(argv.size()), argv.data(), true);
  }

 private:
  std::vector<std::string> list_;
};

TEST_F(Options, GangTakesAnOptionalValue) {
  EXPECT_STREQ(registered->name, "gang");
  EXPECT_EQ(registered->has_arg, 2);
}

TEST_F(Options, WithoutAValueTheDefaultsAreTaken) {
  EXPECT_EQ(Give(nullptr, kLocal), 0);
  EXPECT_TRUE(Gang().given);
  EXPECT_STREQ(Gang().value, "");
  EXPECT_EQ(Give("(null)", kRemote), 0);  // how Slurm 22.05 may hand that on
  EXPECT_STREQ(Gang().value, "");
  EXPECT_STREQ(Gang().error, "");
}

TEST_F(Options, AGoodValueIsKept) {
  EXPECT_EQ(Give("restarts=2,name=run-7", kRemote), 0);
  EXPECT_STREQ(Gang().value, "restarts=2,name=run-7");
  EXPECT_TRUE(errors.empty());
}

TEST_F(Options, OffIsNoGangAndTheLastValueCounts) {
  EXPECT_EQ(Give("spares=1", kLocal), 0);
  EXPECT_EQ(Give("off", kLocal), 0);
  EXPECT_FALSE(Gang().given);
  EXPECT_STREQ(Gang().value, "off");
  EXPECT_EQ(Give("", kLocal), 0);
  EXPECT_TRUE(Gang().given);
  EXPECT_NE(Give("off,spares=1", kLocal), 0);
}

TEST_F(Options, TheJobsOwnIsKnownByItsVariable) {
  EXPECT_FALSE(Gang().inherited);
  ASSERT_EQ(setenv("SLURM_SPANK__SLURM_SPANK_OPTION_muster_gang", "", 1), 0);
  ASSERT_EQ(RegisterGangOption(nullptr), ESPANK_SUCCESS);
  EXPECT_TRUE(Gang().inherited);
  ASSERT_EQ(unsetenv("SLURM_SPANK__SLURM_SPANK_OPTION_muster_gang"), 0);
}

TEST_F(Options, ABadValueIsRefusedWhereItIsGiven) {
  EXPECT_NE(Give("restart=2", kLocal), 0);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors[0], HasSubstr("unknown key 'restart'; the keys are restarts=N"));
}

TEST_F(Options, ABadValueInSlurmstepdFailsTheTaskInsteadOfLosingTheGang) {
  EXPECT_EQ(Give("restart=2", kRemote), 0);
  EXPECT_TRUE(Gang().given);
  EXPECT_THAT(Gang().error, HasSubstr("unknown key"));
  EXPECT_EQ(Give("restarts=2", kRemote), 0);
  EXPECT_STREQ(Gang().error, "");
}

TEST_F(Options, ArgumentsHaveDefaults) {
  const Arguments arguments = Read({});
  EXPECT_STREQ(arguments.socket, "/run/muster/musterd.sock");
  EXPECT_TRUE(arguments.forward_signals);
  EXPECT_EQ(arguments.wait_seconds, 10U);
}

TEST_F(Options, ArgumentsAreRead) {
  const Arguments arguments = Read({"socket=/run/other.sock", "signals=all", "wait=0"});
  EXPECT_STREQ(arguments.socket, "/run/other.sock");
  EXPECT_FALSE(arguments.forward_signals);
  EXPECT_EQ(arguments.wait_seconds, 0U);
  EXPECT_TRUE(errors.empty());
}

TEST_F(Options, TheCommandIsTheInstalledOneUnlessAnotherIsNamed) {
  EXPECT_STREQ(Read({}).muster, "/usr/bin/muster");
  EXPECT_STREQ(Read({"muster=/opt/bin/muster"}).muster, "/opt/bin/muster");
  EXPECT_STREQ(Read({"muster=muster"}).muster, "/usr/bin/muster");
  EXPECT_EQ(errors.size(), 1U);
}

TEST_F(Options, UnknownArgumentsAreNamedWithTheGoodOnesAndSkipped) {
  const Arguments arguments =
      Read({"socket=relative", "signals=some", "wait=1h", "wait=3601", "colour=red", "wait=5"});
  EXPECT_STREQ(arguments.socket, "/run/muster/musterd.sock");
  EXPECT_TRUE(arguments.forward_signals);
  EXPECT_EQ(arguments.wait_seconds, 5U);
  ASSERT_EQ(errors.size(), 5U);
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("socket=PATH, signals=tasks|all, wait="));
  EXPECT_THAT(errors[4], HasSubstr("'colour=red'"));
}

// The job's spares stood for nodes that it has lost.
TEST_F(Options, SparesAreLoweredInTheText) {
  const std::pair<const char*, const char*> lowered[] = {
      {"spares=1", "spares=0"},
      {"restarts=2,spares=12,min=3", "restarts=2,spares=10,min=3"},
      {"spares=11,min=3", "spares=9,min=3"},
      {"name=spares,min=3", "name=spares,min=3"},
      {"", ""}};
  for (const auto& [given, left] : lowered) {
    Give(given, kRemote);
    LeaveOutSpares(2);
    EXPECT_STREQ(Gang().value, left);
  }
}

}  // namespace
}  // namespace muster::plugin
