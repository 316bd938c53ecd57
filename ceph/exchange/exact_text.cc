#include "ceph/exchange/exact_text.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr char kHex[] = "0123456789abcdef";

int Nibble(char c) {
  const auto at = std::string_view(kHex).find(c);
  return c == '\0' || at == std::string_view::npos ? -1 : static_cast<int>(at);
}

}  // namespace

std::string PrintableText(std::string_view bytes) {
  return json::parse(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
}

json ExactText(std::string_view bytes) {
  if (PrintableText(bytes) == bytes) return bytes;
  std::string hex;
  for (const char c : bytes) {
    hex += kHex[static_cast<unsigned char>(c) >> 4];
    hex += kHex[static_cast<unsigned char>(c) & 15];
  }
  return {{"hex", hex}};
}

std::optional<std::string> ReadExactText(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || value.size() != 1 || !value.contains("hex") || !value["hex"].is_string())
    return std::nullopt;
  const auto& hex = value["hex"].get_ref<const std::string&>();
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = Nibble(hex[i]);
    const int low = Nibble(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

}  // namespace muster
