// SHA256_Init and its like are deprecated for EVP, which allocates and looks algorithms up: not on the beat path.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "daemon/lease/datagram.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>

namespace muster::lease {
namespace {

constexpr uint32_t kMagic = 0x4d534231;  // "MSB1"
constexpr uint8_t kVersion = 1;
constexpr size_t kCodeBytes = 16;
constexpr size_t kCodedBytes = kDatagramBytes - kCodeBytes;
constexpr size_t kGangAt = 8;
constexpr size_t kBlock = 64;

class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}
  template <typename T>
  void Put(T value) {
    for (size_t i = sizeof(T); i-- > 0;) *at_++ = static_cast<uint8_t>(value >> (8 * i));
  }

 private:
  uint8_t* at_;
};

class Reader {
 public:
  explicit Reader(const uint8_t* at) : at_(at) {}
  template <typename T>
  T Get() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value = value << 8 | *at_++;
    return static_cast<T>(value);
  }

 private:
  const uint8_t* at_;
};

}  // namespace

uint64_t GangTag(std::string_view gang_id) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : gang_id) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

Authenticator::Authenticator(std::string_view key) {
  std::array<uint8_t, kBlock> pad{};
  const size_t used = std::min(key.size(), kBlock);
  const auto begin = [&](SHA256_CTX* context, uint8_t with) {
    pad.fill(with);
    for (size_t i = 0; i < used; ++i) pad[i] = static_cast<uint8_t>(key[i]) ^ with;
    SHA256_Init(context);
    SHA256_Update(context, pad.data(), pad.size());
  };
  begin(&inner_, 0x36);
  begin(&outer_, 0x5c);
  OPENSSL_cleanse(pad.data(), pad.size());
}

bool operator==(const Authenticator& a, const Authenticator& b) {
  return std::memcmp(a.inner_.h, b.inner_.h, sizeof a.inner_.h) == 0;
}

void Authenticator::Code(const uint8_t* bytes, size_t count, uint8_t* code) const {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256_CTX context = inner_;
  SHA256_Update(&context, bytes, count);
  SHA256_Final(digest.data(), &context);
  context = outer_;
  SHA256_Update(&context, digest.data(), digest.size());
  SHA256_Final(digest.data(), &context);
  std::memcpy(code, digest.data(), kCodeBytes);
}

void Authenticator::Seal(const Datagram& datagram, Packet* packet) const {
  packet->fill(0);
  Writer out(packet->data());
  out.Put(kMagic);
  out.Put(kVersion);
  out.Put(static_cast<uint8_t>(datagram.type));
  out.Put(datagram.flags);
  out.Put(static_cast<uint8_t>(datagram.witnesses.size()));
  out.Put(datagram.gang);
  out.Put(datagram.term);
  out.Put(datagram.sequence);
  out.Put(datagram.from);
  out.Put(datagram.to);
  out.Put(datagram.coordinator);
  out.Put(static_cast<uint64_t>(datagram.sent));
  out.Put(datagram.echo);
  out.Put(datagram.generation);
  for (const NodeIndex node : datagram.witnesses) out.Put(node);
  Code(packet->data(), kCodedBytes, packet->data() + kCodedBytes);
}

std::optional<uint64_t> PeekGang(std::span<const uint8_t> bytes) {
  if (bytes.size() != kDatagramBytes) return std::nullopt;
  Reader head(bytes.data());
  if (head.Get<uint32_t>() != kMagic || head.Get<uint8_t>() != kVersion) return std::nullopt;
  return Reader(bytes.data() + kGangAt).Get<uint64_t>();
}

std::optional<Datagram> Authenticator::Open(std::span<const uint8_t> bytes) const {
  if (!PeekGang(bytes)) return std::nullopt;
  std::array<uint8_t, kCodeBytes> code{};
  Code(bytes.data(), kCodedBytes, code.data());
  if (CRYPTO_memcmp(code.data(), bytes.data() + kCodedBytes, kCodeBytes) != 0) return std::nullopt;
  Reader in(bytes.data() + 5);
  const auto type = in.Get<uint8_t>();
  if (type < static_cast<uint8_t>(Type::kBeat) || type > static_cast<uint8_t>(Type::kSpent))
    return std::nullopt;
  Datagram datagram;
  datagram.type = static_cast<Type>(type);
  datagram.flags = in.Get<uint8_t>();
  const auto witnesses = in.Get<uint8_t>();
  if (witnesses > kMaxWitnesses) return std::nullopt;
  datagram.gang = in.Get<uint64_t>();
  datagram.term = in.Get<uint64_t>();
  datagram.sequence = in.Get<uint64_t>();
  datagram.from = in.Get<NodeIndex>();
  datagram.to = in.Get<NodeIndex>();
  datagram.coordinator = in.Get<NodeIndex>();
  datagram.sent = static_cast<int64_t>(in.Get<uint64_t>());
  datagram.echo = in.Get<uint64_t>();
  datagram.generation = in.Get<uint64_t>();
  for (uint8_t i = 0; i < witnesses; ++i) datagram.witnesses.Add(in.Get<NodeIndex>());
  return datagram;
}

}  // namespace muster::lease
