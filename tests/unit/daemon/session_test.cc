// The codes of messages between daemons. Who may open a session is MUNGE's word: link_test.cc.
#include "daemon/auth/auth_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace muster {
namespace {

const std::string kKey(32, 'k');

TEST(Mac, IsHmacSha256OverDirectionSequenceAndPayload) {
  // python3: hmac.new(b'k'*32, b'\1' + (258).to_bytes(8, 'big') + b'payload', 'sha256').hexdigest()
  EXPECT_EQ(HexEncode(Mac(kKey, Direction::kToCoordinator, 258, "payload")),
            "cfcec6b8a96bb21d03f28b897ba1db2330c70531266be21fee7f995fa527d7ec");
}

TEST(Mac, OfTheSameMessageIsTheSame) {
  EXPECT_TRUE(SameMac(Mac(kKey, Direction::kToAgent, 7, "stop"), Mac(kKey, Direction::kToAgent, 7, "stop")));
}

TEST(Mac, ChangesWithTheKeyTheDirectionTheSequenceAndThePayload) {
  std::string other = kKey;
  other[31] ^= 1;
  const std::set<std::string> codes = {
      Mac(kKey, Direction::kToAgent, 7, "stop"),          Mac(other, Direction::kToAgent, 7, "stop"),
      Mac(kKey, Direction::kToCoordinator, 7, "stop"),    Mac(kKey, Direction::kToAgent, 8, "stop"),
      Mac(kKey, Direction::kToAgent, 7ULL << 56, "stop"), Mac(kKey, Direction::kToAgent, 7, "stoq"),
      Mac(kKey, Direction::kToAgent, 7, "stop "),         Mac(kKey, Direction::kToAgent, 7, ""),
  };
  EXPECT_EQ(codes.size(), 8U);
}

TEST(Mac, ChangesWithEveryBitOfThePayload) {
  const std::string payload = "start generation 2";
  const std::string mac = Mac(kKey, Direction::kToAgent, 1, payload);
  for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
    std::string tampered = payload;
    tampered[bit / 8] = static_cast<char>(tampered[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(SameMac(mac, Mac(kKey, Direction::kToAgent, 1, tampered)));
  }
}

TEST(SameMac, ComparesAllOfBoth) {
  EXPECT_TRUE(SameMac("", ""));
  EXPECT_TRUE(SameMac("abc", "abc"));
  EXPECT_FALSE(SameMac("abc", "abd"));
  EXPECT_FALSE(SameMac("abc", "ab"));
  EXPECT_FALSE(SameMac("", "a"));
  EXPECT_FALSE(SameMac(std::string("a\0b", 3), std::string("a\0c", 3)));
}

TEST(RandomBytes, AreAsManyAsAskedAndNeverTheSame) {
  EXPECT_EQ(RandomBytes(0).size(), 0U);
  EXPECT_EQ(RandomBytes(1000).size(), 1000U);
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
}

TEST(HexEncode, WritesTwoLowerCaseDigitsAByte) {
  EXPECT_EQ(HexEncode(std::string("\0\x0f\xff", 3)), "000fff");
}

}  // namespace
}  // namespace muster
