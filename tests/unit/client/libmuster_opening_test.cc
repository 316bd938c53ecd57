// libmuster: opening and closing a handle.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "client/muster.h"
#include "tests/unit/client/libmuster_rig.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Libmuster, SaysWhoThisMemberIs) {
  musterd_.Change([](auto& rules) { rules.restore_step = 500; });
  Open();
  EXPECT_EQ(muster_rank(m_), 2u);
  EXPECT_EQ(muster_world_size(m_), 4u);
  EXPECT_EQ(muster_generation(m_), 3u);
  EXPECT_EQ(muster_restore_step(m_), 500u);
  EXPECT_EQ(muster_committed(m_), 500u);
  EXPECT_THAT(musterd_.hellos, ElementsAre("7.0 rank 2 generation 3"));
  EXPECT_STREQ(muster_version(), "0.1.0");
}

TEST_F(Libmuster, OutsideOfAGangSaysSo) {
  ::unsetenv("MUSTER_GANG");
  EXPECT_EQ(muster_open(&m_), MUSTER_E_NO_GANG);
  EXPECT_EQ(m_, nullptr);
  EXPECT_THAT(muster_last_error(nullptr),
              AllOf(HasSubstr("MUSTER_GANG is not set"), HasSubstr("needs its own srun --gang)")));
}

TEST_F(Libmuster, ABadEnvironmentIsNamed) {
  const auto refused = [&](const char* name, const char* value) {
    SetUp();
    ::setenv(name, value, 1);
    EXPECT_EQ(muster_open(&m_), MUSTER_E_INVALID) << name << "=" << value;
    EXPECT_THAT(muster_last_error(nullptr), HasSubstr(name));
  };
  refused("RANK", "");
  refused("RANK", "-1");
  refused("RANK", "4294967296");
  refused("MUSTER_GENERATION", "x");
  refused("MUSTER_GENERATION", "18446744073709551616");
  refused("MUSTER_TOKEN", "a0");
  refused("MUSTER_TOKEN", "g0a1a2a3a4a5a6a7a8a9aaabacadaeaf");
  refused("MUSTER_SOCKET", std::string(200, 'x').c_str());
  refused("MUSTER_GANG", std::string(300, 'x').c_str());
  EXPECT_TRUE(musterd_.hellos.empty());
}

// As in a container that has the socket's directory at no path, but inherits a descriptor of it.
TEST_F(Libmuster, TheSocketIsReachedThroughAnInheritedDescriptor) {
  const UniqueFd inherited(::open(directory_.path().c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_TRUE(inherited.valid());
  const std::string elsewhere = directory_.path() + ".elsewhere";
  std::filesystem::rename(directory_.path(), elsewhere);
  EXPECT_EQ(muster_open(&m_), MUSTER_E_UNREACHABLE);
  ::setenv("MUSTER_SOCKET", ("/proc/self/fd/" + std::to_string(inherited.get()) + "/musterd.sock").c_str(),
           1);
  Open();
  EXPECT_EQ(Save(10), MUSTER_OK) << Said();
  std::filesystem::rename(elsewhere, directory_.path());
}

TEST_F(Libmuster, TheTokenMayBeInCapitals) {
  ::setenv("MUSTER_TOKEN", "A0A1A2A3A4A5A6A7A8A9AAABACADAEAF", 1);
  Open();
}

TEST_F(Libmuster, ARefusalIsTheError) {
  musterd_.Change([](auto& rules) {
    rules.refusal = wire::Refusal::kStaleGeneration;
    rules.refusal_text = "generation 3 is over";
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_E_DENIED);
  EXPECT_STREQ(muster_last_error(nullptr), "generation 3 is over");
}

TEST_F(Libmuster, AGangThatMusterdDoesNotKnowYetIsWaitedFor) {
  musterd_.Change([](auto& rules) {
    rules.refusal = wire::Refusal::kNoGang;
    rules.refusal_text = "no such gang";
  });
  std::thread later([&] {
    EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.hellos.size() >= 2; }));
    musterd_.Change([](auto& rules) { rules.refusal = {}; });
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr);
  later.join();
}

TEST_F(Libmuster, AMusterdThatStartsALittleLaterIsWaitedFor) {
  musterd_.Stop();
  std::thread later([&] {
    ::usleep(300'000);  // longer than one pause between attempts
    musterd_.Start();
  });
  EXPECT_EQ(muster_open(&m_), MUSTER_OK) << muster_last_error(nullptr);
  later.join();
}

TEST_F(Libmuster, AMusterdThatIsNotThereIsNamedWithItsUnit) {
  musterd_.Stop();
  EXPECT_EQ(muster_open(&m_), MUSTER_E_UNREACHABLE);
  EXPECT_THAT(muster_last_error(nullptr), HasSubstr(path_));
  EXPECT_THAT(muster_last_error(nullptr), HasSubstr("musterd.service"));
}

TEST_F(Libmuster, AForkedChildCannotUseTheHandle) {
  Open();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused =
        muster_step(m_, 1, nullptr) == MUSTER_E_INVALID && muster_save_begin(m_, 1, 0) == MUSTER_E_INVALID;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK);
}

TEST_F(Libmuster, ClosingEndsTheConnectionAlsoWhenAForkedChildLivesOn) {
  Open();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    muster_close(m_);  // a copy: the parent's connection stays
    ::close(pipe[1]);
    char byte = 0;
    ::_exit(::read(pipe[0], &byte, 1) == 0 ? 0 : 1);
  }
  ASSERT_EQ(Save(1), MUSTER_OK);
  EXPECT_EQ(muster_wait(m_, 1, 10000), MUSTER_OK) << Said();
  musterd_.Look([](const auto& m) { EXPECT_EQ(m.clients(), 1u); });
  muster_close(m_);
  m_ = nullptr;
  EXPECT_TRUE(musterd_.Await([](const auto& m) { return m.clients() == 0; }));
  ::close(pipe[0]);
  ::close(pipe[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Libmuster, OpeningAndClosingLeaksNoDescriptors) {
  Open();
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  };
  const auto cycle = [&] {
    muster_handle* m = nullptr;
    ASSERT_EQ(muster_open(&m), MUSTER_OK);
    ASSERT_EQ(muster_save_begin(m, 1, 0), MUSTER_OK);
    ASSERT_EQ(muster_save_commit(m), MUSTER_OK);
    ASSERT_EQ(muster_wait(m, 1, 10000), MUSTER_OK);
    muster_restore* r = nullptr;
    ASSERT_EQ(muster_restore_open(m, 1, &r), MUSTER_OK);
    muster_restore_close(r);
    muster_close(m);
  };
  // The fake shares the process: let it see the end of each connection before counting.
  const auto settled = [&](size_t wanted) { return Eventually([&] { return descriptors() <= wanted; }); };
  const size_t before = descriptors();
  for (int i = 0; i < 50; ++i) cycle();
  EXPECT_TRUE(settled(before)) << descriptors() << " descriptors, were " << before;
}

TEST_F(Libmuster, CopesWithNullArguments) {
  EXPECT_EQ(muster_open(nullptr), MUSTER_E_INVALID);
  muster_close(nullptr);
  muster_restore_close(nullptr);
  muster_save_abort(nullptr);
  EXPECT_STREQ(muster_last_error(nullptr), "");
  Open();
  EXPECT_EQ(muster_restore_open(m_, 1, nullptr), MUSTER_E_INVALID);
  EXPECT_STREQ(muster_last_error(m_), "there is nowhere to put the restore");
}

}  // namespace
}  // namespace muster
