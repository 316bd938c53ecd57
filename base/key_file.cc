#include "base/key_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr size_t kMaxFile = 1 << 20;

struct Unit {
  const char* suffix;
  int64_t factor;
};
constexpr Unit kDurations[] = {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}};
constexpr Unit kSizes[] = {{"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40}};

std::optional<int64_t> ParseNumber(KeyKind kind, const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 15) return std::nullopt;
  const int64_t value = std::stoll(text.substr(0, digits));
  const std::string suffix = text.substr(digits);
  int64_t factor = 0;
  if (kind == KeyKind::kCount || kind == KeyKind::kSize || value == 0) factor = suffix.empty() ? 1 : 0;
  const auto with = [&](const auto& units) {
    for (const Unit& unit : units) {
      if (suffix == unit.suffix) factor = unit.factor;
    }
  };
  if (kind == KeyKind::kDuration) with(kDurations);
  if (kind == KeyKind::kSize) with(kSizes);
  int64_t product = 0;
  if (factor == 0 || __builtin_mul_overflow(value, factor, &product)) return std::nullopt;
  return product;
}

const char* UnitHelp(KeyKind kind) {
  if (kind == KeyKind::kDuration) return " (a number with ms, s, m or h)";
  if (kind == KeyKind::kSize) return " (bytes, or a number with KiB, MiB, GiB or TiB)";
  return "";
}

Status Apply(const Key& key, const YAML::Node& node, const std::string& at) {
  if (!node.IsScalar() && !node.IsNull()) {
    return Error{Errc::kInvalid, fmt::format("{}: '{}' takes one value, not a list or a map", at, key.name)};
  }
  const std::string text = node.IsNull() ? "" : node.Scalar();
  if (key.kind == KeyKind::kText) {
    if (const char* instead = key.wrong(text)) {
      return Error{Errc::kInvalid,
                   fmt::format("{}: '{}: {}' is not allowed: {}", at, key.name, text, instead)};
    }
    *key.text = text;
    return {};
  }
  const auto value = ParseNumber(key.kind, text);
  if (!value || *value < key.low || *value > key.high) {
    return Error{Errc::kInvalid, fmt::format("{}: '{}: {}' is not allowed: give {} to {}{}", at, key.name,
                                             text, ShowNumber(key.kind, key.low),
                                             ShowNumber(key.kind, key.high), UnitHelp(key.kind))};
  }
  *key.number = *value;
  return {};
}

// What the YAML library passes over in silence or does not end with: control characters, a second document.
Status CheckText(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  bool begun = false;
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    for (const char c : line) {
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
        return Error{Errc::kInvalid, fmt::format("{}:{}: control character", name, number)};
      }
    }
    const bool marker = line.starts_with("---");
    if (marker && begun) {
      return Error{Errc::kInvalid, fmt::format("{}:{}: a second document; the file holds one", name, number)};
    }
    const size_t first = line.find_first_not_of(" \t\r");
    begun |= marker || (first != std::string::npos && line[first] != '#' && line[first] != '%');
  }
  return {};
}

}  // namespace

const char* NotEmpty(const std::string& text) {
  return text.empty() ? "give a value" : nullptr;
}
const char* Anything(const std::string& /*text*/) {
  return nullptr;
}

const char* IsPath(const std::string& text) {
  return text.starts_with("/") ? nullptr : "give an absolute path";
}
const char* IsPathOrNothing(const std::string& text) {
  return text.empty() ? nullptr : IsPath(text);
}
const char* IsYesOrNo(const std::string& text) {
  return text == "yes" || text == "no" ? nullptr : "give yes or no";
}

bool EachPart(const std::string& text, bool (*good)(const std::string&)) {
  std::string part;
  for (const char c : text + ",") {
    if (c != ',' && c != ' ') {
      part += c;
    } else if (!part.empty()) {
      if (!good(part)) return false;
      part.clear();
    }
  }
  return true;
}

Key TextKey(const char* name, std::string* field, const char* about,
            const char* (*wrong)(const std::string&)) {
  return {name, KeyKind::kText, field, nullptr, 0, 0, about, wrong};
}

Key NumberKey(const char* name, KeyKind kind, int64_t* field, int64_t low, int64_t high, const char* about) {
  return {name, kind, nullptr, field, low, high, about};
}

std::string ShowNumber(KeyKind kind, int64_t value) {
  std::string text = std::to_string(value);
  const auto with = [&](const auto& units) {
    for (const Unit& unit : units) {
      if (value != 0 && value % unit.factor == 0)
        text = fmt::format("{}{}", value / unit.factor, unit.suffix);
    }
  };
  if (kind == KeyKind::kDuration) {
    text += "ms";
    with(kDurations);
  }
  if (kind == KeyKind::kSize) with(kSizes);
  return text;
}

Result<std::map<std::string, int>> ParseKeys(const std::string& text, const std::string& name,
                                             const std::vector<Key>& keys) {
  std::map<std::string, int> given;
  if (Status good = CheckText(text, name); !good) return good.error();
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return Error{Errc::kInvalid, fmt::format("{}:{}: {}", name, e.mark.line + 1, e.msg)};
  }
  if (root.IsNull()) return given;
  if (!root.IsMap())
    return Error{Errc::kInvalid, fmt::format("{}:1: expected lines of the form 'key: value'", name)};
  for (const auto& item : root) {
    const int line = item.first.Mark().line + 1;
    const std::string at = fmt::format("{}:{}", name, line);
    const std::string key_name = item.first.IsScalar() ? item.first.Scalar() : "?";
    const auto found = std::ranges::find_if(keys, [&](const Key& key) { return key_name == key.name; });
    if (found == keys.end()) {
      std::string known;
      for (const Key& key : keys) known += fmt::format("{}{}", known.empty() ? "" : ", ", key.name);
      return Error{Errc::kInvalid, fmt::format("{}: unknown key '{}'; the keys are {}", at, key_name, known)};
    }
    if (!given.emplace(key_name, line).second)
      return Error{Errc::kInvalid, fmt::format("{}: '{}' is given twice", at, key_name)};
    if (Status applied = Apply(*found, item.second, at); !applied) return applied.error();
  }
  return given;
}

std::string KeysText(const std::vector<Key>& keys) {
  std::string text;
  for (const Key& key : keys) {
    text += fmt::format("\n# {}", key.about);
    if (key.kind != KeyKind::kText) {
      text += fmt::format(" {} to {}{}.", ShowNumber(key.kind, key.low), ShowNumber(key.kind, key.high),
                          UnitHelp(key.kind));
    }
    const std::string value = key.kind == KeyKind::kText ? *key.text : ShowNumber(key.kind, *key.number);
    text += fmt::format("\n#{}: {}\n", key.name, value.empty() ? "\"\"" : value);
  }
  return text;
}

bool IsDefaultAndAbsent(const std::string& path, const std::string& default_path) {
  return path == default_path && ::access(path.c_str(), F_OK) != 0 && errno == ENOENT;
}

Result<std::string> ReadKeyFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> block{};
  ssize_t size = file.valid() ? 1 : -1;
  while (size > 0) {
    size = ::read(file.get(), block.data(), block.size());
    if (size > 0) text.append(block.data(), static_cast<size_t>(size));
    if (text.size() > kMaxFile) return Error{Errc::kInvalid, fmt::format("{}: is above 1 MiB", path)};
  }
  if (size < 0) {
    return Error{Errc::kNotFound, fmt::format("{}: cannot be read: {}", path, std::strerror(errno))};
  }
  return text;
}

}  // namespace muster
