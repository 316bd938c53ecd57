// Who may open a session between daemons, by a real munged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/auth/auth_session.h"
#include "daemon/auth/munge.h"
#include "tests/unit/daemon/private_munge.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

class MungeSession : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!munge_.problem().empty()) GTEST_SKIP() << munge_.problem();
  }
  PrivateMunge& munge_ = PrivateMunge::Get();
};

TEST_F(MungeSession, TheReceiverItIsMeantForGetsTheKey) {
  const auto opening = OpenSession("n1");
  ASSERT_TRUE(opening) << opening.error().message;
  const auto key = AcceptSession(opening->credential, "n1", 0);
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ(*key, opening->key);
  EXPECT_EQ(key->size(), 32U);
}

TEST_F(MungeSession, EverySessionHasAKeyOfItsOwn) {
  EXPECT_NE(OpenSession("n1")->key, OpenSession("n1")->key);
}

TEST_F(MungeSession, AnotherReceiverRefusesIt) {
  for (const char* self : {"n2", "n", "n11", ""}) {
    const auto key = AcceptSession(OpenSession("n1")->credential, self, 0);
    ASSERT_FALSE(key);
    EXPECT_EQ(key.error().code, Errc::kDenied);
    EXPECT_THAT(key.error().message, HasSubstr("not for"));
  }
}

TEST_F(MungeSession, ACredentialServesOnce) {
  const auto opening = OpenSession("n1");
  ASSERT_TRUE(AcceptSession(opening->credential, "n1", 0));
  const auto again = AcceptSession(opening->credential, "n1", 0);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::kDenied);
  EXPECT_THAT(again.error().message, HasSubstr("eplay"));
}

TEST_F(MungeSession, ATamperedCredentialIsRefused) {
  std::string credential = OpenSession("n1")->credential;
  credential[credential.size() / 2] = credential[credential.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(AcceptSession(credential, "n1", 0));
  for (const std::string& garbage : {std::string(), std::string("MUNGE:"), std::string(10'000, 'A')}) {
    EXPECT_FALSE(AcceptSession(garbage, "n1", 0));
  }
}

TEST_F(MungeSession, ACredentialMadeForAnotherPurposeIsRefused) {
  for (const std::string& payload : {std::string("muster-query-1\nn1\n") + std::string(32, 'k'),
                                     std::string("muster-node-1\nn1\n") + std::string(31, 'k'),
                                     std::string("muster-node-1\nn1\n") + std::string(33, 'k')}) {
    EXPECT_FALSE(AcceptSession(*MungeEncode(payload), "n1", 0));
  }
}

TEST_F(MungeSession, AnOrdinaryUserDoesNotSpeakForANode) {
  if (::getuid() != 0 || ::seteuid(kNobody) != 0) GTEST_SKIP() << "needs to be another user for a moment";
  const auto encoded = MungeEncode("muster-node-1\nn1\n" + std::string(32, 'k'));
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(encoded) << encoded.error().message;
  const auto key = AcceptSession(*encoded, "n1", 0);
  ASSERT_FALSE(key);
  EXPECT_THAT(key.error().message, HasSubstr("uid 65534 may not speak for a node"));
}

TEST_F(MungeSession, TheServicesUserSpeaksForANode) {
  if (::getuid() != 0 || ::seteuid(kNobody) != 0) GTEST_SKIP() << "needs to be another user for a moment";
  const auto opening = OpenSession("n1");
  const auto key = AcceptSession(opening->credential, "n1", kNobody);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_TRUE(key) << key.error().message;
}

TEST_F(MungeSession, AnotherUserCannotReadTheKey) {
  if (::getuid() != 0) GTEST_SKIP() << "needs to be another user for a moment";
  const auto opening = OpenSession("n1");
  ASSERT_EQ(::seteuid(kNobody), 0);
  const auto decoded = MungeDecode(opening->credential);
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_FALSE(decoded);
}

TEST_F(MungeSession, WithoutMungedTheMessageNamesTheUnit) {
  munge_.Stop();
  const auto opening = OpenSession("n1");
  munge_.Start();
  ASSERT_FALSE(opening);
  EXPECT_EQ(opening.error().code, Errc::kUnavailable);
  EXPECT_THAT(opening.error().message, HasSubstr("munge.service"));
}

}  // namespace
}  // namespace muster
