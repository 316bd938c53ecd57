// Which port of one node measures with which of another's. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "net/preflight/roll.h"

namespace muster::preflight {

// A network of the settings is a rail, or as many as nodes have interfaces in it. Networks of racks that have none in common are one.
struct RailName {
  std::string network;    // "": no node has an address in one
  std::string interface;  // what most nodes call theirs
};

// Puts the ports of each node into the order of all rails, which it returns; a node that lacks a rail has one without a port in its place.
// Nodes with as many ports in a network as any have them in the order that they say; those of others find their places by their names.
std::vector<RailName> AlignRails(std::vector<Node>& nodes);

// Rails of one group may measure at the same time, for no port of an adapter carries two of them on any node. A port that carries its own
// interface and a VLAN carries two rails.
std::vector<std::vector<uint32_t>> RailGroups(const std::vector<Node>& nodes, size_t rails);

// Of each node that lacks a rail that most have: {trouble, direction, node, interface, text, fix}. Without `node` where most lack it.
nlohmann::json RailFindings(const std::vector<Node>& nodes, const std::vector<RailName>& rails);

}  // namespace muster::preflight
