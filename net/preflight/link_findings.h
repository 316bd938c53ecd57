// What is told of a bad link: for people, and for programs. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/preflight/blame.h"
#include "net/preflight/rail.h"

namespace muster::preflight {

// One rail's nodes and switches, by the numbers that a Suspect has.
struct Places {
  struct Node {
    std::string name;
    std::string interface;  // "": unknown
    int64_t mtu = 0;        // 0: unknown
    bool verbs = false;
    bool device = false;
    NoVerbs no_verbs;
  };
  std::vector<Node> nodes;
  std::vector<std::string> switches;
  std::vector<std::string> networks;
};

// {trouble, direction, node | pair | switch | networks, interface, is, should, text, fix}: `text` is a sentence, `fix` a command with its device to begin with.
nlohmann::json FindingOf(const Suspect& suspect, const Places& places);

// Of each node whose interface has another MTU than most.
nlohmann::json MtuFindings(const Places& places);

// Where most links of a rail carry less than the settings say.
nlohmann::json RateFinding(const std::string& interface, double is, int64_t rate);

// Of each node that has no RDMA where most nodes have it, or the other node of two.
nlohmann::json VerbsFindings(const Places& places);

// {text, fix}: why nodes have measured over TCP though they, or others, have RDMA devices. `rails` without those of VerbsFindings.
nlohmann::json OverTcp(const std::vector<Places>& rails);

}  // namespace muster::preflight
