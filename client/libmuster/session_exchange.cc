// The part of Session that gives other members a value, and takes theirs.
#include <string.h>

#include "client/libmuster/client_session.h"
#include "client/libmuster/wire_text.h"

namespace muster::client {
namespace {

constexpr int64_t kMissingTimeout = kSecond;

}  // namespace

int Session::Exchange(const char* key, const void* value, size_t bytes, int64_t deadline,
                      ExchangedValues* values) {
  values->Forget();
  const size_t key_bytes = key != nullptr ? strnlen(key, sizeof(exchanging_.call.key)) : 0;
  bool visible = key_bytes > 0 && key_bytes < sizeof(exchanging_.call.key);
  for (size_t i = 0; visible && i < key_bytes; ++i) visible = key[i] > ' ' && key[i] < 0x7f;
  if (!visible) {
    return Fail(MUSTER_E_INVALID, "the key of an exchange has 1 to %u visible characters",
                wire::kMaxExchangeKey);
  }
  if (bytes > wire::kMaxExchangeValue || (value == nullptr && bytes > 0)) {
    return Fail(bytes > wire::kMaxExchangeValue ? MUSTER_E_TOO_LARGE : MUSTER_E_INVALID,
                "a value of %zu bytes; a member may give %u", bytes, wire::kMaxExchangeValue);
  }
  if ((welcome_.features & wire::kExchanges) == 0)
    return Fail(MUSTER_E_PROTOCOL,
                "this node's musterd is older than this libmuster: it exchanges no values");
  Exchanging& now = exchanging_;
  ExchangeCall& call = now.call;
  // One that was not answered in time goes on.
  const bool goes_on = strcmp(call.key, key) == 0;
  if (goes_on && (call.value_bytes != bytes || (bytes > 0 && memcmp(call.value, value, bytes) != 0))) {
    return Fail(MUSTER_E_INVALID, "another value was given under the key %s before", key);
  }
  memcpy(call.key, key, key_bytes + 1);
  if (bytes > 0) memcpy(call.value, value, bytes);
  call.value_bytes = static_cast<uint32_t>(bytes);
  now.heard = goes_on ? wire::Heard::kAgain : wire::Heard::kNew;
  call.sent = now.done = now.ask_missing = now.missing_sent = false;
  now.missing[0] = '\0';
  ++call.number;
  now.active = true;
  int status = Until(deadline, [](Session* self) { return self->exchanging_.done; });
  if (status == MUSTER_E_TIMEOUT) {
    now.ask_missing = true;
    (void)Until(Now() + kMissingTimeout, [](Session* self) {
      return self->exchanging_.done || self->exchanging_.missing[0] != '\0' || self->link_ != Link::kReady;
    });
    now.active = false;
    if (!now.done) {
      return Fail(MUSTER_E_TIMEOUT, "the exchange under the key %s is not complete: %s", key,
                  now.missing[0] != '\0' ? now.missing
                                         : "the gang's coordinator does not say which members are missing");
    }
    status = MUSTER_OK;
  }
  now.active = false;
  if (status != MUSTER_OK) return status;
  if (now.status == MUSTER_OK) now.before = call;
  call.key[0] = '\0';
  const UniqueFd memory = static_cast<UniqueFd&&>(now.memory);
  if (now.status != MUSTER_OK) return Fail(now.status, "the exchange under the key %s: %s", key, now.text);
  if (now.members != welcome_.world_size || !values->Take(memory, now.bytes, now.members))
    return Fail(MUSTER_E_PROTOCOL, "musterd sent other values than were asked for");
  return MUSTER_OK;
}

int Session::SendExchange(const ExchangeCall& call, wire::Heard heard) {
  struct {
    wire::Exchange body;
    char tail[wire::kMaxExchangeKey + wire::kMaxExchangeValue];
  } packet{};
  const size_t key_bytes = strlen(call.key);
  wire::SetHeader(&packet.body, wire::Type::kExchange, key_bytes + call.value_bytes);
  packet.body.number = call.number;
  packet.body.heard = heard;
  packet.body.key_bytes = static_cast<uint32_t>(key_bytes);
  packet.body.value_bytes = call.value_bytes;
  char* tail = reinterpret_cast<char*>(&packet) + sizeof(packet.body);
  memcpy(tail, call.key, key_bytes);
  memcpy(tail + key_bytes, call.value, call.value_bytes);
  return connection_.Send(&packet, sizeof(packet.body) + key_bytes + call.value_bytes);
}

int Session::SendAskMissing() {
  struct {
    wire::AskMissing body;
    char key[wire::kMaxExchangeKey];
  } packet{};
  const size_t key_bytes = strlen(exchanging_.call.key);
  wire::SetHeader(&packet.body, wire::Type::kAskMissing, key_bytes);
  packet.body.number = exchanging_.call.number;
  packet.body.key_bytes = static_cast<uint32_t>(key_bytes);
  memcpy(reinterpret_cast<char*>(&packet) + sizeof(packet.body), exchanging_.call.key, key_bytes);
  return connection_.Send(&packet, sizeof(packet.body) + key_bytes);
}

// Whether musterd is still to be told of a call.
bool Session::OwesExchange() const {
  const Exchanging& now = exchanging_;
  return (now.before.key[0] != '\0' && !now.before.sent) || (now.active && !now.call.sent) ||
         (now.active && now.ask_missing && !now.missing_sent);
}

int Session::FlushExchange() {
  Exchanging& now = exchanging_;
  if (now.before.key[0] != '\0' && !now.before.sent) {
    if (const int error = SendExchange(now.before, wire::Heard::kAnswered); error != 0) return error;
    now.before.sent = true;
  }
  if (now.active && !now.call.sent) {
    if (const int error = SendExchange(now.call, now.heard); error != 0) return error;
    now.call.sent = true;
    now.heard = wire::Heard::kAgain;
  }
  if (now.active && now.ask_missing && !now.missing_sent) {
    if (const int error = SendAskMissing(); error != 0) return error;
    now.missing_sent = true;
  }
  return 0;
}

void Session::OnExchanged() {
  wire::Exchanged exchanged;
  WireText text;
  if (!exchanging_.active || !ReadWithText(connection_, &exchanged, &text) ||
      exchanged.number != exchanging_.call.number) {
    return;
  }
  exchanging_.done = true;
  exchanging_.status = CheckedStatus(exchanged.status);
  exchanging_.members = exchanged.members;
  exchanging_.bytes = exchanged.bytes;
  exchanging_.memory = connection_.TakeDescriptor();
  text.CopyTo(exchanging_.text);
}

void Session::OnMissing() {
  wire::Missing missing;
  WireText text;
  if (!exchanging_.active || !ReadWithText(connection_, &missing, &text) ||
      missing.number != exchanging_.call.number)
    return;
  text.CopyTo(exchanging_.missing);
}

}  // namespace muster::client
