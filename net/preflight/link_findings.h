// What is told of a bad link: for people, and for programs. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/preflight/blame.h"

namespace muster::preflight {

// One rail's nodes and switches, by the numbers that a Suspect has.
struct Places {
  struct Node {
    std::string name;
    std::string interface;  // "": unknown
    int64_t mtu = 0;        // 0: unknown
  };
  std::vector<Node> nodes;
  std::vector<std::string> switches;
};

// {trouble, direction, node | pair | switch, interface, is, should, text, fix}: `text` is a sentence, `fix` a command to begin with.
nlohmann::json FindingOf(const Suspect& suspect, const Places& places, const Expected& expected);

// Of each node whose interface has another MTU than most.
nlohmann::json MtuFindings(const Places& places);

}  // namespace muster::preflight
