#include "net/rendezvous/rendezvous_message.h"

#include <array>
#include <limits>

namespace muster::rendezvous {
namespace {

constexpr std::array<char, 4> kMagic = {'M', 'R', 'D', 'V'};
constexpr std::uint8_t kVersion = 1;

void Append(std::vector<std::byte>& out, std::uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) {
    out.push_back(static_cast<std::byte>((value >> shift) & 0xff));
  }
}

void Append(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::uint32_t Read(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::uint32_t>(byte);
  return value;
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Error Invalid(std::string why) {
  return Error{Errc::kInvalid, "rendezvous message: " + std::move(why)};
}

// The rules on what each type carries, the same for both directions.
Status Check(std::uint32_t type, std::size_t key_bytes, std::size_t value_bytes, std::uint64_t patience_ms) {
  if (type < 1 || type > 6) return Invalid("unknown type " + std::to_string(type));
  const auto kind = static_cast<MessageType>(type);
  const bool request = kind == MessageType::kSet || kind == MessageType::kGet || kind == MessageType::kWill;
  if (request && key_bytes == 0) return Invalid("a request without a key");
  if (!request && key_bytes != 0) return Invalid("a reply with a key");
  if (key_bytes > kMaxKeyBytes) {
    return Invalid("key of " + std::to_string(key_bytes) + " bytes; the limit is " +
                   std::to_string(kMaxKeyBytes));
  }
  if (value_bytes > kMaxValueBytes) {
    return Invalid("value of " + std::to_string(value_bytes) + " bytes; the limit is " +
                   std::to_string(kMaxValueBytes));
  }
  if ((kind == MessageType::kGet || kind == MessageType::kStored) && value_bytes != 0) {
    return Invalid("a value where none belongs");
  }
  if (kind != MessageType::kGet && patience_ms != 0) return Invalid("patience where none belongs");
  if (patience_ms > std::numeric_limits<std::uint32_t>::max()) return Invalid("patience out of range");
  return {};
}

}  // namespace

Result<std::vector<std::byte>> Encode(const Message& message) {
  const auto type = static_cast<std::uint8_t>(message.type);
  const auto patience = static_cast<std::uint64_t>(message.patience.count());
  if (Status valid = Check(type, message.key.size(), message.value.size(), patience); !valid)
    return valid.error();
  std::vector<std::byte> out;
  out.reserve(kHeaderBytes + message.key.size() + message.value.size());
  Append(out, std::string_view(kMagic.data(), kMagic.size()));
  Append(out, kVersion, 1);
  Append(out, type, 1);
  Append(out, message.key.size(), 2);
  Append(out, message.value.size(), 4);
  Append(out, patience, 4);
  Append(out, message.key);
  Append(out, message.value);
  return out;
}

Result<std::optional<Decoded>> Decode(std::span<const std::byte> buffer) {
  if (buffer.size() < kHeaderBytes) return std::optional<Decoded>();
  if (Text(buffer.first(4)) != std::string_view(kMagic.data(), kMagic.size()))
    return Invalid("not one (bad magic)");
  const std::uint32_t version = Read(buffer.subspan(4, 1));
  if (version != kVersion) {
    return Invalid("version " + std::to_string(version) + "; this side speaks version " +
                   std::to_string(kVersion));
  }
  const std::uint32_t type = Read(buffer.subspan(5, 1));
  const std::size_t key_bytes = Read(buffer.subspan(6, 2));
  const std::size_t value_bytes = Read(buffer.subspan(8, 4));
  const std::uint32_t patience = Read(buffer.subspan(12, 4));
  if (Status valid = Check(type, key_bytes, value_bytes, patience); !valid) return valid.error();
  const std::size_t total = kHeaderBytes + key_bytes + value_bytes;
  if (buffer.size() < total) return std::optional<Decoded>();
  Decoded decoded;
  decoded.message.type = static_cast<MessageType>(type);
  decoded.message.key = Text(buffer.subspan(kHeaderBytes, key_bytes));
  decoded.message.value = Text(buffer.subspan(kHeaderBytes + key_bytes, value_bytes));
  decoded.message.patience = std::chrono::milliseconds(patience);
  decoded.bytes = total;
  return std::optional<Decoded>(std::move(decoded));
}

}  // namespace muster::rendezvous
