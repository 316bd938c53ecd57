#include "net/preflight/link_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace muster::preflight {
namespace {

using nlohmann::json;
using Scope = Suspect::Scope;

const char* Choose(Direction direction, const char* out, const char* in, const char* both) {
  return direction == Direction::kOut ? out : direction == Direction::kIn ? in : both;
}

std::string Link(const Places::Node& node) {
  return node.interface.empty() ? node.name : fmt::format("{} ({})", node.name, node.interface);
}

// Where it is, behind a verb: "from n3 (roce0)".
std::string Where(const Suspect& suspect, const Places& places) {
  if (suspect.scope == Scope::kSwitch)
    return fmt::format("{} switch {}", Choose(suspect.direction, "out of", "into", "through"),
                       places.switches[suspect.node]);
  const auto ways = [&](const std::string& one, const std::string& other) {
    return suspect.direction == Direction::kBoth ? fmt::format("between {} and {}", one, other)
                                                 : fmt::format("from {} to {}", one, other);
  };
  if (suspect.scope == Scope::kNetwork)
    return ways(places.networks[suspect.node], places.networks[suspect.other]);
  const Places::Node& node = places.nodes[suspect.node];
  if (suspect.scope == Scope::kPair) return ways(node.name, places.nodes[suspect.other].name);
  const std::string link =
      node.interface.empty() ? node.name : fmt::format("{} ({})", node.name, node.interface);
  return fmt::format("{} {}", Choose(suspect.direction, "from", "to", "from and to"), link);
}

// Whether it measures over TCP.
bool Lacks(const Places::Node& node) {
  return !node.verbs && !node.no_verbs.why.empty();
}

// A command with the devices that it is about; a pair has two.
std::string Look(const char* command, const Suspect& suspect, const Places& places) {
  if (suspect.scope == Scope::kSwitch)
    return fmt::format("on switch {}: state, speed and counters of its ports to other switches",
                       places.switches[suspect.node]);
  const Places::Node& node = places.nodes[suspect.node];
  // No settings name the fabric's interfaces.
  if (node.interface.empty()) return "ip -s link show";
  if (suspect.scope == Scope::kNode) return fmt::format("{} {}", command, node.interface);
  const Places::Node& other = places.nodes[suspect.other];
  if (node.interface == other.interface)
    return fmt::format("on {} and {}: {} {}", node.name, other.name, command, node.interface);
  return fmt::format("on {}: {} {}; on {}: {} {}", node.name, command, node.interface, other.name, command,
                     other.interface);
}

void PutPlace(const Suspect& suspect, const Places& places, json& finding) {
  switch (suspect.scope) {
    case Scope::kPair:
      finding["pair"] = {places.nodes[suspect.node].name, places.nodes[suspect.other].name};
      return;
    case Scope::kNetwork:
      finding["networks"] = {places.networks[suspect.node], places.networks[suspect.other]};
      return;
    case Scope::kSwitch:
      finding["switch"] = places.switches[suspect.node];
      return;
    case Scope::kNode:
      const Places::Node& node = places.nodes[suspect.node];
      finding["node"] = node.name;
      if (!node.interface.empty()) finding["interface"] = node.interface;
  }
}

}  // namespace

json FindingOf(const Suspect& suspect, const Places& places) {
  json finding{{"trouble", Name(suspect.trouble)}, {"direction", Name(suspect.direction)}};
  PutPlace(suspect, places, finding);
  const std::string where = Where(suspect, places);
  const auto put = [&](const std::string& text, const std::string& fix) {
    finding["text"] = text;
    finding["fix"] = fix;
  };
  switch (suspect.trouble) {
    case Trouble::kUnreachable:
      if (suspect.scope == Scope::kNetwork) {
        put(fmt::format("Nothing arrives {}, though their nodes reach others: no route joins these networks.",
                        where),
            fmt::format("ip route show to match {}", places.networks[suspect.other]));
        break;
      }
      put(fmt::format("Nothing arrives {}.", where), Look("ip -s link show", suspect, places));
      break;
    case Trouble::kBlocked:
      put(fmt::format("Connections {} fail, but datagrams arrive: a firewall is in the way.", where),
          suspect.scope == Scope::kNetwork ? "nft list ruleset; on the router between them"
                                           : "nft list ruleset");
      break;
    case Trouble::kMtu:
      put(fmt::format("Large packets {} are lost, small ones arrive: a port on the way has a smaller MTU.",
                      where),
          suspect.scope == Scope::kNetwork ? "ip link show; on the router between them" : "muster net check");
      break;
    case Trouble::kNoRdma:
      put(fmt::format("RDMA fails {}, though TCP connects: {}.", where,
                      suspect.why.empty() ? "nothing says why" : suspect.why),
          "muster net show; nft list ruleset: UDP port 4791 is to pass");
      break;
    case Trouble::kSlow:
      finding["is"] = suspect.is;
      finding["should"] = suspect.should;
      put(fmt::format("{:.0f} of {:.0f} Mbit/s arrive {}.", suspect.is, suspect.should, where),
          Look("ethtool", suspect, places));
      break;
    case Trouble::kLossy:
      finding["is"] = suspect.is;
      finding["should"] = 0;
      put(fmt::format("{:.2g} % of the packets {} are lost.", 100 * suspect.is, where),
          Look("ethtool -S", suspect, places));
      break;
  }
  return finding;
}

