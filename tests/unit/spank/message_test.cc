// What the supervisor takes for a message, and what the plugin takes for an option.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "spank-plugin/supervisor/supervisor_message.h"
#include "wire/gang_options.h"

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

TEST(Message, AStopsLastWordsHaveALimitAndASignal) {
  Message message;
  wire::Stop stop{};
  stop.last_words_ms = 60'000;
  stop.signal = SIGUSR2;
  EXPECT_EQ(Parse(Bytes(stop, Type::kStop), &message), Parsed::kMessage);
  ++stop.last_words_ms;
  EXPECT_EQ(Parse(Bytes(stop, Type::kStop), &message), Parsed::kBad);
  stop.last_words_ms = 1'000;
  stop.signal_after_ms = 1'001;
  EXPECT_EQ(Parse(Bytes(stop, Type::kStop), &message), Parsed::kBad);
  stop.signal_after_ms = 0;
  stop.signal = 65;
  EXPECT_EQ(Parse(Bytes(stop, Type::kStop), &message), Parsed::kBad);
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
      {"name=run.7_b:wait", ""},
      {"join=90", ""},
      {"join=5m", ""},
      {"spares=1024,min=65536,grow=yes,hang=10m,grace=0,requeue=no,kind=sidecar,after=worker:done,role=log",
       ""},
      {"hang=off", ""},
      {"startup=24h,hang=1s", ""},
      {"grace=1h", ""},
      {"last_words=60", ""},
      {"last_words=1m:HUP", ""},
      {"min=0", ""},
      {"grow=no", ""},
      {"after=ps", ""},
      {"off", ""},
      {"off,spares=1", "'off' stands alone: a step that is no gang has no other keys; the keys are"},
      {"spares=1,off", "'off' stands alone"},
      {"off,off", "'off' stands alone"},
      {"off,", "empty item"},
      {"off=yes", "unknown key 'off'"},
      {"no", "unknown key 'no'"},
      {"spares=1025", "not a good value"},
      {"spares=", "not a good value"},
      {"min=65537", "not a good value"},
      {"grow=maybe", "not a good value"},
      {"grow", "not a good value"},
      {"hang=0", "not a good value"},
      {"hang=25h", "not a good value"},
      {"hang=offf", "not a good value"},
      {"startup=0", "not a good value"},
      {"startup=25h", "not a good value"},
      {"startup=off", "not a good value"},
      {"startup", "not a good value"},
      {"startup=5s,startup=6s", "given twice"},
      {"startup=5s,hang=off", "startup= with hang=off: no hang is looked for then"},
      {"grace=2h", "not a good value"},
      {"last_words=0", "not a good value"},
      {"last_words=61s", "not a good value"},
      {"last_words=5:", "not a good value"},
      {"last_words=:TERM", "not a good value"},
      {"last_words=5:KILL", "not a good value"},
      {"last_words=5:SIGTERM", "not a good value"},
      {"last_words=5:TERM:TERM", "not a good value"},
      {"requeue=1", "not a good value"},
      {"order=", "not a good value"},
      {"order=yes", "not a good value"},
      {"preflight=", "not a good value"},
      {"preflight=yes", "not a good value"},
      {"kind=ps", "not a good value"},
      {"kind=trackedx", "not a good value"},
      {"after=", "not a good value"},
      {"after=:done", "not a good value"},
      {"after=a:done:done", "not a good value"},
      {"after=" + std::string(64, 'n'), "not a good value"},
      {"spares=1,grow=yes",
       "grow=yes needs min=N: without it the gang never has fewer nodes than it began with; the keys"},
      {"min=0,grow=yes", "grow=yes needs min=N"},
      {"role=ps,after=ps", "after=ps names the role itself; the keys"},
      {"after=worker:done", "after=worker names the role itself"},
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
      {"name=:wait", "not a good value"},
      {"name=run:later", "not a good value"},
      {"name=run:wait:wait", "not a good value"},
      {"name=run:", "not a good value"},
      {"name=.hidden", "not a good value"},
      {"name=" + std::string(64, 'n'), "not a good value"},
      {"stop_codes=0", "not a good value"},
      {"stop_codes=256", "not a good value"},
      {"stop_codes=", "not a good value"},
      {"stop_codes=93:", "not a good value"},
      {"stop_codes=93::94", "not a good value"},
      {"stop_codes=93;94", "not a good value"},
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
    char error[wire::kMaxOptionError] = "";
    const bool good =
        wire::ParseGangOptions(test.value.data(), test.value.size(), &options, error, sizeof(error));
    EXPECT_EQ(good, test.error.empty()) << test.value;
    if (good) continue;
    EXPECT_NE(std::string(error).find(test.error), std::string::npos) << error;
    // Whatever is wrong, a person sees what would be right.
    if (test.error.find("key") == std::string::npos && test.error.find("value") == std::string::npos)
      continue;
    EXPECT_NE(std::string(error).find(wire::kGangKeysText.text), std::string::npos) << error;
  }
}

