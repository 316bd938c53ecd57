#include "daemon/partner/topology.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <strings.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <utility>
#include <vector>

#include "base/hostlist.h"

namespace muster {
namespace {

// slurmd.service's own default, and where a slurmd without a file keeps what slurmctld has sent (slurm.conf(5), "configless").
constexpr std::array kPlaces = {"/etc/slurm/topology.yaml", "/etc/slurm/topology.conf",
                                "/run/slurm/conf/topology.yaml", "/run/slurm/conf/topology.conf"};
constexpr size_t kMaxText = 1u << 20;

bool IsKey(std::string_view word, std::string_view key) {
  return word.size() == key.size() && ::strncasecmp(word.data(), key.data(), key.size()) == 0;
}

// The next line without its comment, its end and what continues it; `number` is that of its last line.
bool NextLine(std::string_view* text, std::string* line, size_t* number) {
  line->clear();
  bool continued = false;
  while (!text->empty()) {
    const size_t end = std::min(text->find('\n'), text->size());
    std::string_view part = text->substr(0, end);
    text->remove_prefix(std::min(end + 1, text->size()));
    ++*number;
    part = part.substr(0, part.find('#'));
    while (!part.empty() && std::isspace(static_cast<unsigned char>(part.back())) != 0) part.remove_suffix(1);
    continued = part.ends_with('\\');
    if (continued) part.remove_suffix(1);
    *line += part;
    if (!continued) return true;
  }
  return continued;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at <= line.size(); ++at) {
    if (at < line.size() && std::isspace(static_cast<unsigned char>(line[at])) == 0) continue;
    if (at > begin) words.push_back(line.substr(begin, at - begin));
    begin = at + 1;
  }
  return words;
}

Error TooLarge() {
  return {Errc::kInvalid, "it is larger than 1 MiB"};
}

// What of a topology.yaml's entry has nodes, and where its name is.
struct Kind {
  const char* kind;
  const char* list;
  const char* name;
};
constexpr std::array kKinds = {Kind{"tree", "switches", "switch"}, Kind{"block", "blocks", "block"}};

// Throws YAML::Exception, as for a key that is not there.
Status TakeNodes(const YAML::Node& topology, std::unordered_map<std::string, std::string>* domains) {
  const auto name = topology["topology"].as<std::string>();
  for (const Kind& kind : kKinds) {
    if (!topology[kind.kind]) continue;
    for (const YAML::Node& item : topology[kind.kind][kind.list]) {
      const std::string domain = name + "/" + item[kind.name].as<std::string>();
      if (!item["nodes"]) continue;
      const auto nodes = ExpandHostlist(item["nodes"].as<std::string>());
      if (!nodes) {
        return Error{Errc::kInvalid,
                     fmt::format("line {}: {}", item["nodes"].Mark().line + 1, nodes.error().message)};
      }
      for (const std::string& node : *nodes) domains->try_emplace(node, domain);
    }
  }
  return {};
}

// Nothing when there is no such file.
std::string ReadText(const std::string& path) {
  std::string text;
  std::ifstream file(path, std::ios::binary);
  for (std::array<char, 65536> part{}; file && text.size() <= kMaxText;) {
    file.read(part.data(), part.size());
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  }
  return file.bad() ? "" : text;
}

}  // namespace

Result<Topology> Topology::Parse(std::string_view text) {
  if (text.size() > kMaxText) return TooLarge();
  Topology topology;
  std::string line;
  for (size_t number = 0; NextLine(&text, &line, &number);) {
    std::string_view domain;
    std::string_view nodes;
    for (const std::string_view word : Words(line)) {
      const size_t equals = std::min(word.find('='), word.size());
      const std::string_view key = word.substr(0, equals);
      const std::string_view value = word.substr(std::min(equals + 1, word.size()));
      if (IsKey(key, "SwitchName") || IsKey(key, "BlockName")) domain = value;
      if (IsKey(key, "Nodes")) nodes = value;
    }
    if (nodes.empty()) continue;
    if (domain.empty())
      return Error{Errc::kInvalid, fmt::format("line {}: nodes without a switch or a block", number)};
    const auto names = ExpandHostlist(nodes);
    if (!names) return Error{Errc::kInvalid, fmt::format("line {}: {}", number, names.error().message)};
    for (const std::string& name : *names) topology.domains_.try_emplace(name, domain);
  }
  return topology;
}

Result<Topology> Topology::ParseYaml(std::string_view text) {
  if (text.size() > kMaxText) return TooLarge();
  Topology topology;
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (!root.IsSequence()) return Error{Errc::kInvalid, "it is no list of topologies"};
    for (const bool by_default : {true, false}) {
      for (const YAML::Node& entry : root) {
        if (entry["cluster_default"].as<bool>(false) != by_default) continue;
        if (Status taken = TakeNodes(entry, &topology.domains_); !taken) return taken.error();
      }
    }
  } catch (const YAML::Exception& e) {
    return Error{Errc::kInvalid, fmt::format("line {}: {}", e.mark.line + 1, e.msg)};
  }
  return topology;
}

std::string Topology::DomainOf(const std::string& node) const {
  const auto found = domains_.find(node);
  return found == domains_.end() ? "" : found->second;
}

TopologyFile::TopologyFile(std::string path) : path_(std::move(path)) {}

void TopologyFile::Refresh() {
  std::string path = path_;
  std::string text = path_.empty() ? "" : ReadText(path_);
  for (const char* place : kPlaces) {
    if (path_.empty() && text.empty()) text = ReadText(path = place);
  }
  {
    const std::lock_guard lock(mutex_);
    if (text == text_) return;
  }
  auto topology = path.ends_with(".yaml") ? Topology::ParseYaml(text) : Topology::Parse(text);
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
  if (topology) {
    topology_ = std::make_shared<const Topology>(*std::move(topology));
  } else {
    spdlog::warn("{}: {}; it is not used", path, topology.error().message);
  }
}

std::shared_ptr<const Topology> TopologyFile::Now() const {
  const std::lock_guard lock(mutex_);
  return topology_;
}

}  // namespace muster
