#include "net/preflight/rails.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace muster::preflight {
namespace {

using nlohmann::json;
using Ports = std::vector<RailOf>;

constexpr char kLookAtSettings[] = "grep networks /etc/muster/roce.yaml";

// As they appear first. The way without a network counts only where no node has another one.
std::vector<std::string> NetworksOf(const std::vector<Node>& nodes) {
  std::vector<std::string> networks;
  for (const Node& node : nodes) {
    for (const RailOf& rail : node.rails) {
      if (!rail.network.empty() && std::ranges::find(networks, rail.network) == networks.end())
        networks.push_back(rail.network);
    }
  }
  return networks.empty() ? std::vector<std::string>{""} : networks;
}

// The networks in groups: those of one node are of one group.
std::vector<std::set<std::string>> GroupsOf(const std::vector<Node>& nodes) {
  std::vector<std::set<std::string>> groups;
  for (const Node& node : nodes) {
    std::set<std::string> group;
    for (const RailOf& rail : node.rails) {
      if (!rail.network.empty()) group.insert(rail.network);
    }
    if (group.empty()) continue;
    std::erase_if(groups, [&](const std::set<std::string>& other) {
      const bool meet =
          std::ranges::any_of(other, [&](const std::string& network) { return group.contains(network); });
      if (meet) group.insert(other.begin(), other.end());
      return meet;
    });
    groups.push_back(std::move(group));
  }
  return groups;
}

// Where each rack has networks of its own, with a router between the racks, the networks of all are one: a port measures with the
// port at its place in the other rack.
void JoinRacks(std::vector<Node>& nodes) {
  constexpr size_t kShown = 3;
  if (GroupsOf(nodes).size() < 2) return;
  std::vector<std::string> networks = NetworksOf(nodes);
  std::string all = fmt::format(
      "{}",
      fmt::join(networks.begin(),
                networks.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, networks.size())), ", "));
  if (networks.size() > kShown) all += fmt::format(" and {} more", networks.size() - kShown);
  for (Node& node : nodes) {
    for (RailOf& rail : node.rails) {
      if (!rail.network.empty()) rail.network = all;
    }
    if (std::ranges::any_of(node.networks, [&](const std::string& network) {
          return std::ranges::find(networks, network) != networks.end();
        }))
      node.networks.push_back(all);
  }
}

// Of each place among the most ports that a node has, what most of such nodes call it.
std::vector<std::string> UsualNames(const std::vector<Ports>& of_nodes) {
  const size_t most = std::ranges::max_element(of_nodes, {}, &Ports::size)->size();
  std::vector<std::string> names;
  for (size_t place = 0; place < most; ++place) {
    std::map<std::string, int> counts;
    for (const Ports& ports : of_nodes) {
      if (ports.size() == most) ++counts[ports[place].interface];
    }
    names.push_back(std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; })->first);
  }
  return names;
}

Ports Placed(const Ports& ports, const std::vector<std::string>& names) {
  if (ports.size() == names.size()) return ports;
  Ports placed(names.size());
  Ports others;
  for (const RailOf& port : ports) {
    const auto place = static_cast<size_t>(std::ranges::find(names, port.interface) - names.begin());
    if (place < placed.size() && !placed[place].Here()) {
      placed[place] = port;
    } else {
      others.push_back(port);
    }
  }
  for (const RailOf& port : others) *std::ranges::find_if_not(placed, &RailOf::Here) = port;
  return placed;
}

// Rails of one network, which follow each other.
class NetworkRails {
 public:
  NetworkRails(const std::vector<Node>& nodes, const std::vector<RailName>& rails, size_t first)
      : nodes_(nodes), rails_(rails), first_(first), end_(first) {
    while (end_ < rails.size() && rails[end_].network == rails[first].network) ++end_;
    for (const Node& node : nodes) most_ = std::max(most_, std::ranges::count_if(node.rails, &RailOf::Here));
  }

  [[nodiscard]] size_t end() const { return end_; }

  void Find(json& findings) const {
    const auto have = std::ranges::count_if(nodes_, [&](const Node& node) { return Ports(node) > 0; });
    bool some_unnamed = false;
    for (const Node& node : nodes_) {
      if (Ports(node) > 0) continue;
      if (Odd(node, have)) {
        Put(findings, node, first_, WhyNoAddress(node),
            fmt::format("ip address show dev {}; {}", rails_[first_].interface, kLookAtSettings));
      } else {
        some_unnamed = true;
      }
    }
    if (some_unnamed) {
      findings.push_back({{"trouble", "no-rail"},
                          {"direction", "both"},
                          {"text", fmt::format("{} of {} nodes have an address in {}.", have, nodes_.size(),
                                               rails_[first_].network)},
                          {"fix", fmt::format("ip -brief address; {}", kLookAtSettings)}});
    }
    for (size_t rail = first_; rail < end_; ++rail) FindMissing(rail, findings);
  }

