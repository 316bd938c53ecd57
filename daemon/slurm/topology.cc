#include "daemon/slurm/topology.h"

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

// A switch or a block, and what it has directly below it.
struct Domain {
  std::string name;
  std::vector<std::string> nodes;
  std::vector<std::string> switches;
};

// What of a topology.yaml's entry has nodes, and where its name is.
struct Kind {
  const char* kind;
  const char* list;
  const char* name;
};
constexpr std::array kKinds = {Kind{"tree", "switches", "switch"}, Kind{"block", "blocks", "block"}};

// The names that stand under a key, if it is there.
Result<std::vector<std::string>> ReadNames(const YAML::Node& names) {
  if (!names) return std::vector<std::string>();
  auto list = ExpandHostlist(names.as<std::string>());
  if (!list)
    return Error{Errc::kInvalid, fmt::format("line {}: {}", names.Mark().line + 1, list.error().message)};
  return list;
}

// Throws YAML::Exception, as for a key that is not there.
Result<std::vector<Domain>> ReadDomains(const YAML::Node& topology) {
  std::vector<Domain> domains;
  const auto prefix = topology["topology"].as<std::string>() + "/";
  for (const Kind& kind : kKinds) {
    if (!topology[kind.kind]) continue;
    for (const YAML::Node& item : topology[kind.kind][kind.list]) {
      Domain& domain = domains.emplace_back();
      domain.name = prefix + item[kind.name].as<std::string>();
      auto nodes = ReadNames(item["nodes"]);
      if (!nodes) return nodes.error();
      domain.nodes = *std::move(nodes);
      const auto switches = ReadNames(item["children"]);
      if (!switches) return switches.error();
      for (const std::string& name : *switches) domain.switches.push_back(prefix + name);
    }
  }
  return domains;
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
    std::string_view below;
    std::string_view switches;
    for (const std::string_view word : Words(line)) {
      const size_t equals = std::min(word.find('='), word.size());
      const std::string_view key = word.substr(0, equals);
      const std::string_view value = word.substr(std::min(equals + 1, word.size()));
      if (IsKey(key, "SwitchName") || IsKey(key, "BlockName")) domain = value;
      if (IsKey(key, "Nodes")) below = value;
      if (IsKey(key, "Switches")) switches = value;
    }
    if (below.empty() && switches.empty()) continue;
    if (domain.empty())
      return Error{Errc::kInvalid, fmt::format("line {}: nodes without a switch or a block", number)};
    const auto names = [](std::string_view list) {
      return list.empty() ? Result<std::vector<std::string>>(std::vector<std::string>())
                          : ExpandHostlist(list);
    };
    const auto nodes = names(below);
    const auto children = names(switches);
    for (const auto* list : {&nodes, &children}) {
      if (!*list) return Error{Errc::kInvalid, fmt::format("line {}: {}", number, list->error().message)};
    }
    topology.Add(std::string(domain), *nodes, *children);
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
        const auto domains = ReadDomains(entry);
        if (!domains) return domains.error();
        for (const Domain& domain : *domains) topology.Add(domain.name, domain.nodes, domain.switches);
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

std::vector<std::string> Topology::SwitchesOf(const std::string& node) const {
  std::vector<std::string> switches;
  auto above = domains_.find(node);
  for (auto end = domains_.end(); above != end && switches.size() < kMaxSwitches; end = above_.end()) {
    switches.push_back(above->second);
    above = above_.find(switches.back());
  }
  std::reverse(switches.begin(), switches.end());
  return switches;
}

void Topology::Add(const std::string& name, const std::vector<std::string>& nodes,
                   const std::vector<std::string>& switches) {
  for (const std::string& node : nodes) domains_.try_emplace(node, name);
  for (const std::string& child : switches) above_.try_emplace(child, name);
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
