#include "daemon/hang/capture/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "daemon/hang/capture/observed_process.h"

namespace muster::capture {
namespace {

constexpr size_t kMaxEnvironment = 1024 * 1024;

std::string Variable(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
      return std::string(entry.substr(name.size() + 1));
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return "";
}

}  // namespace

AskedDumps AskForDumps(const std::vector<pid_t>& pids) {
  AskedDumps dumps;
  // A launcher and helpers have the program's environment too.
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const pid_t pid : pids) {
    const std::string environment = ReadText(fmt::format("/proc/{}/environ", pid), kMaxEnvironment);
    const std::string stem = Variable(environment, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    const std::string rank = Variable(environment, "RANK");
    if (stem.empty() || rank.empty()) continue;
    const std::string name = stem + rank + ".pipe";
    // As the process sees it, which may be in a container.
    const std::string path = fmt::format("/proc/{}/{}{}", pid, stem.front() == '/' ? "root" : "cwd/", name);
    const UniqueFd place(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat about {};
    if (!place.valid() || ::fstat(place.get(), &about) != 0) {
      dumps.error = fmt::format("{}: {}", name, std::strerror(errno));
      continue;
    }
    if (!S_ISFIFO(about.st_mode) || about.st_uid != ::geteuid()) {
      dumps.error = fmt::format("{}: it is no FIFO of the job's user", name);
      continue;
    }
    if (!seen.emplace(about.st_dev, about.st_ino).second) continue;
    // One that nobody reads, or that is full, is not waited for.
    const std::string itself = fmt::format("/proc/self/fd/{}", place.get());
    const UniqueFd fifo(::open(itself.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (fifo.valid() && ::write(fifo.get(), "1", 1) == 1) {
      dumps.asked.push_back(name);
    } else {
      dumps.error = fmt::format("{}: {}", name, std::strerror(errno));
    }
  }
  return dumps;
}

}  // namespace muster::capture
