#include "daemon/health/check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/small_files.h"
#include "base/unique_fd.h"
#include "daemon/health/findings.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxReason = 200;
constexpr size_t kMaxOutput = 1 << 20;
constexpr std::chrono::milliseconds kEndsWithin{500};      // what SIGKILL ends at all
constexpr std::chrono::milliseconds kEndsByItself{5'000};  // after its last word, on a busy node too

// Processes of earlier checks that SIGKILL has not removed yet, and what they hang in.
struct Stuck {
  pid_t pid;
  std::string subject;
};
std::mutex stuck_mutex;
std::vector<Stuck> stuck;

bool Ended(pid_t pid, int* status) {
  pid_t got = 0;
  do {
    got = ::waitpid(pid, status, WNOHANG);
  } while (got < 0 && errno == EINTR);
  return got != 0;  // ECHILD: it is not ours any more
}

// What an earlier check still hangs in, or "".
std::string StillStuck() {
  const std::lock_guard lock(stuck_mutex);
  std::erase_if(stuck, [](const Stuck& one) {
    int status = 0;
    return Ended(one.pid, &status);
  });
  return stuck.empty() ? "" : stuck.front().subject;
}

struct Helper {
  pid_t pid = -1;
  UniqueFd output;
  int error = 0;  // of starting it
};

// Plain fork and exec. vfork, which posix_spawn uses, stops the caller until exec is done, and that may be never when
// the program's disk hangs. _Fork runs no library's fork handlers, so the child calls async-signal-safe functions only.
Helper Start(const HealthOptions& options) {
  std::vector<std::string> programs = {options.helper};
  if (options.helper.empty()) {
    std::array<char, 4096> self{};
    const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
    const std::string_view path(self.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
    const std::string directory(path.substr(0, path.rfind('/') + 1));
    programs = {directory + "muster-health", directory + "../libexec/muster/muster-health"};
  }
  std::vector<std::string> arguments = ToArguments(options);
  arguments.insert(arguments.begin(), "muster-health");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  Helper helper;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    helper.error = errno;
    return helper;
  }
  helper.output.reset(ends[0]);
  const UniqueFd first(ends[1]);
  const UniqueFd input(::fcntl(first.get(), F_DUPFD_CLOEXEC, 3));  // so that dup2 makes a new one
  sigset_t none;
  ::sigemptyset(&none);
  helper.pid = ::_Fork();
  if (helper.pid == 0) {
    ::dup2(input.get(), STDOUT_FILENO);
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
    ::signal(SIGPIPE, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const std::string& program : programs) ::execv(program.c_str(), argv.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, &error, sizeof error);
    ::_exit(127);
  }
  if (helper.pid < 0) helper.error = errno;
  return helper;
}

// What comes until the end of output or the deadline.
struct Output {
  std::string text;
  bool ended = false;
};
Output ReadUntil(int fd, Clock::time_point deadline) {
  Output output;
  std::array<char, 4096> block{};
  while (output.text.size() < kMaxOutput) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return output;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 60'000))) <= 0) continue;
    const ssize_t size = ::read(fd, block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) {
      output.ended = true;
      return output;
    }
    output.text.append(block.data(), static_cast<size_t>(size));
    if (output.text.ends_with("done\t\t\n")) return output;
  }
  return output;
}

// Its wait status, or nothing when it could not be ended: then it is remembered.
std::optional<int> End(pid_t pid, bool kill_it, const std::string& subject) {
  if (kill_it) ::kill(pid, SIGKILL);
  const auto until = Clock::now() + (kill_it ? kEndsWithin : kEndsByItself);
  int status = 0;
  while (!Ended(pid, &status)) {
    if (Clock::now() >= until) {
      ::kill(pid, SIGKILL);
      const std::lock_guard lock(stuck_mutex);
      stuck.push_back({pid, subject});
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

std::string HowEnded(const std::optional<int>& status) {
  if (!status) return "cannot be ended";
  if (WIFSIGNALED(*status)) return fmt::format("ended by signal {}", WTERMSIG(*status));
  return fmt::format("ended with code {}", WEXITSTATUS(*status));
}

}  // namespace

bool HealthReport::sick() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const HealthFinding& one) { return one.severity == HealthSeverity::kSick; });
}

std::string HealthReport::Reason() const {
  std::string reason;
  for (const HealthFinding& one : findings) {
    if (one.severity != HealthSeverity::kSick) continue;
    reason += fmt::format("{}{} {}", reason.empty() ? "" : "; ", one.subject, one.what);
  }
  if (reason.size() > kMaxReason) reason.replace(kMaxReason - 3, std::string::npos, "...");
  return reason;
}

HealthReport CheckNode(const HealthOptions& options) {
  HealthReport report;
  const auto add = [&](const std::string& subject, HealthSeverity severity, const std::string& what) {
    report.findings.push_back({subject, what, severity});
  };
  if (options.timeout.count() <= 0) return report;
  if (const std::string subject = StillStuck(); !subject.empty()) {
    report.counters = options.last_counters;
    add(subject, HealthSeverity::kSick, "still hangs in the last check");
    return report;
  }
  const auto deadline = Clock::now() + options.timeout;
  const Helper helper = Start(options);
  if (helper.pid < 0) {
    add("node", HealthSeverity::kWarning,
        fmt::format("could not be checked: no process: {}", std::strerror(helper.error)));
    return report;
  }
  const Output output = ReadUntil(helper.output.get(), deadline);

  bool done = false;
  std::string subject = "node";
  for (const std::string& text : Words(output.text, "\n")) {
    const auto line = ParseHealthLine(text);
    if (!line) continue;
    switch (line->kind) {
      case HealthLine::Kind::kChecking:
        subject = line->subject;
        break;
      case HealthLine::Kind::kFinding:
        add(line->subject, line->severity, line->text);
        break;
      case HealthLine::Kind::kCounter:
        report.counters[line->subject] = ParseDecimal(line->text).value_or(0);
        break;
      case HealthLine::Kind::kDone:
        done = true;
        break;
    }
  }
  const std::optional<int> status = End(helper.pid, !done && !output.ended, subject);
  if (done) return report;
  // What was not come to keeps its last value, so that the next check has something to compare with.
  report.counters.insert(options.last_counters.begin(), options.last_counters.end());
  if (!output.ended) {
    add(subject, HealthSeverity::kSick, fmt::format("did not answer within {} ms", options.timeout.count()));
  } else if (int error = 0; status && WIFEXITED(*status) && WEXITSTATUS(*status) == 127 &&
                            output.text.size() == sizeof error) {
    std::memcpy(&error, output.text.data(), sizeof error);
    add("node", HealthSeverity::kWarning,
        fmt::format("could not be checked: muster-health cannot be run: {}", std::strerror(error)));
  } else {
    // A fault of the check or of a vendor's library: it alone is no reason to drain a node.
    add(subject, HealthSeverity::kWarning,
        fmt::format("could not be checked: muster-health {}", HowEnded(status)));
  }
  return report;
}

}  // namespace muster
