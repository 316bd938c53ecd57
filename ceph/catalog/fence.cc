#include "ceph/catalog/fence.h"

#include <charconv>
#include <cstdio>

namespace muster {
namespace {

constexpr size_t kDigits = 16;

bool DecodePart(std::string_view text, uint64_t* out) {
  for (const char c : text) {
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out, 16);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string Fence::Encode() const {
  char text[2 * kDigits + 2];
  std::snprintf(text, sizeof(text), "%016llx.%016llx", static_cast<unsigned long long>(term),
                static_cast<unsigned long long>(generation));
  return text;
}

std::optional<Fence> Fence::Decode(std::string_view text) {
  Fence fence;
  if (text.size() != 2 * kDigits + 1 || text[kDigits] != '.') return std::nullopt;
  if (!DecodePart(text.substr(0, kDigits), &fence.term)) return std::nullopt;
  if (!DecodePart(text.substr(kDigits + 1), &fence.generation)) return std::nullopt;
  return fence;
}

}  // namespace muster