// docs/options.md has a row for each, in this order, and no others.
TEST(GangOptions, EveryKeyHasItsRowInTheManual) {
  std::ifstream manual(OPTIONS_PAGE);
  std::vector<std::string> rows;
  for (std::string line; std::getline(manual, line);) {
    if (line.starts_with("| `")) rows.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  std::vector<std::string> keys;
  for (const wire::GangKey& key : wire::kGangKeys) {
    std::string values = std::string(key.name) == "kind" ? "KIND" : key.values;
    for (size_t at = 0; (at = values.find('|', at)) != std::string::npos; at += 2) values.insert(at, "\\");
    keys.push_back(std::string(key.name) + "=" + values);
  }
  EXPECT_EQ(rows, keys);
}

TEST(GangOptions, TheLongestSentenceHasRoom) {
  const std::string value = "after=" + std::string(63, 'n') + ",role=" + std::string(63, 'n');
  wire::GangOptions options;
  char error[wire::kMaxOptionError] = "";
  EXPECT_FALSE(wire::ParseGangOptions(value.data(), value.size(), &options, error, sizeof(error)));
  EXPECT_TRUE(std::string(error).ends_with(wire::kGangKeysText.text)) << error;
  EXPECT_LT(strlen(wire::kGangKeysText.text) + 1, sizeof(wire::kGangKeysText.text) - 64) << "soon too short";
}

wire::GangOptions Parsed(const std::string& value) {
  wire::GangOptions options;
  char error[wire::kMaxOptionError] = "";
  EXPECT_TRUE(wire::ParseGangOptions(value.data(), value.size(), &options, error, sizeof(error))) << error;
  return options;
}

TEST(GangOptions, EveryKeyIsKept) {
  const wire::GangOptions all = Parsed(
      "restarts=7,join=2m,spares=2,min=3,grow=yes,hang=90s,startup=20m,grace=1m,last_words=7s:USR1,stop_"
      "codes=93:255:1,"
      "requeue=no,role=log,"
      "kind=sidecar,"
      "after=worker:done,name=run,files=yes,order=topology,preflight=full,warm=yes");
  EXPECT_EQ(all.restarts, 7U);
  EXPECT_EQ(all.join_seconds, 120U);
  EXPECT_EQ(all.spares, 2U);
  EXPECT_EQ(all.min_nodes, 3U);
  EXPECT_TRUE(all.grow);
  EXPECT_EQ(all.hang_seconds, 90U);
  EXPECT_FALSE(all.hang_off);
  EXPECT_EQ(all.startup_seconds, 1200U);
  EXPECT_EQ(all.grace_seconds, 60U);
  EXPECT_EQ(all.last_words_seconds, 7U);
  EXPECT_EQ(all.last_words_signal, static_cast<uint32_t>(SIGUSR1));
  EXPECT_EQ(Parsed("last_words=7").last_words_signal, static_cast<uint32_t>(SIGTERM));
  for (int code = -1; code < 300; ++code)
    EXPECT_EQ(wire::IsStopCode(all, code), code == 1 || code == 93 || code == 255) << code;
  EXPECT_FALSE(all.requeue);
  EXPECT_STREQ(all.role, "log");
  EXPECT_EQ(all.kind, wire::RoleKind::kSidecar);
  EXPECT_STREQ(all.after, "worker");
  EXPECT_TRUE(all.after_done);
  EXPECT_STREQ(all.name, "run");
  EXPECT_FALSE(all.name_wait);
  EXPECT_STREQ(Parsed("name=run:wait").name, "run");
  EXPECT_TRUE(Parsed("name=run:wait").name_wait);
  EXPECT_TRUE(all.files);
  EXPECT_TRUE(all.order_by_topology);
  EXPECT_EQ(all.preflight, wire::Preflight::kFull);
  EXPECT_TRUE(all.warm);
  EXPECT_TRUE(Parsed("off").off);
  EXPECT_FALSE(all.off);
  EXPECT_EQ(Parsed("preflight=quick").preflight, wire::Preflight::kQuick);
  EXPECT_EQ(Parsed("preflight=off").preflight, wire::Preflight::kOff);
  EXPECT_TRUE(Parsed("hang=off").hang_off);
  EXPECT_FALSE(Parsed("after=ps").after_done);
  EXPECT_FALSE(Parsed("order=slurm").order_by_topology);
}

TEST(GangOptions, WhatIsNotGivenHasItsDefault) {
  const wire::GangOptions none = Parsed("");
  EXPECT_FALSE(none.warm);
  EXPECT_EQ(none.restarts, 3U);
  EXPECT_EQ(none.spares, 0U);
  EXPECT_EQ(none.min_nodes, 0U);
  EXPECT_FALSE(none.grow);
  EXPECT_EQ(none.hang_seconds, 0U);
  EXPECT_FALSE(none.hang_off);
  EXPECT_EQ(none.startup_seconds, 0U);
  EXPECT_EQ(none.grace_seconds, 30U);
  EXPECT_EQ(none.last_words_seconds, 0U);
  EXPECT_TRUE(none.requeue);
  EXPECT_FALSE(none.files);
  EXPECT_FALSE(none.order_by_topology);
  EXPECT_STREQ(none.after, "");
  EXPECT_EQ(none.kind, wire::RoleKind::kTracked);
}

TEST(GangOptions, ARolesNameSaysWhatItIsUnlessKindDoes) {
  const std::pair<const char*, wire::RoleKind> table[] = {
      {"role=chief", wire::RoleKind::kChief},
      {"role=master", wire::RoleKind::kChief},
      {"role=ps", wire::RoleKind::kService},
      {"role=scheduler", wire::RoleKind::kService},
      {"role=server", wire::RoleKind::kService},
      {"role=evaluator", wire::RoleKind::kUntracked},
      {"role=tensorboard", wire::RoleKind::kSidecar},
      {"role=worker", wire::RoleKind::kTracked},
      {"role=anything", wire::RoleKind::kTracked},
      {"kind=untracked,role=ps", wire::RoleKind::kUntracked},
      {"role=chief,kind=tracked", wire::RoleKind::kTracked},
  };
  for (const auto& [value, kind] : table) EXPECT_EQ(Parsed(value).kind, kind) << value;
}

TEST(GangOptions, NodesThatDoNotAddUpAreNamed) {
  struct Case {
    const char* value;
    uint32_t nodes;
    const char* error;
  };
  const Case table[] = {
      {"", 1, ""},
      {"spares=1", 2, ""},
      {"spares=1,min=3", 4, ""},
      {"min=4", 4, ""},
      {"spares=1", 1, "--gang: spares=1 of 1 nodes leaves none to run on"},
      {"spares=5", 4, "spares=5 of 4 nodes"},
      {"min=5", 4, "min=5 is more than the 4 nodes"},
      {"spares=1,min=4", 4,
       "min=4 is more than the 3 nodes that the gang runs on (4, of which spares=1 wait)"},
  };
  for (const Case& test : table) {
    char error[wire::kMaxOptionError] = "";
    EXPECT_EQ(wire::CheckNodes(Parsed(test.value), test.nodes, error, sizeof(error)), *test.error == '\0')
        << test.value;
    EXPECT_NE(std::string(error).find(test.error), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace muster::supervisor
