#include "daemon/health/process_usage.h"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/small_files.h"

namespace muster {
namespace {

// What /proc/PID/stat has after the name, which may contain anything.
struct Stat {
  char state = '?';
  pid_t parent = 0;
  uint64_t ticks = 0;  // of its own and of the children that it has waited for
};

std::optional<Stat> ReadStat(const std::string& path) {
  const auto text = ReadSmallFile(path);
  if (!text) return std::nullopt;
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = Words(std::string_view(*text).substr(name_end + 1));
  if (fields.size() < 15) return std::nullopt;
  Stat stat;
  stat.state = fields[0][0];
  stat.parent = static_cast<pid_t>(ParseDecimal(fields[1]).value_or(0));
  for (const size_t field : {11, 12, 13, 14}) stat.ticks += ParseDecimal(fields[field]).value_or(0);
  return stat;
}

// A tree is walked through the kernel's lists of children; where it keeps none, through everyone's parent.
class Children {
 public:
  explicit Children(std::string proc) : proc_(std::move(proc)) {}

  std::vector<pid_t> Of(pid_t pid, const std::vector<std::string>& threads) {
    std::vector<pid_t> found;
    if (!scanned_) {
      for (const std::string& thread : threads) {
        const auto text = ReadSmallFile(fmt::format("{}/{}/task/{}/children", proc_, pid, thread));
        for (const std::string& child : Words(text.value_or(""))) {
          found.push_back(static_cast<pid_t>(ParseDecimal(child).value_or(0)));
        }
        listed_ |= text.has_value();
      }
      if (listed_) return found;
      Scan();
    }
    const auto [first, last] = by_parent_.equal_range(pid);
    for (auto child = first; child != last; ++child) found.push_back(child->second);
    return found;
  }

 private:
  void Scan() {
    scanned_ = true;
    for (const std::string& name : ListDirectory(proc_)) {
      const auto pid = ParseDecimal(name);
      if (!pid) continue;
      const auto stat = ReadStat(fmt::format("{}/{}/stat", proc_, name));
      if (stat) by_parent_.emplace(stat->parent, static_cast<pid_t>(*pid));
    }
  }

  std::string proc_;
  bool listed_ = false;
  bool scanned_ = false;
  std::multimap<pid_t, pid_t> by_parent_;
};

void AddIo(const std::string& path, ProcessUsage* usage) {
  const std::vector<std::string> words = Words(ReadSmallFile(path).value_or(""));
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    if (words[i] == "rchar:") usage->read_bytes += ParseDecimal(words[i + 1]).value_or(0);
    if (words[i] == "wchar:") usage->write_bytes += ParseDecimal(words[i + 1]).value_or(0);
  }
}

}  // namespace

Result<ProcessUsage> ProcessTreeUsage(pid_t root, const std::string& proc_root) {
  const auto ns_per_tick = static_cast<uint64_t>(1'000'000'000 / ::sysconf(_SC_CLK_TCK));
  ProcessUsage usage;
  Children children(proc_root);
  uint64_t ticks = 0;
  std::set<pid_t> seen;  // a pid that is used again while this looks must not make a circle
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t pid = open.back();
    open.pop_back();
    if (pid <= 0 || !seen.insert(pid).second) continue;
    const std::string base = fmt::format("{}/{}", proc_root, pid);
    const auto stat = ReadStat(base + "/stat");
    if (!stat) continue;
    ++usage.processes;
    ticks += stat->ticks;
    AddIo(base + "/io", &usage);
    const std::vector<std::string> threads = ListDirectory(base + "/task");
    usage.threads += static_cast<uint32_t>(threads.size());
    for (const std::string& thread : threads) {
      const auto one = ReadStat(fmt::format("{}/task/{}/stat", base, thread));
      if (one && one->state == 'D') ++usage.blocked_threads;
    }
    for (const pid_t child : children.Of(pid, threads)) open.push_back(child);
  }
  if (usage.processes == 0) {
    return Error{Errc::kNotFound, fmt::format("{}/{}: there is no such process", proc_root, root)};
  }
  usage.cpu_ns = static_cast<int64_t>(ticks * ns_per_tick);
  return usage;
}

}  // namespace muster
