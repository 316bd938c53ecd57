// Findings that a test can look at, and a node with nothing wrong.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/health/findings.h"
#include "tests/unit/health/temporary_tree.h"

namespace muster {

struct Recorder {
  std::vector<std::string> texts;  // "SICK gpu 3 has ...", "warning clock is ..."
  std::map<std::string, uint64_t> counters;
  Findings findings{[this](const HealthLine& line) {
    if (line.kind == HealthLine::Kind::kFinding) {
      texts.push_back(fmt::format("{} {} {}", line.severity == HealthSeverity::kSick ? "SICK" : "warning",
                                  line.subject, line.text));
    }
    if (line.kind == HealthLine::Kind::kCounter) counters[line.subject] = std::stoull(line.text);
  }};
};

// Its roots are empty, so that nothing of this machine is seen.
inline HealthOptions QuietOptions(const TemporaryTree& tree) {
  HealthOptions options;
  options.sys_root = tree / "sys";
  options.proc_root = tree / "proc";
  options.nvml_library = "";
  options.settle = std::chrono::milliseconds(0);
  return options;
}

}  // namespace muster
