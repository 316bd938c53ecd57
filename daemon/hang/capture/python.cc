#include "daemon/hang/capture/python.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "daemon/hang/capture/observed_process.h"

extern char** environ;

namespace muster::capture {
namespace {

constexpr size_t kTextBytes = 16 * 1024;
constexpr size_t kLines = 200;
// client/python/muster/_stacks.py makes a memfd of this name, with the signal's number behind it.
constexpr std::string_view kMemfd = "/memfd:muster-stacks-";

int64_t LeftMs(Clock::time_point until) {
  return std::max<int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count());
}

std::string LinkOf(const std::string& path) {
  char text[PATH_MAX];
  const ssize_t n = ::readlink(path.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

bool IsPython(pid_t pid) {
  const std::string exe = LinkOf(fmt::format("/proc/{}/exe", pid));
  if (exe.substr(exe.rfind('/') + 1).starts_with("python")) return true;
  return ReadText(fmt::format("/proc/{}/maps", pid), 1 << 20).find("/libpython") != std::string::npos;
}

nlohmann::json Lines(std::string_view text) {
  nlohmann::json lines = nlohmann::json::array();
  std::istringstream in{std::string(text)};
  for (std::string line; lines.size() < kLines && std::getline(in, line);) {
    if (line.size() > 300) line = line.substr(0, 297) + "...";
    lines.push_back(line);
  }
  return lines;
}

// ---- py-spy

std::string FindPySpy() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/py-spy";
    if (folder.starts_with('/') && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

std::optional<std::string> PySpy(const std::string& program, pid_t pid, Clock::time_point until) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  const UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, write.get(), 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::string number = std::to_string(pid);
  std::string words[] = {program, "dump", "--pid", number};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::nullopt;
  write.reset();
  std::string text;
  bool ended = false;
  while (!ended && LeftMs(until) > 0) {
    pollfd ready{read.get(), POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(LeftMs(until))) <= 0) continue;
    char part[4096];
    const ssize_t n = ::read(read.get(), part, sizeof part);
    if (n <= 0) ended = true;
    if (n > 0 && text.size() < kTextBytes) text.append(part, static_cast<size_t>(n));
  }
  ::kill(child, SIGKILL);  // it has ended, or is to
  int status = 0;
  ::waitpid(child, &status, 0);
  if (text.empty() || !ended) return std::nullopt;
  return text;
}

// ---- faulthandler

struct Registered {
  int signal = 0;
  std::string path;  // of the memfd that it writes to
};

std::optional<Registered> FindFaulthandler(pid_t pid) {
  const std::string folder = fmt::format("/proc/{}/fd", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) return std::nullopt;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string path = folder + "/" + entry->d_name;
    const std::string link = LinkOf(path);
    if (!link.starts_with(kMemfd)) continue;
    const int signal = std::atoi(link.c_str() + kMemfd.size());
    if (signal >= SIGRTMIN && signal <= SIGRTMAX) return Registered{signal, path};
  }
  return std::nullopt;
}

// Whether it would survive that signal: it has a handler for it, or lets it wait.
bool Catches(pid_t pid, int signal) {
  const std::string status = ReadText(fmt::format("/proc/{}/status", pid));
  const size_t at = status.find("SigCgt:\t");
  if (at == std::string::npos) return false;
  const uint64_t mask = std::strtoull(status.c_str() + at + 8, nullptr, 16);
  return (mask >> (signal - 1) & 1) != 0;
}

struct Answer {
  std::string text;
  std::string error;
};

constexpr const char* kStopped = "it is stopped by a signal";

bool IsStopped(pid_t pid) {
  const auto stat = ReadStat(std::to_string(pid));
  return !stat || stat->state == 'T' || stat->state == 't';
}

Answer AskFaulthandler(pid_t pid, const Registered& registered, Clock::time_point until) {
  const UniqueFd memory(::open(registered.path.c_str(), O_RDWR | O_CLOEXEC));
  if (!memory.valid()) return {"", fmt::format("its memory cannot be opened: {}", std::strerror(errno))};
  // Forked workers share it.
  while (::flock(memory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (LeftMs(until) == 0) return {"", "another process's answer took too long"};
    ::usleep(1000);
  }
  if (IsStopped(pid)) return {"", kStopped};
  if (!Catches(pid, registered.signal)) return {"", "its handler has been removed"};
  if (::ftruncate(memory.get(), 0) != 0 || ::kill(pid, registered.signal) != 0) {
    return {"", std::strerror(errno)};
  }
  // The handler says nothing at its end: what has not grown for a while is complete.
  off_t size = 0;
  auto grown_at = Clock::now();
  while (LeftMs(until) > 0) {
    struct stat now {};
    ::fstat(memory.get(), &now);
    if (std::exchange(size, now.st_size) != now.st_size) grown_at = Clock::now();
    if (size > 0 && Clock::now() - grown_at > std::chrono::milliseconds(20)) break;
    if (size == 0 && IsStopped(pid)) return {"", kStopped};
    ::usleep(2000);
  }
  if (size == 0) return {"", "it did not answer the signal: it waits in the kernel"};
  std::string text(std::min<size_t>(static_cast<size_t>(size), kTextBytes), '\0');
  const ssize_t n = ::pread(memory.get(), text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return {text, ""};
}

}  // namespace

nlohmann::json PythonStacks(pid_t pid, bool was_stopped, Clock::time_point until) {
  if (!IsPython(pid)) return nullptr;
  nlohmann::json result = {{"by", ""}, {"text", nlohmann::json::array()}, {"error", ""}};
  if (const std::string program = FindPySpy(); !program.empty()) {
    if (const auto text = PySpy(program, pid, until)) {
      result["by"] = "py-spy";
      result["text"] = Lines(*text);
      return result;
    }
  }
  const auto registered = FindFaulthandler(pid);
  if (!registered) {
    result["error"] = "py-spy is not installed, and the program has not imported muster";
    return result;
  }
  const Answer answer = was_stopped ? Answer{"", kStopped} : AskFaulthandler(pid, *registered, until);
  result["by"] = "faulthandler";
  result["text"] = Lines(answer.text);
  result["error"] = answer.error;
  return result;
}

}  // namespace muster::capture
