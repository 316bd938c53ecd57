// What srun leaves for a heterogeneous step's tasks, and what they make of it; with a stand-in for Slurm's environment.
#include "spank-plugin/component_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/gang_job/components.h"

namespace {

std::map<std::string, std::string> environment;  // of the task
uint32_t own_job = 0;

}  // namespace

extern "C" spank_err_t spank_getenv(spank_t /*spank*/, const char* name, char* value, int size) {
  const auto found = environment.find(name);
  if (found == environment.end()) return ESPANK_ENV_NOEXIST;
  if (static_cast<int>(found->second.size()) >= size) return ESPANK_NOSPACE;
  found->second.copy(value, found->second.size());
  value[found->second.size()] = '\0';
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

extern "C" spank_err_t spank_get_item(spank_t /*spank*/, spank_item_t item, ...) {
  if (item != S_JOB_ID) return ESPANK_BAD_ARG;
  va_list arguments;
  va_start(arguments, item);
  *va_arg(arguments, uint32_t*) = own_job;
  va_end(arguments);
  return static_cast<spank_err_t>(ESPANK_SUCCESS);
}

namespace muster::plugin {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Component {
  bool given;
  std::string value;
  std::string groups;
};

// AddComponent counts as srun does, once in a process: gives what it leaves, or the reason of a refusal.
std::string Left(const std::vector<Component>& components) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) abort();
  const pid_t pid = fork();
  if (pid == 0) {
    setenv(kComponentsVariable, "0:role=outer;1:role=outer", 1);
    std::string text;
    for (const Component& one : components) {
      if (const char* why = AddComponent(one.given, one.value.c_str(), one.groups.c_str())) {
        text = why;
        break;
      }
      const char* left = getenv(kComponentsVariable);
      text = left != nullptr ? left : "";
    }
    if (write(pipe_fds[1], text.data(), text.size()) < 0) _exit(1);
    _exit(0);
  }
  close(pipe_fds[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(pipe_fds[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(pipe_fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return text;
}

TEST(ComponentsOfAnSrun, AreListedInTheirOrder) {
  EXPECT_EQ(Left({{true, "role=chief", ""}, {true, "", ""}}), ":role=chief;:");
  EXPECT_EQ(Left({{true, "role=chief", "2"}, {true, "role=ps", "0"}}), "2:role=chief;0:role=ps");
  EXPECT_EQ(Left({{true, "x", "0-1"}, {true, "x", "0-1"}, {true, "role=y", "3"}}), "0-1:x;0-1:x;3:role=y");
}

TEST(ComponentsOfAnSrun, OneIsNoListAndWhatAnOuterSrunLeftIsForgotten) {
  EXPECT_EQ(Left({{true, "role=chief", ""}}), "");
  EXPECT_EQ(Left({{false, "", ""}, {false, "", ""}}), "");
}

TEST(ComponentsOfAnSrun, AreRefusedWhenOneHasNoGang) {
  EXPECT_THAT(Left({{true, "role=chief", ""}, {false, "", ""}}), HasSubstr("a component of this srun"));
  EXPECT_THAT(Left({{false, "off", ""}, {true, "role=chief", ""}}), HasSubstr("or --gang=off to each"));
}

class ComponentsOfATask : public ::testing::Test {
 protected:
  void SetUp() override {
    own_job = 13;
    environment = {{kComponentsVariable, "0:role=chief;2:role=worker"},
                   {"SLURM_STEP_TASKS_PER_NODE", "3,1,2"},
                   {"SLURM_STEP_NODELIST", "n[1-2,4]"},
                   {"SLURM_JOB_ID_HET_GROUP_0", "12"},
                   {"SLURM_JOB_ID_HET_GROUP_1", "14"},
                   {"SLURM_JOB_ID_HET_GROUP_2", "13"},
                   {"SLURM_JOB_NODELIST_HET_GROUP_0", "n4"},
                   {"SLURM_JOB_NODELIST_HET_GROUP_1", "n3"},
                   {"SLURM_JOB_NODELIST_HET_GROUP_2", "n[1-2]"}};
  }

  std::string Text(size_t size = 4096) {
    std::string text(size, '\0');
    const char* why = DescribeComponents(nullptr, text.data(), text.size());
    return why != nullptr ? std::string("refused: ") + why : std::string(text.c_str());
  }
};

TEST_F(ComponentsOfATask, AreDescribedAsMusterdReadsThem) {
  EXPECT_EQ(Text(), "job=12 tasks=3,1,2\n12 n4 role=chief\n13 n[1-2] role=worker\n");
  const auto components = ParseComponents(Text(), {"n1", "n2", "n4"});
  ASSERT_TRUE(components);
  EXPECT_EQ(components->list.size(), 2U);
}

TEST_F(ComponentsOfATask, AreThoseOfAnSrunThatMadeTheJob) {
  environment = {{kComponentsVariable, ":role=chief;:role=worker"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                 {"SLURM_JOB_ID_PACK_GROUP_0", "12"},
                 {"SLURM_JOB_ID_PACK_GROUP_1", "13"},
                 {"SLURM_JOB_NODELIST_PACK_GROUP_0", "n2"},
                 {"SLURM_JOB_NODELIST_PACK_GROUP_1", "n1"}};
  EXPECT_EQ(Text(), "job=12 tasks=1(x2)\n12 n2 role=chief\n13 n1 role=worker\n");
}

TEST_F(ComponentsOfATask, OfAStepOfOneComponentAreNone) {
  environment.erase(kComponentsVariable);
  EXPECT_EQ(Text(), "");
}

TEST_F(ComponentsOfATask, WithinOneJobMustBeAlike) {
  environment = {{kComponentsVariable, ":role=chief;:role=worker"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                 {"SLURM_STEP_NODELIST", "n[1-3]"}};
  EXPECT_THAT(Text(), HasSubstr("submit a heterogeneous job"));
  environment[kComponentsVariable] = ":spares=1;:spares=1";
  EXPECT_EQ(Text(), "job=13 tasks=1(x3)\n13 n[1-3] spares=1\n");
}

TEST_F(ComponentsOfATask, MustHaveThisTasksJobAmongThem) {
  own_job = 99;
  EXPECT_THAT(Text(), HasSubstr("none of the heterogeneous job's components"));
}

TEST_F(ComponentsOfATask, ThatDoNotFitAreRefused) {
  for (size_t size = 1; size < 50; ++size) EXPECT_THAT(Text(size), StartsWith("refused: ")) << size;
  environment.erase("SLURM_STEP_TASKS_PER_NODE");
  EXPECT_THAT(Text(), HasSubstr("SLURM_STEP_TASKS_PER_NODE"));
}

}  // namespace
}  // namespace muster::plugin