 private:
  [[nodiscard]] std::ptrdiff_t Ports(const Node& node) const {
    return std::ranges::count_if(node.rails.begin() + static_cast<std::ptrdiff_t>(first_),
                                 node.rails.begin() + static_cast<std::ptrdiff_t>(end_), &RailOf::Here);
  }

  // Whether a node that lacks what `have` nodes have is the exception, and not the rule.
  [[nodiscard]] bool Odd(const Node& node, std::ptrdiff_t have) const {
    const auto all = static_cast<std::ptrdiff_t>(nodes_.size());
    return 2 * have > all || (2 * have == all && std::ranges::count_if(node.rails, &RailOf::Here) < most_);
  }

  [[nodiscard]] std::string WhyNoAddress(const Node& node) const {
    const RailName& rail = rails_[first_];
    return std::ranges::find(node.networks, rail.network) == node.networks.end()
               ? fmt::format("The settings of {} do not name the network {}, those of others do.", node.name,
                             rail.network)
               : fmt::format("{} has no address in {}, others have ({}).", node.name, rail.network,
                             rail.interface);
  }

  // One of several in the network.
  void FindMissing(size_t rail, json& findings) const {
    const auto have =
        std::ranges::count_if(nodes_, [&](const Node& node) { return node.rails[rail].Here(); });
    for (const Node& node : nodes_) {
      if (node.rails[rail].Here() || Ports(node) == 0 || !Odd(node, have)) continue;
      const std::string& interface = rails_[rail].interface;
      Put(findings, node, rail,
          fmt::format("{} has {} of {} interfaces in {}: {} is missing.", node.name, Ports(node),
                      end_ - first_, rails_[rail].network, interface),
          fmt::format("ip address show dev {}", interface));
    }
  }

  void Put(json& findings, const Node& node, size_t rail, const std::string& text,
           const std::string& fix) const {
    findings.push_back({{"trouble", "no-rail"},
                        {"direction", "both"},
                        {"node", node.name},
                        {"interface", rails_[rail].interface},
                        {"text", text},
                        {"fix", fix}});
  }

  const std::vector<Node>& nodes_;
  const std::vector<RailName>& rails_;
  size_t first_;
  size_t end_;
  std::ptrdiff_t most_ = 0;  // ports of a node
};

bool ShareAPort(const Node& node, uint32_t one, uint32_t other) {
  const auto& others = node.rails[other].carriers;
  return std::ranges::any_of(node.rails[one].carriers, [&](const std::string& port) {
    return std::ranges::find(others, port) != others.end();
  });
}

}  // namespace

std::vector<RailName> AlignRails(std::vector<Node>& nodes) {
  for (Node& node : nodes) {
    for (RailOf& rail : node.rails) rail.own_network = rail.network;
  }
  JoinRacks(nodes);
  std::vector<RailName> rails;
  std::vector<Ports> aligned(nodes.size());
  for (const std::string& network : NetworksOf(nodes)) {
    std::vector<Ports> of_nodes;
    for (const Node& node : nodes) {
      Ports& ports = of_nodes.emplace_back();
      std::ranges::copy_if(node.rails, std::back_inserter(ports),
                           [&](const RailOf& rail) { return rail.network == network; });
    }
    const auto names = UsualNames(of_nodes);
    for (const std::string& name : names) rails.push_back({network, name});
    for (size_t i = 0; i < nodes.size(); ++i)
      std::ranges::move(Placed(of_nodes[i], names), std::back_inserter(aligned[i]));
  }
  for (size_t i = 0; i < nodes.size(); ++i) nodes[i].rails = std::move(aligned[i]);
  return rails;
}

std::vector<std::vector<uint32_t>> RailGroups(const std::vector<Node>& nodes, size_t rails) {
  std::vector<std::vector<uint32_t>> groups;
  for (uint32_t rail = 0; rail < rails; ++rail) {
    const auto group = std::ranges::find_if(groups, [&](const std::vector<uint32_t>& members) {
      return std::ranges::none_of(members, [&](uint32_t other) {
        return std::ranges::any_of(nodes, [&](const Node& node) { return ShareAPort(node, rail, other); });
      });
    });
    if (group == groups.end()) {
      groups.push_back({rail});
    } else {
      group->push_back(rail);
    }
  }
  return groups;
}

json RailFindings(const std::vector<Node>& nodes, const std::vector<RailName>& rails) {
  json findings = json::array();
  if (rails.front().network.empty()) {
    const auto named =
        std::ranges::find_if_not(nodes, [](const Node& node) { return node.networks.empty(); });
    if (named == nodes.end()) return findings;
    findings.push_back(
        {{"trouble", "no-rail"},
         {"direction", "both"},
         {"text", fmt::format("No node has an address in {}: what leads to MASTER_ADDR was measured.",
                              fmt::join(named->networks, ", "))},
         {"fix", fmt::format("ip -brief address; {}", kLookAtSettings)}});
    return findings;
  }
  for (size_t first = 0; first < rails.size();) {
    const NetworkRails network(nodes, rails, first);
    network.Find(findings);
    first = network.end();
  }
  return findings;
}

}  // namespace muster::preflight
