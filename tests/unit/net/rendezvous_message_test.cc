#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/rendezvous/rendezvous_message.h"

namespace muster::rendezvous {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

std::vector<std::byte> Bytes(const Message& message) {
  Result<std::vector<std::byte>> bytes = Encode(message);
  EXPECT_TRUE(bytes.ok());
  return bytes ? *bytes : std::vector<std::byte>();
}

std::string Refusal(const std::vector<std::byte>& bytes) {
  Result<std::optional<Decoded>> decoded = Decode(bytes);
  return decoded ? "" : decoded.error().message;
}

const Message kSetMessage{MessageType::kSet, "key", "value", {}};

TEST(RendezvousMessage, ComesBackAsItWasSent) {
  const std::string zeros(3, '\0');
  for (const Message& message :
       {kSetMessage, Message{MessageType::kSet, zeros, std::string(kMaxValueBytes, 'x'), {}},
        Message{MessageType::kGet, std::string(kMaxKeyBytes, 'k'), "", milliseconds(0xffffffff)},
        Message{MessageType::kStored, "", "", {}}, Message{MessageType::kValue, "", "v", {}},
        Message{MessageType::kRefused, "", "why", {}}, Message{MessageType::kWill, "key", "value", {}}}) {
    std::vector<std::byte> bytes = Bytes(message);
    const std::size_t length = bytes.size();
    bytes.push_back(std::byte{7});  // the next message's
    Result<std::optional<Decoded>> decoded = Decode(bytes);
    ASSERT_TRUE(decoded.ok() && decoded->has_value());
    EXPECT_EQ((*decoded)->bytes, length);
    EXPECT_EQ((*decoded)->message.type, message.type);
    EXPECT_EQ((*decoded)->message.key, message.key);
    EXPECT_EQ((*decoded)->message.value, message.value);
    EXPECT_EQ((*decoded)->message.patience, message.patience);
  }
}

TEST(RendezvousMessage, IsWaitedForUntilItsLastByte) {
  const std::vector<std::byte> bytes = Bytes(kSetMessage);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Result<std::optional<Decoded>> decoded = Decode(std::span(bytes).first(length));
    ASSERT_TRUE(decoded.ok());
    EXPECT_FALSE(decoded->has_value()) << length;
  }
}

TEST(RendezvousMessage, IsRefusedByItsHeaderAlone) {
  struct Case {
    std::size_t offset;
    std::byte value;
    const char* reason;
  };
  for (const Case& c :
       {Case{0, std::byte{'X'}, "magic"}, Case{4, std::byte{2}, "version 2"}, Case{5, std::byte{0}, "type 0"},
        Case{5, std::byte{7}, "type 7"}, Case{5, std::byte{2}, "a value where none"},
        Case{5, std::byte{4}, "a reply with a key"}, Case{6, std::byte{0xff}, "the limit is 512"},
        Case{8, std::byte{0xff}, "the limit is 65536"}, Case{15, std::byte{1}, "patience"}}) {
    std::vector<std::byte> bytes = Bytes(kSetMessage);
    bytes[c.offset] = c.value;
    bytes.resize(kHeaderBytes);
    EXPECT_THAT(Refusal(bytes), HasSubstr(c.reason));
  }
}

TEST(RendezvousMessage, IsNotEncodedBeyondItsLimits) {
  EXPECT_FALSE(Encode({MessageType::kSet, std::string(kMaxKeyBytes + 1, 'k'), "", {}}).ok());
  EXPECT_FALSE(Encode({MessageType::kSet, "k", std::string(kMaxValueBytes + 1, 'v'), {}}).ok());
  EXPECT_FALSE(Encode({MessageType::kSet, "", "v", {}}).ok());
  EXPECT_FALSE(Encode({MessageType::kGet, "k", "", milliseconds(-1)}).ok());
}

TEST(RendezvousMessage, SurvivesAnyChangedBytes) {
  std::uint32_t random = 1;
  const auto next = [&random] { return random = random * 1664525U + 1013904223U; };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = Bytes(kSetMessage);
    bytes.resize(next() % 40);
    for (int change = 0; change < 3 && !bytes.empty(); ++change) {
      bytes[(next() >> 8) % bytes.size()] = static_cast<std::byte>(next() >> 24);
    }
    Result<std::optional<Decoded>> decoded = Decode(bytes);
    if (decoded && decoded->has_value()) {
      EXPECT_LE((*decoded)->bytes, bytes.size());
      EXPECT_TRUE(Encode((*decoded)->message).ok());
    }
  }
}

}  // namespace
}  // namespace muster::rendezvous
