#include "daemon/lease/datagram.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace muster::lease {
namespace {

Datagram Sample() {
  Datagram d;
  d.type = Type::kLead;
  d.flags = kGranted;
  d.gang = GangTag("12.0");
  d.term = 0x0102030405060708;
  d.sequence = 77;
  d.from = 4095;
  d.to = 3;
  d.coordinator = 9;
  d.sent = 123'456'789'012;
  d.echo = UINT64_MAX;
  d.generation = 5;
  d.witnesses = WitnessSet::FirstOf(15);
  return d;
}

TEST(Datagrams, WhatIsSealedIsOpenedUnchanged) {
  const Authenticator key(std::string(32, 'k'));
  Packet packet;
  key.Seal(Sample(), &packet);
  const auto opened = key.Open(packet);
  ASSERT_TRUE(opened);
  const Datagram d = Sample();
  EXPECT_EQ(opened->type, d.type);
  EXPECT_EQ(opened->flags, d.flags);
  EXPECT_EQ(opened->gang, d.gang);
  EXPECT_EQ(opened->term, d.term);
  EXPECT_EQ(opened->sequence, d.sequence);
  EXPECT_EQ(opened->from, d.from);
  EXPECT_EQ(opened->to, d.to);
  EXPECT_EQ(opened->coordinator, d.coordinator);
  EXPECT_EQ(opened->sent, d.sent);
  EXPECT_EQ(opened->echo, d.echo);
  EXPECT_EQ(opened->generation, d.generation);
  EXPECT_TRUE(opened->witnesses == d.witnesses);
  EXPECT_EQ(PeekGang(packet), d.gang);
}

TEST(Datagrams, TheLayoutIsTheDocumentedOne) {
  const Authenticator key("k");
  Packet packet;
  key.Seal(Sample(), &packet);
  const std::vector<uint8_t> head(packet.begin(), packet.begin() + 8);
  EXPECT_EQ(head, (std::vector<uint8_t>{'M', 'S', 'B', '1', 1, 5, 1, 15}));
  EXPECT_EQ(packet[16], 1);  // term, big-endian
  EXPECT_EQ(packet[23], 8);
  EXPECT_EQ(packet[32] << 8 | packet[33], 4095);
  EXPECT_EQ(packet[62 + 2 * 14 + 1], 14);  // the last witness
}

TEST(Datagrams, TheCodeIsTruncatedHmacSha256) {
  const std::string key(32, 'k');
  Packet packet;
  Authenticator(key).Seal(Sample(), &packet);
  std::array<uint8_t, 32> expected{};
  unsigned int size = 0;
  ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), packet.data(), 96, expected.data(), &size);
  EXPECT_TRUE(std::equal(packet.begin() + 96, packet.end(), expected.begin()));
}

TEST(Datagrams, AnyChangedBitAndAnyOtherKeyIsRefused) {
  const Authenticator key(std::string(32, 'k'));
  Packet packet;
  key.Seal(Sample(), &packet);
  EXPECT_FALSE(Authenticator(std::string(32, 'l')).Open(packet));
  for (size_t bit = 0; bit < packet.size() * 8; ++bit) {
    Packet changed = packet;
    changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_FALSE(key.Open(changed)) << "bit " << bit;
  }
}

TEST(Datagrams, OtherLengthsAndNoiseAreRefused) {
  const Authenticator key(std::string(32, 'k'));
  std::mt19937_64 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    EXPECT_FALSE(key.Open(bytes));
    if (size != kDatagramBytes) {
      EXPECT_FALSE(PeekGang(bytes));
    }
  }
}

TEST(Datagrams, AnUnknownTypeIsRefusedEvenWhenSealed) {
  const Authenticator key(std::string(32, 'k'));
  for (const uint8_t type : {0, 7, 255}) {
    Datagram d = Sample();
    d.type = static_cast<Type>(type);
    Packet packet;
    key.Seal(d, &packet);
    EXPECT_FALSE(key.Open(packet));
  }
}

TEST(Witnesses, MajoritiesShareAWitnessAndBlockingSetsLeaveNoMajority) {
  for (size_t n = 1; n <= kMaxWitnesses; ++n) {
    const WitnessSet set = WitnessSet::FirstOf(n);
    EXPECT_GT(2 * set.Majority(), n);
    EXPECT_LT(n - set.Blocking(), set.Majority());
    EXPECT_GE(n - set.Blocking() + 1, set.Majority());
  }
  WitnessSet full = WitnessSet::FirstOf(100);
  EXPECT_EQ(full.size(), kMaxWitnesses);
  EXPECT_FALSE(full.Add(99));
  EXPECT_TRUE(full.Add(3));
  EXPECT_EQ(full.Position(99), full.size());
}

}  // namespace
}  // namespace muster::lease