json MtuFindings(const Places& places) {
  json findings = json::array();
  std::map<int64_t, uint32_t> counts;
  for (const Places::Node& node : places.nodes) {
    if (node.mtu > 0) ++counts[node.mtu];
  }
  if (counts.size() < 2) return findings;
  // Of two that as many have, the larger one: it is what was meant.
  const auto usual = std::ranges::max_element(counts, {}, [](const auto& one) {
                       return std::tuple(one.second, one.first);
                     })->first;
  for (const Places::Node& node : places.nodes) {
    if (node.mtu == 0 || node.mtu == usual) continue;
    findings.push_back(
        {{"trouble", Name(Trouble::kMtu)},
         {"direction", Name(Direction::kBoth)},
         {"node", node.name},
         {"interface", node.interface},
         {"is", node.mtu},
         {"should", usual},
         {"text", fmt::format("{} has an MTU of {}, the others have {}.", Link(node), node.mtu, usual)},
         {"fix", fmt::format("ip link set dev {} mtu {}", node.interface, usual)}});
  }
  return findings;
}

json RateFinding(const std::string& interface, double is, int64_t rate) {
  return {{"trouble", Name(Trouble::kSlow)},
          {"direction", Name(Direction::kBoth)},
          {"is", is},
          {"should", rate},
          {"text", fmt::format("Most links{} carry {:.0f} Mbit/s, and the settings say a rate of {}.",
                               interface.empty() ? "" : " of " + interface, is, rate)},
          {"fix", fmt::format("{}; grep rate /etc/muster/roce.yaml",
                              interface.empty() ? "ip -s link show" : "ethtool " + interface)}};
}

json VerbsFindings(const Places& places) {
  json findings = json::array();
  const auto have = std::ranges::count_if(places.nodes, &Places::Node::verbs);
  const auto lack = std::ranges::count_if(places.nodes, Lacks);
  // Of two nodes, the node without RDMA is named. Of more nodes, nodes without RDMA are named only where most nodes have it: else a
  // spare may be no better.
  if (have < lack || (have == lack && lack > 1)) return findings;
  for (const Places::Node& node : places.nodes) {
    if (!Lacks(node) || have == 0) continue;
    findings.push_back(
        {{"trouble", Name(Trouble::kNoRdma)},
         {"direction", Name(Direction::kBoth)},
         {"node", node.name},
         {"interface", node.interface},
         {"text", fmt::format("{} has no RDMA, others have: {}.", Link(node), node.no_verbs.why)},
         {"fix", node.no_verbs.fix}});
  }
  return findings;
}

json OverTcp(const std::vector<Places>& rails) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> nodes_of;
  for (const Places& places : rails) {
    const bool rdma =
        std::ranges::any_of(places.nodes, [](const Places::Node& one) { return one.verbs || one.device; });
    if (!rdma || !VerbsFindings(places).empty()) continue;
    for (const Places::Node& node : places.nodes) {
      if (!Lacks(node)) continue;
      auto& names = nodes_of[{node.no_verbs.why, node.no_verbs.fix}];
      if (std::ranges::find(names, node.name) == names.end()) names.push_back(node.name);
    }
  }
  json told = json::array();
  for (auto& [reason, names] : nodes_of) {
    constexpr size_t kNamed = 3;
    const size_t others = names.size() - std::min(names.size(), kNamed);
    names.resize(names.size() - others);
    const std::string more = others == 0 ? "" : fmt::format(" and {} more", others);
    told.push_back(
        {{"text", fmt::format("{}{} measured over TCP: {}.", fmt::join(names, ", "), more, reason.first)},
         {"fix", reason.second}});
  }
  return told;
}

}  // namespace muster::preflight
