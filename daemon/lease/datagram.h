// The datagram of the liveness protocol: one fixed layout for all types, big-endian, with a truncated
// HMAC-SHA-256 of the gang's key at its end. docs/formats.md specifies it byte by byte. A relayed datagram is
// forwarded as it is: the code stays its author's.
#pragma once

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "daemon/lease/witnesses.h"

namespace muster::lease {

inline constexpr size_t kDatagramBytes = 112;
inline constexpr size_t kKeyBytes = 32;
using Packet = std::array<uint8_t, kDatagramBytes>;

enum class Type : uint8_t {
  kBeat = 1,   // agent -> coordinator, perhaps by way of a peer: I live
  kAck = 2,    // coordinator -> agent, perhaps by way of a peer
  kAsk = 3,    // agent -> witness: is the coordinator of this term dead to you?
  kVote = 4,   // witness -> agent: it is; I never again beat to the coordinator of this term or one below
  kLead = 5,   // coordinator -> all, and whoever knows it to whoever asks about a lower term
  kSpent = 6,  // agent -> coordinator: I have promised others not to beat in your term
};

inline constexpr uint8_t kGranted =
    1;  // of an ack: it renews the lease; without it the coordinator has no quorum
inline constexpr uint8_t kOnGrace = 2;  // of a beat: this node's members run without ever having been acked

struct Datagram {
  Type type = Type::kBeat;
  uint8_t flags = 0;
  uint64_t gang = 0;  // GangTag
  uint64_t term = 0;
  uint64_t sequence = 0;  // the author's, rising
  NodeIndex from = kNoNode;
  NodeIndex to = kNoNode;
  NodeIndex coordinator = kNoNode;  // of `term`
  int64_t sent = 0;                 // the author's clock
  // Beat: the newest stamp (`sent` of an ack) that the author has; ack: the beat's sequence; vote: the ask's sent.
  uint64_t echo = 0;
  uint64_t generation = 0;  // beat: newest known to be stopped here; ack: all up to it must not run
  WitnessSet witnesses;     // ask and lead: of `term`; ack: nodes whose musterd has gone (as many as fit)
};

// 64 bits that tell gangs apart; not secret.
uint64_t GangTag(std::string_view gang_id);

// A key made ready for use: no allocation, no lookup. Copyable; immutable.
class Authenticator {
 public:
  // `key`: kKeyBytes; any length is taken (as HMAC does) up to 64.
  explicit Authenticator(std::string_view key);

  void Seal(const Datagram& datagram, Packet* packet) const;
  // Nothing when the bytes are no datagram of this version or were not sealed with this key.
  [[nodiscard]] std::optional<Datagram> Open(std::span<const uint8_t> bytes) const;

  friend bool operator==(const Authenticator& a, const Authenticator& b);

 private:
  void Code(const uint8_t* bytes, size_t count, uint8_t* code) const;

  SHA256_CTX inner_;
  SHA256_CTX outer_;
};

// The gang of a datagram that has not been authenticated: to find the key. Nothing when it is malformed.
std::optional<uint64_t> PeekGang(std::span<const uint8_t> bytes);

}  // namespace muster::lease
