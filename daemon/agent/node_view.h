// What musterd knows of its own node, for `muster node show`.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/health/check.h"
#include "daemon/watch/fabric_watch.h"

namespace muster {

struct NodeView {
  struct Gang {
    std::string id;
    uint32_t uid = 0;
  };
  // A test between this node and others that found nothing.
  struct Links {
    uint32_t uid = 0;  // whose gang it was
    std::string test;
    bool full = false;
    std::chrono::milliseconds age{0};
  };

  std::optional<HealthReport> health;  // nothing: the checks are switched off
  std::vector<watch::PortView> ports;  // empty: none is watched
  std::vector<Gang> gangs;
  std::vector<Links> links;
};

}  // namespace muster
