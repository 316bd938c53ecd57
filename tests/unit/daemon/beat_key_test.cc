// What beats need besides the thread: keys on their way to agents, promises that outlive a process, addresses.
#include "daemon/beat/key.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "daemon/beat/address.h"
#include "daemon/beat/beat.h"
#include "daemon/beat/state_file.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(BeatKey, ComesOutAsItWentInForTheSameSessionAndContext) {
  const std::string session(32, 's');
  const std::string key = MakeBeatKey();
  ASSERT_EQ(key.size(), 32U);
  EXPECT_NE(key, MakeBeatKey());
  const std::string wrapped = WrapKey(session, key, "12.0 3");
  EXPECT_THAT(wrapped, ::testing::Not(HasSubstr(key)));
  EXPECT_NE(wrapped, WrapKey(session, key, "12.0 3"))
      << "the same bytes twice would show that the key is the same";
  const auto unwrapped = UnwrapKey(session, wrapped, "12.0 3");
  ASSERT_TRUE(unwrapped) << unwrapped.error().message;
  EXPECT_EQ(*unwrapped, key);
}

TEST(BeatKey, AnythingElseIsRefused) {
  const std::string session(32, 's');
  const std::string wrapped = WrapKey(session, MakeBeatKey(), "12.0 3");
  EXPECT_FALSE(UnwrapKey(std::string(32, 't'), wrapped, "12.0 3"));
  EXPECT_FALSE(UnwrapKey(session, wrapped, "12.0 4"));
  EXPECT_FALSE(UnwrapKey(session, wrapped.substr(1), "12.0 3"));
  EXPECT_FALSE(UnwrapKey(session, "", "12.0 3"));
  for (size_t i = 0; i < wrapped.size(); ++i) {
    std::string changed = wrapped;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(UnwrapKey(session, changed, "12.0 3")) << "byte " << i;
  }
}

TEST(BeatAddressTest, AHostBecomesAnAddressAndNonsenseAnError) {
  const auto address = ResolveBeatAddress("127.0.0.1", 6880);
  ASSERT_TRUE(address) << address.error().message;
  EXPECT_TRUE(address->valid());
  EXPECT_EQ(*address, *ResolveBeatAddress("127.0.0.1", 6880));
  EXPECT_FALSE(*address == *ResolveBeatAddress("127.0.0.2", 6880));
  EXPECT_FALSE(*address == *ResolveBeatAddress("127.0.0.1", 6881));
  EXPECT_FALSE(ResolveBeatAddress("256.0.0.1:x", 6880));
}

class BeatState : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/beats.XXXXXX";
    const int fd = ::mkstemp(pattern.data());
    ASSERT_GE(fd, 0);
    ::close(fd);
    path_ = pattern;
  }
  void TearDown() override { ::unlink(path_.c_str()); }
  std::string path_;
};

TEST_F(BeatState, PromisesAreKeptByTheNextProcess) {
  {
    const auto state = StateFile::Open(path_, BoottimeNs());
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_EQ((*state)->Promised(7), 0U);
    (*state)->Promise(7, 3, 1);
    (*state)->Promise(8, 9, 2);
    (*state)->Promise(7, 2, 3);
    (*state)->Alive(5);
  }
  const auto state = StateFile::Open(path_, BoottimeNs());
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ((*state)->Promised(7), 3U);
  EXPECT_EQ((*state)->Promised(8), 9U);
  EXPECT_EQ((*state)->last_alive(), 5);
}

TEST_F(BeatState, TheOldestPromisesMakeRoom) {
  const auto state = StateFile::Open(path_, BoottimeNs());
  ASSERT_TRUE(state) << state.error().message;
  for (uint64_t gang = 1; gang <= 501; ++gang) (*state)->Promise(gang, 1, static_cast<int64_t>(gang));
  EXPECT_EQ((*state)->Promised(1), 0U);
  EXPECT_EQ((*state)->Promised(2), 1U);
  EXPECT_EQ((*state)->Promised(501), 1U);
}

TEST_F(BeatState, AFileThatIsSomethingElseIsBegunAnew) {
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "something else altogether", 25), 25);
  ::close(fd);
  const auto state = StateFile::Open(path_, BoottimeNs());
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ((*state)->last_alive(), 0);
  EXPECT_EQ((*state)->Promised(0), 0U);
}

TEST_F(BeatState, ATimeFromBeforeTheHostStartedIsNotBelieved) {
  { (*StateFile::Open(path_, BoottimeNs()))->Alive(INT64_MAX / 2); }
  EXPECT_EQ((*StateFile::Open(path_, BoottimeNs()))->last_alive(), 0);
}

TEST_F(BeatState, APathThatCannotBeIsAnError) {
  const auto state = StateFile::Open("/nowhere/beats", BoottimeNs());
  ASSERT_FALSE(state);
  EXPECT_THAT(state.error().message, HasSubstr("/nowhere/beats"));
}

}  // namespace
}  // namespace muster
