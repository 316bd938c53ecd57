#include "daemon/config/config.h"

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
#include <vector>

#include "base/unique_fd.h"
#include "daemon/gang/cause.h"

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
const char* IsPathOrNothing(const std::string& text) {
  return text.empty() ? nullptr : IsPath(text);
}
const char* IsLevel(const std::string& text) {
  const bool good = text == "debug" || text == "info" || text == "warning" || text == "error";
  return good ? nullptr : "give debug, info, warning or error";
}
// Names or paths between commas and spaces.
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
const char* AreNics(const std::string& text) {
  const bool good = EachPart(text, [](const std::string& name) {
    return name.size() <= 63 && name.front() != '.' && name.find('/') == std::string::npos;
  });
  return good ? nullptr : "give names between commas, as in mlx5_0, eth0";
}
const char* ArePaths(const std::string& text) {
  const bool good = EachPart(text, [](const std::string& path) { return path.starts_with("/"); });
  return good ? nullptr : "give absolute paths between commas";
}
const char* AreExitCodes(const std::string& text) {
  return gang::ParseExitCodes(text)
             ? nullptr
             : "give CODE=CLASS between commas, each CODE from 1 to 255 and once, CLASS user, "
               "infrastructure, preemption or time_limit";
}
const char* IsYesOrNo(const std::string& text) {
  return text == "yes" || text == "no" ? nullptr : "give yes or no";
}
const char* IsNoOrAuto(const std::string& text) {
  return text == "no" || text == "auto" ? nullptr : "give no or auto";
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
      Number("port", Kind::kCount, &Config::port, 1, 65'535,
             "Port between daemons, TCP and UDP; the same on all nodes. Below 1024 no user's program can "
             "take it while musterd restarts."),
      Text("node_name", &Config::node_name,
           "This node's Slurm NodeName; empty: the host's name up to the first dot.", Anything),
      Text("service_user", &Config::service_user, "The user besides root whose daemons are trusted."),
      Number("master_ports_first", Kind::kCount, &Config::master_ports_first, 1'024, 65'535,
             "First port leased as MASTER_PORT; outside the kernel's ip_local_port_range."),
      Number("master_ports_last", Kind::kCount, &Config::master_ports_last, 1'024, 65'535, "Last such port."),
      Number("keep_checkpoints", Kind::kCount, &Config::keep_checkpoints, 1, 1'000'000,
             "The newest good checkpoints that are kept of each gang."),
      Number("keep_every", Kind::kCount, &Config::keep_every, 0, 1'000'000'000,
             "Good checkpoints whose step is a multiple of this are kept too, for ever; 0: none."),
      Number(
          "user_storage_limit", Kind::kSize, &Config::user_storage_limit, 0, 1LL << 60,
          "What the checkpoints of one user may take of the store; a save that could go above it fails. "
          "The one that is being saved, and the one that a generation has started from, count beside those "
          "that are kept. 0: no limit."),
      Text("incremental", &Config::incremental,
           "Whether a checkpoint shares the chunks that have not changed with the one before; not with "
           "keep_checkpoints of 1.",
           IsYesOrNo),
      Text("compression", &Config::compression,
           "Whether checkpoints are compressed: no, or auto, which does it where samples say that it pays. "
           "Floats become a sixth to a third less, for one to two seconds of a core for each GB.",
           IsNoOrAuto),
      Number("recovery_memory", Kind::kCount, &Config::recovery_memory, 0, 90,
             "How much of the node's memory, in percent, shards may keep that a program has saved before it "
             "died, so "
             "that it is restored from there; 0: always from the store."),
      Number(
          "partner_memory", Kind::kCount, &Config::partner_memory, 0, 90,
          "How much of the node's memory, in percent, copies of other nodes' newest shards may take, so that "
          "a node that takes a lost one's place is restored from there. They take as much as the "
          "node's own shards; a tenth of the memory stays free all the same. 0: no copies are kept, nor "
          "made; "
          "the same on all nodes."),
      Number(
          "partner_group", Kind::kCount, &Config::partner_group, 0, 8,
          "From 3 on, groups of so many nodes keep parity of each other's shards in place of whole copies: "
          "3 take half the memory, 4 a third, and so on, and one of each group can be lost. Groups that do "
          "not come out even have up to twice as many nodes. 0: whole copies; the same on all nodes."),
      Number("partner_port", Kind::kCount, &Config::partner_port, 1, 65'535,
             "TCP port for these copies, the same on all nodes."),
      Text("slurm_topology", &Config::slurm_topology,
           "A topology.conf or topology.yaml of Slurm's, the same on all nodes: a partner is below another "
           "leaf switch, or of "
           "another block. Empty: Slurm's own, if there is one.",
           IsPathOrNothing),
      Number("collect_pause", Kind::kDuration, &Config::collect_pause_ms, 0, 86'400'000,
             "How long at least between two searches, which list the pool, for what a gang's torn saves have "
             "left."),
      Number("chunk_size", Kind::kSize, &Config::chunk_bytes, 64 << 10, 64 << 20,
             "Size of a checkpoint's objects in the store."),
      Number(
          "max_shard_size", Kind::kSize, &Config::max_shard_bytes, 1 << 20, 1LL << 42,
          "The largest shard one member may save. It has at most 400000 chunks besides: with a chunk_size of "
          "64KiB 24.4 GiB, of 4MiB 1.5 TiB."),
      Number("reconnect", Kind::kDuration, &Config::reconnect_ms, 1'000, 3'600'000,
             "How long members run on without musterd, and a gang waits for a node's musterd."),
      Number("progress_after", Kind::kDuration, &Config::progress_after_ms, 100, 86'400'000,
             "A generation that has run so long counts as progress when the program reports none."),
      Number("beat", Kind::kDuration, &Config::beat_ms, 10, 60'000,
             "How often a node shows its life to a gang's coordinator; the same on all nodes, as lease and "
             "silence."),
      Number("lease", Kind::kDuration, &Config::lease_ms, 50, 600'000,
             "A node kills its members so long after the last beat that was answered; a supervisor kills its "
             "program when it hears nothing from a connected musterd for so long. More than two beats."),
      Number("silence", Kind::kDuration, &Config::silence_ms, 100, 600'000,
             "A node that was not heard for so long is replaced. At least lease and two beats."),
      Number("hang_report", Kind::kDuration, &Config::hang_report_ms, 100, 60'000,
             "How long the restart of a gang that hangs waits for its members' stacks at most; the same on "
             "all nodes."),
      Number("loop_stall", Kind::kDuration, &Config::loop_stall_ms, 1'000, 600'000,
             "A musterd that does not act for so long stops beating: its node counts as lost."),
      Text("metrics_file", &Config::metrics_file,
           "Figures for Prometheus, in the directory of node exporter's textfile collector; where that is "
           "missing nothing is written. Empty: none.",
           IsPathOrNothing),
      Text("slurm_helper", &Config::slurm_helper,
           "The program muster-slurm, which speaks to slurmctld; empty: where it is installed.",
           IsPathOrNothing),
      Number("slurm_timeout", Kind::kDuration, &Config::slurm_timeout_ms, 100, 600'000,
             "How long one question to Slurm may take."),
      Number("slurm_requeue_timeout", Kind::kDuration, &Config::slurm_requeue_timeout_ms, 1'000, 86'400'000,
             "How long a requeued job may take until Slurm has cleaned up its last run, epilogs included."),
      Number("slurm_node_downs_per_minute", Kind::kCount, &Config::slurm_node_downs_per_minute, 0, 1'000,
             "How many lost nodes this daemon sets DOWN in Slurm; the others wait for SlurmdTimeout."),
      Number("time_limit_margin", Kind::kDuration, &Config::time_limit_margin_ms, 0, 86'400'000,
             "How long before its time limit a job is asked for a checkpoint and requeued; 0: never."),
      Text("enabled", &Config::enabled,
           "No: --gang is ignored, and jobs run as plain Slurm jobs. The same on all nodes.", IsYesOrNo),
      Text("exit_codes", &Config::exit_codes,
           "What programs' exit codes mean here, as in \"75=infrastructure, 143=preemption\": user, "
           "infrastructure, preemption or time_limit; 128 + N is a death by signal N. The others: the "
           "program's own fault.",
           AreExitCodes),
      Number("health_timeout", Kind::kDuration, &Config::health_timeout_ms, 0, 600'000,
             "How long a check of the node's health may take; what hangs longer makes the node sick. 0: no "
             "checks."),
      Text("health_nics", &Config::health_nics,
           "RDMA devices or network interfaces that must be up for a node to be healthy, as in \"mlx5_0, "
           "eth0\".",
           AreNics),
      Text("health_disks", &Config::health_disks,
           "Directories whose file systems must be writable, as in \"/tmp, /scratch\"; one without room is a "
           "warning.",
           ArePaths),
      Number("health_memory_min", Kind::kSize, &Config::health_memory_min, 0, 1LL << 42,
             "A node with less memory available is sick."),
      Number("health_disk_free", Kind::kCount, &Config::health_disk_free, 0, 50,
             "A file system with less free, in percent of bytes and of inodes, has no room."),
      Number("memlock_limit", Kind::kSize, &Config::memlock_limit, 0, 1LL << 60,
             "How much memory slurmd, and with it jobs, and musterd must be allowed to lock: `muster doctor` "
             "names "
             "a lower limit. 0: all of it, as RDMA needs; in containers, which cannot raise theirs, what "
             "they have."),
      Text("nvml_library", &Config::nvml_library,
           "NVIDIA's management library, for the GPUs' health; not there or empty: they are not checked.",
           Anything),
      Text("kernel_log", &Config::kernel_log,
           "Where the kernel's log is read, to join GPU, link, memory and disk errors with faults; empty: it "
           "is not.",
           IsPathOrNothing),
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
  std::string limits_at;
  std::string group_at;
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
    if (key_name == "partner_group") group_at = at;
    if (key_name == "beat" || key_name == "lease" || key_name == "silence") limits_at = at;
  }
  if (2 * config.beat_ms >= config.lease_ms || config.lease_ms + 2 * config.beat_ms > config.silence_ms) {
    return Error{
        Errc::kInvalid,
        fmt::format("{}: beat {}, lease {} and silence {} do not go together: lease must be more than two "
                    "beats, silence at least lease and two beats",
                    limits_at, Show(Kind::kDuration, config.beat_ms), Show(Kind::kDuration, config.lease_ms),
                    Show(Kind::kDuration, config.silence_ms))};
  }
  if (config.partner_group == 1 || config.partner_group == 2) {
    return Error{Errc::kInvalid,
                 fmt::format("{}: partner_group {} makes no groups: give 0 for whole copies, or from 3 on",
                             group_at, config.partner_group)};
  }
  if (config.master_ports_first > config.master_ports_last) {
    return Error{Errc::kInvalid, fmt::format("{}: master_ports_first, {}, is above master_ports_last, {}",
                                             ports_at, config.master_ports_first, config.master_ports_last)};
  }
  return config;
}

uint64_t LargestShard(const Config& config) {
  return static_cast<uint64_t>(std::min(config.max_shard_bytes, config.chunk_bytes * kMaxShardChunks));
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
