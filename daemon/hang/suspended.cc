#include "daemon/hang/suspended.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>

namespace muster::hang {
namespace {

// Whether version 2 has frozen the cgroup that a process is in, or one above it: its processes look as if they slept.
bool IsFrozen(const std::string& process, const std::string& cgroup) {
  constexpr std::string_view kVersion2 = "0::";
  std::ifstream groups(process + "/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with(kVersion2)) continue;
    std::ifstream events(fmt::format("{}{}/cgroup.events", cgroup, line.substr(kVersion2.size())));
    for (std::string event; std::getline(events, event);) {
      if (event == "frozen 1") return true;
    }
  }
  return false;
}

}  // namespace

bool IsSuspended(pid_t supervisor, const std::string& proc, const std::string& cgroup) {
  const std::string process = fmt::format("{}/{}", proc, supervisor);
  std::ifstream file(process + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t close = text.rfind(") ");
  if (close == std::string::npos || close + 2 >= text.size()) return false;
  const char state = text[close + 2];
  return state == 'T' || state == 'D' || IsFrozen(process, cgroup);
}

}  // namespace muster::hang
