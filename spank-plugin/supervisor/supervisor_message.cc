#include "spank-plugin/supervisor/supervisor_message.h"

#include <signal.h>
#include <string.h>

#include "wire/gang_options.h"

namespace muster::supervisor {
namespace {

constexpr char kShort[] = "message is shorter than its type's body";
constexpr char kTail[] = "message states a text that is longer than itself";
constexpr char kValue[] = "message has a value outside its range";

template <typename Body>
Parsed Text(const void* packet, size_t size, Message* out, const char** why) {
  Body body{};
  if (!wire::ReadBody(packet, size, &body)) return *why = kShort, Parsed::kBad;
  const uint32_t lengths[] = {body.text_bytes};
  const char* pieces[1] = {};
  if (!wire::ReadTail<Body>(packet, size, lengths, pieces)) return *why = kTail, Parsed::kBad;
  out->text = pieces[0];
  out->text_size = body.text_bytes;
  return Parsed::kMessage;
}

template <typename Body>
Parsed Fixed(const void* packet, size_t size, Body* body, const char** why) {
  if (!wire::ReadBody(packet, size, body)) return *why = kShort, Parsed::kBad;
  return Parsed::kMessage;
}

}  // namespace

Parsed ParseMessage(const void* packet, size_t size, Message* out, const char** why) {
  *out = Message{};
  *why = "";
  wire::Header header{};
  const wire::Check check = wire::CheckHeader(packet, size, &header);
  if (check != wire::Check::kOk) return *why = wire::CheckText(check), Parsed::kBad;
  out->type = static_cast<wire::Type>(header.type);
  switch (out->type) {
    case wire::Type::kWelcome:
      return Fixed(packet, size, &out->welcome, why);
    case wire::Type::kStart:
      return Fixed(packet, size, &out->start, why);
    case wire::Type::kTestLinks:
      return Fixed(packet, size, &out->test_links, why);
    case wire::Type::kStop: {
      const Parsed parsed = Fixed(packet, size, &out->stop, why);
      if (parsed == Parsed::kMessage &&
          (out->stop.last_words_ms > wire::kMaxLastWords * 1000 || out->stop.signal >= uint32_t{NSIG} ||
           out->stop.signal_after_ms > out->stop.last_words_ms)) {
        return *why = kValue, Parsed::kBad;
      }
      return parsed;
    }
    case wire::Type::kGetsOn:
      return Fixed(packet, size, &out->gets_on, why);
    case wire::Type::kBeat:
      return Fixed(packet, size, &out->beat, why);
    case wire::Type::kBeatPage:
      return Parsed::kMessage;
    case wire::Type::kFinish: {
      const Parsed parsed = Fixed(packet, size, &out->finish, why);
      if (parsed == Parsed::kMessage &&
          (out->finish.as > static_cast<uint32_t>(wire::FinishAs::kCode) || out->finish.code > 255)) {
        return *why = kValue, Parsed::kBad;
      }
      return parsed;
    }
    case wire::Type::kReport:
      return Text<wire::Report>(packet, size, out, why);
    case wire::Type::kRefused:
      return Text<wire::Refused>(packet, size, out, why);
    default:
      return Parsed::kUnknown;
  }
}

bool IsEnvironment(const char* bytes, size_t size) {
  if (size == 0) return true;
  if (bytes[size - 1] != '\0') return false;
  for (size_t at = 0; at < size; at += strlen(bytes + at) + 1) {
    if (bytes[at] == '\0' || bytes[at] == '=' || bytes[at] == '?') return false;
  }
  return true;
}

}  // namespace muster::supervisor
