#include <fmt/format.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "daemon/hang/capture/native.h"
#include "daemon/hang/capture/observed_process.h"

namespace muster::capture {
namespace {

std::string Tracer(pid_t pid) {
  const std::string status = ReadText(fmt::format("/proc/{}/status", pid));
  const size_t at = status.find("TracerPid:\t");
  if (at == std::string::npos) return "";
  const std::string tracer = status.substr(at + 11, status.find('\n', at) - at - 11);
  return tracer == "0" ? "" : fmt::format(" (process {} traces it)", tracer);
}

}  // namespace

StoppedThreads::StoppedThreads(pid_t pid, const std::vector<pid_t>& threads, Clock::time_point until,
                               const std::function<bool()>& still_right) {
  for (const pid_t thread : threads) {
    if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
      if (errno == ESRCH) continue;  // it has ended
      trouble_ = fmt::format("ptrace of thread {}: {}{}", thread, std::strerror(errno), Tracer(pid));
      continue;
    }
    seized_.push_back(thread);
    if (seized_.size() == 1 && !still_right()) {
      trouble_ = "it is not below the supervisor any more";
      return;
    }
  }
  std::vector<pid_t> waiting;
  for (const pid_t thread : seized_) {
    if (::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0) waiting.push_back(thread);
  }
  for (;;) {
    std::erase_if(waiting, [this](pid_t thread) {
      int status = 0;
      const pid_t got = ::waitpid(thread, &status, __WALL | WNOHANG);
      if (got == 0) return false;
      if (got == thread && WIFSTOPPED(status)) {
        stopped_.push_back(thread);
        // It stopped on its way to a signal of its own, which it is to get when it goes on.
        if (status >> 16 != PTRACE_EVENT_STOP) signals_[thread] = WSTOPSIG(status);
      } else {
        std::erase(seized_, thread);  // it has ended
      }
      return true;
    });
    if (waiting.empty()) break;
    if (Clock::now() >= until) {
      trouble_ = fmt::format("{} of {} threads did not stop: they wait in the kernel", waiting.size(),
                             seized_.size());
      break;
    }
    ::usleep(500);
  }
}

StoppedThreads::~StoppedThreads() {
  Release();
}

void StoppedThreads::Release() {
  for (const pid_t thread : stopped_) {
    const auto signal = signals_.find(thread);
    const long number = signal != signals_.end() ? signal->second : 0;
    ::ptrace(PTRACE_DETACH, thread, nullptr, number);
  }
  // What has not stopped cannot be detached by a call; the kernel does it when this process ends.
  stopped_.clear();
  signals_.clear();
  seized_.clear();
}

}  // namespace muster::capture
