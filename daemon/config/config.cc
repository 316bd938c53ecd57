#include "daemon/config/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <vector>

#include "daemon/base/unique_fd.h"

namespace muster {
namespace {

constexpr size_t kMaxFile = 1 << 20;

enum class Kind { kText, kCount, kDuration, kSize };

struct Key {
  const char* name;
  Kind kind;
  std::string Config::*text;
  int64_t Config::*number;
  int64_t low;
  int64_t high;
  const char* about;
  const char* (*wrong)(const std::string&) =
      nullptr;  // of a text: what to give instead, null when it is good
};

const char* NotEmpty(const std::string& text) {
  return text.empty() ? "give a value" : nullptr;
}
const char* IsStore(const std::string& text) {
  const bool good = (text.starts_with("rados:") && text != "rados:") || text.starts_with("dir:/");
  return good ? nullptr : "give rados:POOL or dir:/PATH";
}
const char* IsPath(const std::string& text) {
  return text.starts_with("/") ? nullptr : "give an absolute path";
}
const char* IsLevel(const std::string& text) {
  const bool good = text == "debug" || text == "info" || text == "warning" || text == "error";
  return good ? nullptr : "give debug, info, warning or error";
}
const char* Anything(const std::string& /*text*/) {
  return nullptr;
}

Key Text(const char* name, std::string Config::*field, const char* about,
         const char* (*wrong)(const std::string&) = NotEmpty) {
  return {name, Kind::kText, field, nullptr, 0, 0, about, wrong};
}
Key Number(const char* name, Kind kind, int64_t Config::*field, int64_t low, int64_t high,
           const char* about) {
  return {name, kind, nullptr, field, low, high, about};
}

const std::vector<Key>& Keys() {
  static const std::vector<Key> keys = {
      Text("store", &Config::store,
           "Where gang records and checkpoints live: rados:POOL, or dir:/PATH (shared by all nodes).",
           IsStore),
      Text("ceph_conf", &Config::ceph_conf, "Ceph's configuration file, for a rados: store."),
      Text("ceph_user", &Config::ceph_user, "The Ceph user, without \"client.\"."),
      Number("store_timeout", Kind::kDuration, &Config::store_timeout_ms, 1'000, 600'000,
             "How long one operation of the store may take."),
      Text("socket", &Config::socket, "The local socket for supervisors and libmuster.", IsPath),
      Text("state_dir", &Config::state_dir,
           "What a restarted musterd must know of running gangs; on a tmpfs.", IsPath),
      Text("listen_address", &Config::listen_address,
           "Address on which other nodes' daemons reach this one."),
      Number("port", Kind::kCount, &Config::port, 1, 65'535, "TCP port for that, the same on all nodes."),
      Text("node_name", &Config::node_name,
           "This node's Slurm NodeName; empty: the host's name up to the first dot.", Anything),
      Text("service_user", &Config::service_user, "The user besides root whose daemons are trusted."),
      Number("master_ports_first", Kind::kCount, &Config::master_ports_first, 1'024, 65'535,
             "First port leased as MASTER_PORT; outside the kernel's ip_local_port_range."),
      Number("master_ports_last", Kind::kCount, &Config::master_ports_last, 1'024, 65'535, "Last such port."),
      Number("keep_checkpoints", Kind::kCount, &Config::keep_checkpoints, 1, 1'000'000,
             "The newest checkpoints that are kept of each gang."),
      Number("chunk_size", Kind::kSize, &Config::chunk_bytes, 64 << 10, 64 << 20,
             "Size of a checkpoint's objects in the store."),
      Number("max_shard_size", Kind::kSize, &Config::max_shard_bytes, 1 << 20, 1LL << 42,
             "The largest shard one member may save."),
      Number("reconnect", Kind::kDuration, &Config::reconnect_ms, 1'000, 3'600'000,
             "How long members run on without musterd, and a gang waits for a node's musterd."),
      Number("progress_after", Kind::kDuration, &Config::progress_after_ms, 100, 86'400'000,
             "A generation that has run so long counts as progress when the program reports none."),
      Number("lease", Kind::kDuration, &Config::lease_ms, 0, 600'000,
             "A supervisor that hears nothing from a connected musterd for so long kills its program; 0: "
             "never."),
      Text("log_level", &Config::log_level, "What is logged: debug, info, warning or error.", IsLevel),
  };
  return keys;
}

struct Unit {
  const char* suffix;
  int64_t factor;
};
constexpr Unit kDurations[] = {{"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}};
constexpr Unit kSizes[] = {{"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40}};

std::string Show(Kind kind, int64_t value) {
  std::string text = std::to_string(value);
  const auto with = [&](const auto& units) {
    for (const Unit& unit : units) {
      if (value != 0 && value % unit.factor == 0)
        text = fmt::format("{}{}", value / unit.factor, unit.suffix);
    }
  };
  if (kind == Kind::kDuration) {
    text += "ms";
    with(kDurations);
  }
  if (kind == Kind::kSize) with(kSizes);
  return text;
}

std::optional<int64_t> ParseNumber(Kind kind, const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 15) return std::nullopt;
  const int64_t value = std::stoll(text.substr(0, digits));
  const std::string suffix = text.substr(digits);
  int64_t factor = 0;
  if (kind == Kind::kCount || kind == Kind::kSize || value == 0) factor = suffix.empty() ? 1 : 0;
  const auto with = [&](const auto& units) {
    for (const Unit& unit : units) {
      if (suffix == unit.suffix) factor = unit.factor;
    }
  };
  if (kind == Kind::kDuration) with(kDurations);
  if (kind == Kind::kSize) with(kSizes);
  int64_t product = 0;
  if (factor == 0 || __builtin_mul_overflow(value, factor, &product)) return std::nullopt;
  return product;
}

const char* UnitHelp(Kind kind) {
  if (kind == Kind::kDuration) return " (a number with ms, s, m or h)";
  if (kind == Kind::kSize) return " (bytes, or a number with KiB, MiB, GiB or TiB)";
  return "";
}

Status Apply(const Key& key, const YAML::Node& node, const std::string& at, Config* config) {
  if (!node.IsScalar() && !node.IsNull()) {
    return Error{Errc::kInvalid, fmt::format("{}: '{}' takes one value, not a list or a map", at, key.name)};
  }
  const std::string text = node.IsNull() ? "" : node.Scalar();
  if (key.kind == Kind::kText) {
    if (const char* instead = key.wrong(text)) {
      return Error{Errc::kInvalid,
                   fmt::format("{}: '{}: {}' is not allowed: {}", at, key.name, text, instead)};
    }
    config->*key.text = text;
    return {};
  }
  const auto value = ParseNumber(key.kind, text);
  if (!value || *value < key.low || *value > key.high) {
    return Error{Errc::kInvalid,
                 fmt::format("{}: '{}: {}' is not allowed: give {} to {}{}", at, key.name, text,
                             Show(key.kind, key.low), Show(key.kind, key.high), UnitHelp(key.kind))};
  }
  config->*key.number = *value;
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

Result<Config> ParseConfig(const std::string& text, const std::string& name) {
  Config config;
  if (Status good = CheckText(text, name); !good) return good.error();
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return Error{Errc::kInvalid, fmt::format("{}:{}: {}", name, e.mark.line + 1, e.msg)};
  }
  if (root.IsNull()) return config;
  if (!root.IsMap())
    return Error{Errc::kInvalid, fmt::format("{}:1: expected lines of the form 'key: value'", name)};
  std::vector<std::string> seen;
  std::string ports_at;
  for (const auto& item : root) {
    const std::string at = fmt::format("{}:{}", name, item.first.Mark().line + 1);
    const std::string key_name = item.first.IsScalar() ? item.first.Scalar() : "?";
    const Key* found = nullptr;
    std::string known;
    for (const Key& key : Keys()) {
      if (key_name == key.name) found = &key;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", key.name);
    }
    if (found == nullptr) {
      return Error{Errc::kInvalid, fmt::format("{}: unknown key '{}'; the keys are {}", at, key_name, known)};
    }
    for (const std::string& other : seen) {
      if (other == key_name)
        return Error{Errc::kInvalid, fmt::format("{}: '{}' is given twice", at, key_name)};
    }
    seen.push_back(key_name);
    if (Status applied = Apply(*found, item.second, at, &config); !applied) return applied.error();
    if (key_name.starts_with("master_ports_")) ports_at = at;
  }
  if (config.master_ports_first > config.master_ports_last) {
    return Error{Errc::kInvalid, fmt::format("{}: master_ports_first, {}, is above master_ports_last, {}",
                                             ports_at, config.master_ports_first, config.master_ports_last)};
  }
  return config;
}

Result<Config> LoadConfig(const std::string& path) {
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
  return ParseConfig(text, path);
}

std::string DefaultConfigText() {
  const Config defaults;
  std::string text =
      "# Muster's configuration, the same on all nodes of a cluster. Every key is shown with its default.\n"
      "# Check a changed file with: musterd --check-config --config FILE\n";
  for (const Key& key : Keys()) {
    text += fmt::format("\n# {}", key.about);
    if (key.kind != Kind::kText) {
      text +=
          fmt::format(" {} to {}{}.", Show(key.kind, key.low), Show(key.kind, key.high), UnitHelp(key.kind));
    }
    const std::string value =
        key.kind == Kind::kText ? defaults.*key.text : Show(key.kind, defaults.*key.number);
    text += fmt::format("\n#{}: {}\n", key.name, value.empty() ? "\"\"" : value);
  }
  return text;
}

}  // namespace muster
