#include "daemon/agent/gang_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/ceph/temporary_directory.h"
#include "wire/wire.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class GangStateFiles : public ::testing::Test {
 protected:
  static GangState State(uint32_t job_id = 12) {
    GangState state;
    state.job.job_id = job_id;
    state.job.uid = 1000;
    state.job.gid = 100;
    state.job.restart_count = 1;
    state.job.task_count = 4;
    state.job.node_list = "n[1-2]";
    state.job.options_text = "restarts=7";
    state.node = 1;
    state.local_tasks = 2;
    for (size_t i = 0; i < wire::kTokenBytes; ++i) state.token.push_back(static_cast<char>(i * 17));
    state.tasks = {2, 3};
    state.supervisors = {{2, 4711}};
    state.started_generation = 3;
    state.started_restore = 0;
    return state;
  }
  [[nodiscard]] std::string Path(const std::string& gang = "12.0-r1") const {
    return GangStatePath(directory_.path(), gang);
  }
  TemporaryDirectory directory_;
};

TEST_F(GangStateFiles, AGangComesBackAsItWas) {
  ASSERT_TRUE(SaveGangState(directory_.path(), State()));
  const auto states = LoadGangStates(directory_.path());
  ASSERT_EQ(states.size(), 1U);
  EXPECT_EQ(states[0].job.Id(), "12.0-r1");
  EXPECT_EQ(states[0].job.uid, 1000U);
  EXPECT_EQ(states[0].job.gid, 100U);
  EXPECT_EQ(states[0].job.options.restarts, 7U);
  EXPECT_THAT(states[0].job.hosts, ElementsAre("n1", "n2"));
  EXPECT_EQ(states[0].node, 1U);
  EXPECT_EQ(states[0].local_tasks, 2U);
  EXPECT_THAT(states[0].tasks, ElementsAre(2, 3));
  EXPECT_THAT(states[0].supervisors, ElementsAre(Pair(2, 4711)));
  EXPECT_EQ(states[0].token, State().token);
  EXPECT_EQ(states[0].started_generation, 3U);
  EXPECT_EQ(states[0].started_restore, 0U) << "step 0 is a step, not the lack of one";
}

TEST_F(GangStateFiles, ThatAGenerationBeganFromNothingIsKept) {
  GangState state = State();
  state.started_restore.reset();
  ASSERT_TRUE(SaveGangState(directory_.path(), state));
  const auto states = LoadGangStates(directory_.path());
  ASSERT_EQ(states.size(), 1U);
  EXPECT_EQ(states[0].started_generation, 3U);
  EXPECT_FALSE(states[0].started_restore);
}

TEST_F(GangStateFiles, WhichSavesHaveFailedIsKept) {
  GangState state = State();
  state.failed.Add(3, 10, "no \xff space");  // as a message that was cut off
  state.failed.Add(3, 12, "given up");
  ASSERT_TRUE(SaveGangState(directory_.path(), state));
  const auto states = LoadGangStates(directory_.path());
  ASSERT_EQ(states.size(), 1U);
  ASSERT_NE(states[0].failed.Find(3, 10), nullptr);
  EXPECT_THAT(*states[0].failed.Find(3, 10), ::testing::StartsWith("no "));
  ASSERT_NE(states[0].failed.Find(3, 12), nullptr);
  EXPECT_EQ(*states[0].failed.Find(3, 12), "given up");
  EXPECT_EQ(states[0].failed.saves().size(), 2U);
}

TEST_F(GangStateFiles, SavingAgainReplacesIt) {
  ASSERT_TRUE(SaveGangState(directory_.path(), State()));
  GangState more = State();
  more.tasks = {2};
  ASSERT_TRUE(SaveGangState(directory_.path(), more));
  const auto states = LoadGangStates(directory_.path());
  ASSERT_EQ(states.size(), 1U);
  EXPECT_THAT(states[0].tasks, ElementsAre(2));
}

TEST_F(GangStateFiles, HoldATokenAndAreTheOwnersAlone) {
  ASSERT_TRUE(SaveGangState(directory_.path(), State()));
  struct stat facts {};
  ASSERT_EQ(::stat(Path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777U, 0600U);
}

TEST_F(GangStateFiles, AreRemovedWithTheClusterSpecBesideThem) {
  ASSERT_TRUE(SaveGangState(directory_.path(), State()));
  std::ofstream(Path() + ".cluster") << "{}";
  RemoveGangState(directory_.path(), "12.0-r1");
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  RemoveGangState(directory_.path(), "12.0-r1");
}

TEST_F(GangStateFiles, AMissingDirectoryHoldsNoneAndIsMadeWhenNeeded) {
  const std::string below = directory_.path() + "/run/gangs";
  EXPECT_THAT(LoadGangStates(below), IsEmpty());
  EXPECT_TRUE(SaveGangState(below, State()));
  EXPECT_EQ(LoadGangStates(below).size(), 1U);
}

TEST_F(GangStateFiles, ADirectoryThatCannotBeWrittenIsAnErrorWithItsPath) {
  std::ofstream(directory_.path() + "/file") << "";
  const Status saved = SaveGangState(directory_.path() + "/file", State());
  ASSERT_FALSE(saved);
  EXPECT_THAT(saved.error().message, ::testing::HasSubstr("/file/12.0-r1.json"));
}

TEST_F(GangStateFiles, ADamagedFileIsPassedOverAndLeftAlone) {
  ASSERT_TRUE(SaveGangState(directory_.path(), State(12)));
  ASSERT_TRUE(SaveGangState(directory_.path(), State(13)));
  std::string text;
  std::getline(std::ifstream(Path()), text);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  for (const std::string& damaged :
       {std::string(), text.substr(0, text.size() / 2), std::string("[]"), replaced("\"n[1-2]\"", "\"n[\""),
        replaced("\"node\":1", "\"node\":2"), replaced("\"token\":\"00", "\"token\":\"zz"),
        replaced("\"token\":\"00", "\"token\":\""), replaced("\"tasks\":[2,3]", "\"tasks\":[2,4]"),
        replaced("\"local_tasks\":2", "\"local_tasks\":0"),
        replaced("\"local_tasks\":2", "\"local_tasks\":1"), replaced("\"uid\":1000", "\"uid\":\"root\""),
        replaced("restarts=7", "restarts=x")}) {
    std::ofstream(Path(), std::ios::trunc) << damaged;
    const auto states = LoadGangStates(directory_.path());
    ASSERT_EQ(states.size(), 1U) << damaged;
    EXPECT_EQ(states[0].job.job_id, 13U);
    EXPECT_TRUE(std::filesystem::exists(Path()));
  }
}

TEST_F(GangStateFiles, AHalfWrittenFileOfAKilledDaemonIsNotRead) {
  std::ofstream(Path() + ".new") << "{\"version\":1";
  EXPECT_THAT(LoadGangStates(directory_.path()), IsEmpty());
  EXPECT_TRUE(SaveGangState(directory_.path(), State()));
}

}  // namespace
}  // namespace muster
