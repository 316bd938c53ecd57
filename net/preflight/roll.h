// The nodes that take part in a test of the fabric, as its referee knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "net/preflight/line_stream.h"
#include "net/preflight/rail.h"

namespace muster::preflight {

// A port of a node, and where it is reached.
struct RailOf {
  std::string interface;
  std::string address;
  uint16_t port = 0;
  int64_t mtu = 0;
  int64_t rate_mbit_s = 0;
  std::string network;
  std::string own_network;  // the same, before the networks of racks are one
  std::vector<std::string> carriers;
  size_t own = 0;  // its place among the node's own
  bool verbs = false;
  bool device = false;  // the kernel has one, at least
  NoVerbs no_verbs;

  [[nodiscard]] bool Here() const { return port != 0; }
};

struct Node {
  uint32_t number = 0;
  std::string name;
  std::string switches;
  std::vector<std::string> networks;  // that its settings name
  int64_t rate_mbit_s = 0;            // of a link, as its settings say; 0: they do not
  std::vector<RailOf> rails;
  std::unique_ptr<LineStream> stream;
  bool gone = false;
};

// Who has come over a listening socket and has said that it is one of this run's `nodes`, by its number: all of them, or those that came
// until `come`. Others are told why they are refused, and disturb nobody.
std::vector<Node> CallRoll(const UniqueFd& listening, const std::string& run, uint32_t nodes, Deadline come);

}  // namespace muster::preflight
