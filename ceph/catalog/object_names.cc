#include "ceph/catalog/object_names.h"

#include <charconv>

namespace muster {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr size_t kWriteDigits = 8;

// A number as std::to_string writes it (no sign, no leading zeros), up to `end`, which is passed over.
bool TakeNumber(std::string_view* text, char end, uint64_t* out) {
  const size_t size = text->find(end);
  if (size == std::string_view::npos || size == 0 || (size > 1 && text->front() == '0')) return false;
  const auto [at, error] = std::from_chars(text->data(), text->data() + size, *out);
  if (error != std::errc() || at != text->data() + size) return false;
  text->remove_prefix(size + 1);
  return true;
}

}  // namespace

std::string DataPrefix(std::string_view key) {
  return "data/" + std::string(key) + "/";
}

std::string CheckpointPrefix(std::string_view key, uint64_t step, const Fence& fence) {
  return DataPrefix(key) + std::to_string(step) + "." + std::to_string(fence.term) + "." +
         std::to_string(fence.generation) + "/";
}

std::string ShardPrefix(std::string_view key, uint64_t step, const Fence& fence, uint32_t rank,
                        std::optional<uint32_t> write) {
  std::string prefix = CheckpointPrefix(key, step, fence) + std::to_string(rank);
  if (write) {
    prefix += '-';
    for (int shift = 28; shift >= 0; shift -= 4) prefix += kHex[*write >> shift & 15];
  }
  return prefix;
}

std::string ChunkName(std::string_view shard_prefix, uint64_t chunk) {
  return std::string(shard_prefix) + "." + std::to_string(chunk);
}

std::string ManifestName(std::string_view key, uint64_t step, const Fence& fence) {
  return CheckpointPrefix(key, step, fence) + "manifest";
}

std::optional<CheckpointDirectory> ParseObjectName(std::string_view key, std::string_view name) {
  const std::string prefix = DataPrefix(key);
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  CheckpointDirectory out;
  if (!TakeNumber(&name, '.', &out.step) || !TakeNumber(&name, '.', &out.fence.term) ||
      !TakeNumber(&name, '/', &out.fence.generation)) {
    return std::nullopt;
  }
  return out;
}

std::optional<CheckpointDirectory> ParseShardPrefix(std::string_view key, uint32_t rank,
                                                    std::string_view prefix) {
  auto directory = ParseObjectName(key, prefix);
  if (!directory) return std::nullopt;
  const std::string plain = ShardPrefix(key, directory->step, directory->fence, rank);
  if (!prefix.starts_with(plain)) return std::nullopt;
  prefix.remove_prefix(plain.size());
  const bool numbered = prefix.size() == 1 + kWriteDigits && prefix[0] == '-' &&
                        prefix.find_first_not_of(kHex, 1) == std::string_view::npos;
  return prefix.empty() || numbered ? directory : std::nullopt;
}

bool HasWrite(std::string_view prefix) {
  const size_t slash = prefix.rfind('/');
  return slash != std::string_view::npos && prefix.find('-', slash) != std::string_view::npos;
}

std::string_view ObjectNamedIn(std::string_view text, std::string_view key) {
  const std::string prefix = DataPrefix(key);
  for (size_t at = text.find(prefix); at != std::string_view::npos; at = text.find(prefix, at + 1)) {
    const std::string_view name = text.substr(at, text.find_first_of(" :", at) - at);
    if (ParseObjectName(key, name)) return name;
  }
  return {};
}

}  // namespace muster
