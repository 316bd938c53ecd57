// muster-stacks [--ask-dump] [--deadline-ms=N] SUPERVISOR [PID...]: where the threads of all processes below SUPERVISOR are, as JSON
// lines (docs/formats.md). With PIDs only of those, if they are below it. A debugging tool of musterd's that people may
// use too.
#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/hang/capture/flight_recorder.h"
#include "daemon/hang/capture/kernel_side.h"
#include "daemon/hang/capture/native.h"
#include "daemon/hang/capture/observed_process.h"
#include "daemon/hang/capture/python.h"

namespace muster::capture {
namespace {

constexpr size_t kProcesses = 32;
constexpr size_t kThreads = 256;
constexpr size_t kBytes = 60 * 1024;  // of all lines
constexpr size_t kLeastBytes = 1536;  // of a process's
constexpr size_t kCommandBytes = 256;

struct Options {
  pid_t supervisor = 0;
  std::vector<pid_t> pids;
  Clock::time_point deadline;
  bool ask_dump = false;  // of PyTorch's flight recorder
};

std::string Dump(const nlohmann::json& line) {
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) std::_Exit(1);  // nobody reads any more
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// Leaves out the last elements of `list` until the line fits.
std::string Fit(nlohmann::json line, const char* list, size_t bytes) {
  std::string text = Dump(line);
  while (text.size() > bytes && !line[list].empty()) {
    const size_t keep = line[list].size() / 2;
    line["left_out"] = line.value("left_out", size_t{0}) + line[list].size() - keep;
    line[list].erase(line[list].begin() + static_cast<ptrdiff_t>(keep), line[list].end());
    text = Dump(line);
  }
  return text;
}

// Gives up root's rights for the process's own: what follows parses files and memory that its user wrote.
bool BecomeOwner(pid_t pid) {
  if (::geteuid() != 0) return true;
  const auto owner = OwnerOf(pid);
  if (!owner || !owner->uniform) return false;
  if (owner->uid == 0) return true;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(owner->gid, owner->gid, owner->gid) != 0 ||
      ::setresuid(owner->uid, owner->uid, owner->uid) != 0) {
    return false;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // was cleared with the rights
  return true;
}

// One process; runs in a process of its own. Each line goes out as soon as it is there.
void CaptureOne(pid_t pid, const Options& options, size_t bytes, int out) {
  const auto stat = ReadStat(std::to_string(pid));
  if (!stat) return;
  const auto still_right = [&, start = stat->start_ticks] {
    const auto now = ReadStat(std::to_string(pid));
    return now && now->start_ticks == start && IsBelow(pid, options.supervisor);
  };
  nlohmann::json about = {{"pid", pid}, {"kind", "process"}, {"parent", stat->parent}, {"name", stat->name}};
  if (!still_right()) {
    about["kind"] = "refused";
    about["error"] = fmt::format("process {} is not below {}", pid, options.supervisor);
    return Write(out, Dump(about));
  }
  const std::vector<pid_t> threads = Threads(pid, kThreads);
  about["state"] = std::string(1, stat->state);
  about["threads"] = threads.size();
  about["command"] = CommandLine(pid, kCommandBytes);
  Write(out, Dump(about));
  if (threads.empty() || stat->state == 'Z') return;
  Write(out,
        Fit({{"pid", pid}, {"kind", "kernel"}, {"groups", KernelSide(pid, threads)}}, "groups", bytes / 4));

  const auto left = options.deadline - Clock::now();
  const auto stop_until = Clock::now() + std::min<Clock::duration>(left / 4, std::chrono::milliseconds(200));
  nlohmann::json native = {{"groups", nlohmann::json::array()}};
  bool owner = false;
  {
    StoppedThreads stopped(pid, threads, stop_until, still_right);
    owner = BecomeOwner(pid);
    if (owner) {
      native = NativeStacks(pid, stopped);
    } else {
      native["error"] = "it runs with rights other than its user's";
    }
  }
  native["pid"] = pid;
  native["kind"] = "native";
  Write(out, Fit(std::move(native), "groups", bytes / 2));
  if (!owner || !still_right()) return;
  nlohmann::json python =
      PythonStacks(pid, stat->state == 'T', Clock::now() + (options.deadline - Clock::now()) * 9 / 10);
  if (python.is_null()) return;
  python["pid"] = pid;
  python["kind"] = "python";
  Write(out, Fit(std::move(python), "text", bytes / 4));
}

// The first process's user is that of all.
void AskForDumpsOf(const std::vector<pid_t>& pids, int out) {
  if (!BecomeOwner(pids.front())) return;
  const AskedDumps dumps = AskForDumps(pids);
  if (dumps.asked.empty() && dumps.error.empty()) return;
  Write(out, Dump({{"kind", "dump"}, {"asked", dumps.asked}, {"error", dumps.error}}));
}

struct Child {
  pid_t worker = 0;
  UniqueFd from;
  std::string partial;
};

// Hands on whole lines as they come, until all have ended or the deadline is there.
bool Relay(std::vector<Child>& children, Clock::time_point deadline) {
  size_t open = children.size();
  while (open > 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    std::vector<pollfd> polled;
    for (const Child& child : children) polled.push_back({child.from.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) continue;
    for (size_t i = 0; i < children.size(); ++i) {
      if (polled[i].revents == 0) continue;
      char part[16 * 1024];
      const ssize_t n = ::read(children[i].from.get(), part, sizeof part);
      if (n <= 0) {
        children[i].from.reset();  // poll passes over it
        --open;
        continue;
      }
      std::string& text = children[i].partial.append(part, static_cast<size_t>(n));
      const size_t whole = text.rfind('\n') + 1;
      Write(1, std::string_view(text).substr(0, whole));
      text.erase(0, whole);
    }
  }
  return true;
}

int Run(const Options& options) {
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<pid_t> pids =
      options.pids.empty() ? Descendants(options.supervisor, kProcesses) : options.pids;
  const size_t share = std::max(kLeastBytes, kBytes / 2 / std::max<size_t>(1, pids.size()));
  std::vector<Child> children;
  const auto in_child = [&children](const auto& work) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    Child child{0, UniqueFd(ends[0]), ""};
    UniqueFd to(ends[1]);
    const pid_t parent = ::getpid();
    child.worker = ::fork();
    if (child.worker < 0) return false;
    if (child.worker == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) std::_Exit(1);
      work(to.get());
      std::_Exit(0);
    }
    children.push_back(std::move(child));
    return true;
  };
  bool all = true;
  if (options.ask_dump && !pids.empty()) all &= in_child([&](int out) { AskForDumpsOf(pids, out); });
  for (const pid_t pid : pids) {
    // The member's program itself comes first and is given half of the room.
    const size_t room = pid == pids.front() ? kBytes / 2 + share : share;
    all &= in_child([&](int out) { CaptureOne(pid, options, room, out); });
    if (!all) break;
  }
  const bool complete = Relay(children, options.deadline) && all;
  Write(1, Dump({{"kind", "end"}, {"complete", complete}, {"processes", pids.size()}}));
  for (const Child& child : children) ::kill(child.worker, SIGKILL);
  // Those that a file system holds are left to init.
  const auto patience = Clock::now() + std::chrono::milliseconds(20);
  for (const Child& child : children) {
    while (::waitpid(child.worker, nullptr, WNOHANG) == 0 && Clock::now() < patience) ::usleep(500);
  }
  return 0;
}

bool ParsePid(const char* text, pid_t* out) {
  char* end = nullptr;
  errno = 0;
  const long number = std::strtol(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || number < 1 || number > 1 << 30) return false;
  *out = static_cast<pid_t>(number);
  return true;
}

}  // namespace
}  // namespace muster::capture

int main(int count, char** arguments) {
  using muster::capture::Clock;
  muster::capture::Options options;
  int64_t deadline_ms = 900;
  bool good = true;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = arguments[i];
    pid_t pid = 0;
    if (word.starts_with("--deadline-ms=")) {
      deadline_ms = std::strtoll(arguments[i] + word.find('=') + 1, nullptr, 10);
      good &= deadline_ms >= 10 && deadline_ms <= 600'000;
    } else if (word == "--ask-dump") {
      options.ask_dump = true;
    } else if (!muster::capture::ParsePid(arguments[i], &pid)) {
      good = false;
    } else if (options.supervisor == 0) {
      options.supervisor = pid;
    } else {
      options.pids.push_back(pid);
    }
  }
  if (!good || options.supervisor == 0) {
    std::fputs("usage: muster-stacks [--ask-dump] [--deadline-ms=10..600000] SUPERVISOR [PID...]\n", stderr);
    return 2;
  }
  options.deadline = Clock::now() + std::chrono::milliseconds(deadline_ms);
  return muster::capture::Run(options);
}
