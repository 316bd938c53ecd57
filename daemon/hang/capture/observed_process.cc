#include "daemon/hang/capture/observed_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "base/unique_fd.h"

namespace muster::capture {
namespace {

std::vector<pid_t> Numbers(const std::string& directory, size_t limit) {
  std::vector<pid_t> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()), ::closedir);
  if (!open) return found;
  while (const dirent* entry = ::readdir(open.get())) {
    char* end = nullptr;
    const long number = std::strtol(entry->d_name, &end, 10);
    if (*end == '\0' && number > 0 && found.size() < limit) found.push_back(static_cast<pid_t>(number));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<pid_t> Children(pid_t pid) {
  std::vector<pid_t> children;
  bool listed = false;
  for (const pid_t thread : Threads(pid, SIZE_MAX)) {
    const std::string path = fmt::format("/proc/{}/task/{}/children", pid, thread);
    listed |= ::access(path.c_str(), R_OK) == 0;
    std::istringstream words(ReadText(path));
    for (pid_t child = 0; words >> child;) children.push_back(child);
  }
  if (listed) return children;
  // A kernel without lists of children.
  for (const pid_t other : Numbers("/proc", SIZE_MAX)) {
    const auto stat = ReadStat(std::to_string(other));
    if (stat && stat->parent == pid) children.push_back(other);
  }
  return children;
}

}  // namespace

std::string ReadText(const std::string& path, size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  if (!fd.valid()) return text;
  text.resize(limit);
  size_t used = 0;
  while (used < limit) {
    const ssize_t n = ::read(fd.get(), text.data() + used, limit - used);
    if (n <= 0) break;
    used += static_cast<size_t>(n);
  }
  text.resize(used);
  return text;
}

std::optional<Stat> ReadStat(const std::string& process) {
  const std::string text = ReadText("/proc/" + process + "/stat", 4096);
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Stat stat;
  stat.name = text.substr(open + 1, close - open - 1);
  std::istringstream fields(text.substr(close + 1));
  fields >> stat.state >> stat.parent;
  std::string skipped;
  for (int field = 5; field < 22; ++field) fields >> skipped;
  fields >> stat.start_ticks;
  if (!fields) return std::nullopt;
  return stat;
}

std::vector<pid_t> Descendants(pid_t root, size_t limit) {
  std::vector<pid_t> found = Children(root);
  for (size_t i = 0; i < found.size() && found.size() < limit; ++i) {
    for (const pid_t child : Children(found[i])) {
      if (std::find(found.begin(), found.end(), child) == found.end()) found.push_back(child);
    }
  }
  if (found.size() > limit) found.resize(limit);
  return found;
}

bool IsBelow(pid_t pid, pid_t root) {
  for (int depth = 0; depth < 1000 && pid > 1; ++depth) {
    const auto stat = ReadStat(std::to_string(pid));
    if (!stat) return false;
    if (stat->parent == root) return true;
    pid = stat->parent;
  }
  return false;
}

std::vector<pid_t> Threads(pid_t pid, size_t limit) {
  return Numbers(fmt::format("/proc/{}/task", pid), limit);
}

std::optional<Owner> OwnerOf(pid_t pid) {
  std::istringstream status(ReadText(fmt::format("/proc/{}/status", pid)));
  Owner owner;
  int seen = 0;
  owner.uniform = true;
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Uid:") && !line.starts_with("Gid:")) continue;
    std::istringstream ids(line.substr(4));
    uint32_t real = 0;
    uint32_t effective = 0;
    uint32_t saved = 0;
    if (!(ids >> real >> effective >> saved)) return std::nullopt;
    owner.uniform &= real == effective && effective == saved;
    (line[0] == 'U' ? owner.uid : owner.gid) = real;
    ++seen;
  }
  if (seen != 2) return std::nullopt;
  return owner;
}

std::string CommandLine(pid_t pid, size_t limit) {
  std::string text = ReadText(fmt::format("/proc/{}/cmdline", pid), limit);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace muster::capture
