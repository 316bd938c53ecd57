// What the supervisor takes for a message, and what the plugin takes for an option.
#include <gtest/gtest.h>

#include <string>

#include "daemon/wire/gang_options.h"
#include "spank-plugin/supervisor/message.h"

namespace muster::supervisor {
namespace {

using wire::Type;

template <typename Body>
std::string Bytes(Body body, Type type, const std::string& tail = "") {
  wire::SetHeader(&body, type, tail.size());
  return std::string(reinterpret_cast<const char*>(&body), sizeof(body)) + tail;
}

Parsed Parse(const std::string& packet, Message* message) {
  const char* why = nullptr;
  const Parsed parsed = ParseMessage(packet.data(), packet.size(), message, &why);
  EXPECT_EQ(parsed == Parsed::kBad, why[0] != '\0');
  return parsed;
}

TEST(Message, EveryTypeForASupervisorIsRead) {
  Message message;
  wire::Welcome welcome{};
  welcome.lease_ms = 5;
  EXPECT_EQ(Parse(Bytes(welcome, Type::kWelcome), &message), Parsed::kMessage);
  EXPECT_EQ(message.welcome.lease_ms, 5U);
  wire::Start start{};
  start.generation = 3;
  EXPECT_EQ(Parse(Bytes(start, Type::kStart), &message), Parsed::kMessage);
  EXPECT_EQ(message.start.generation, 3U);
  EXPECT_EQ(Parse(Bytes(wire::Stop{}, Type::kStop), &message), Parsed::kMessage);
  EXPECT_EQ(Parse(Bytes(wire::Finish{}, Type::kFinish), &message), Parsed::kMessage);
  wire::Report report{};
  report.text_bytes = 4;
  const std::string packet = Bytes(report, Type::kReport, "text");  // the message's text stays in it
  EXPECT_EQ(Parse(packet, &message), Parsed::kMessage);
  EXPECT_EQ(std::string(message.text, message.text_size), "text");
  wire::Refused refused{};
  refused.text_bytes = 2;
  EXPECT_EQ(Parse(Bytes(refused, Type::kRefused, "no"), &message), Parsed::kMessage);
}

TEST(Message, ANewerBodyMayBeLonger) {
  Message message;
  EXPECT_EQ(Parse(Bytes(wire::Stop{}, Type::kStop, "a field of the next version"), &message),
            Parsed::kMessage);
}

TEST(Message, OfAnyShorterLengthIsBad) {
  wire::Report report{};
  report.text_bytes = 4;
  const std::string whole[] = {Bytes(wire::Welcome{}, Type::kWelcome), Bytes(wire::Start{}, Type::kStart),
                               Bytes(wire::Stop{}, Type::kStop), Bytes(wire::Finish{}, Type::kFinish),
                               Bytes(report, Type::kReport, "text")};
  for (const std::string& packet : whole) {
    for (size_t size = 0; size < packet.size(); ++size) {
      std::string cut = packet.substr(0, size);
      Message message;
      EXPECT_EQ(Parse(cut, &message), Parsed::kBad);
      if (size < sizeof(wire::Header)) continue;
      const auto stated = static_cast<uint32_t>(size);  // also when the header agrees
      memcpy(cut.data() + offsetof(wire::Header, size), &stated, sizeof(stated));
      EXPECT_EQ(Parse(cut, &message), Parsed::kBad);
    }
  }
}

TEST(Message, AFinishOutsideItsRangeIsBad) {
  Message message;
  wire::Finish finish{};
  finish.as = 3;
  EXPECT_EQ(Parse(Bytes(finish, Type::kFinish), &message), Parsed::kBad);
  finish.as = 2;
  finish.code = 256;
  EXPECT_EQ(Parse(Bytes(finish, Type::kFinish), &message), Parsed::kBad);
}

TEST(Message, OfAnotherVersionOrMagicIsBad) {
  Message message;
  std::string packet = Bytes(wire::Stop{}, Type::kStop);
  packet[0] = 'X';
  EXPECT_EQ(Parse(packet, &message), Parsed::kBad);
  packet = Bytes(wire::Stop{}, Type::kStop);
  packet[4] = 9;
  EXPECT_EQ(Parse(packet, &message), Parsed::kBad);
}

TEST(Message, ForSomebodyElseIsUnknown) {
  Message message;
  EXPECT_EQ(Parse(Bytes(wire::Save{}, Type::kSave), &message), Parsed::kUnknown);
}

TEST(Environment, IsNulTerminatedStringsWithKeys) {
  const std::pair<std::string, bool> table[] = {
      {"", true},
      {std::string("A=1\0", 4), true},
      {std::string("A=1\0B\0C=\0", 9), true},
      {"A=1", false},                      // not terminated
      {std::string("A=1\0\0", 5), false},  // an empty string
      {std::string("=1\0", 3), false},     // no key
      {std::string("A=1\0=2\0", 7), false},
  };
  for (const auto& [bytes, good] : table) EXPECT_EQ(IsEnvironment(bytes.data(), bytes.size()), good) << bytes;
}

struct OptionCase {
  std::string value;
  std::string error;  // part of the sentence; "" when the value is good
};

TEST(GangOptions, GoodValuesAreTakenAndBadOnesNamed) {
  const OptionCase table[] = {
      {"", ""},
      {"restarts=0", ""},
      {"restarts=1000,join=24h,role=ps-1,name=run.7_b", ""},
      {"join=90", ""},
      {"join=5m", ""},
      {"restarts=1001", "'restarts=1001' is not a good value"},
      {"restarts=-1", "not a good value"},
      {"restarts=", "not a good value"},
      {"restarts", "not a good value"},
      {"join=0", "not a good value"},
      {"join=25h", "not a good value"},
      {"join=9999999999", "not a good value"},
      {"role=", "not a good value"},
      {"role=a/b", "not a good value"},
      {"name=..", "not a good value"},
      {"name=.hidden", "not a good value"},
      {"name=" + std::string(64, 'n'), "not a good value"},
      {"spare=1", "unknown key 'spare'"},
      {"restarts=1,restarts=2", "given twice"},
      {",", "empty item"},
      {"restarts=1,", "empty item"},
      {",restarts=1", "empty item"},
      {"name=a\nb", "control character"},
      {std::string(1025, 'x'), "bytes long"},
  };
  for (const OptionCase& test : table) {
    wire::GangOptions options;
    char error[512] = "";
    const bool good =
        wire::ParseGangOptions(test.value.data(), test.value.size(), &options, error, sizeof(error));
    EXPECT_EQ(good, test.error.empty()) << test.value;
    if (good) continue;
    EXPECT_NE(std::string(error).find(test.error), std::string::npos) << error;
    // Whatever is wrong, a person sees what would be right.
    if (test.error.find("key") == std::string::npos && test.error.find("value") == std::string::npos)
      continue;
    EXPECT_NE(std::string(error).find(wire::kGangKeys), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace muster::supervisor
