#include "base/backtrace.h"

#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace muster {
namespace {

constexpr int kMostFrames = 64;
constexpr unsigned kCrashSeconds = 10;  // should the stack be so broken that looking at it hangs

std::array<void*, kMostFrames> frames;
std::array<char, 64> crashed;

// Its first call loads a library, which no signal handler may do.
void Prepare() {
  ::backtrace(frames.data(), kMostFrames);
}

void WriteStack() {
  ::backtrace_symbols_fd(frames.data(), ::backtrace(frames.data(), kMostFrames), STDERR_FILENO);
}

void Write(const char* text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
}

void OnTrace(int /*signal*/) {
  const int kept = errno;
  WriteStack();
  errno = kept;
}

void OnCrash(int signal) {
  ::alarm(kCrashSeconds);
  const char* name = ::sigabbrev_np(signal);
  Write(crashed.data());
  Write(" has crashed: SIG");
  Write(name != nullptr ? name : "?");
  Write("\n");
  WriteStack();
  ::raise(signal);  // its handler is the default one again: this ends the process when it returns from here
}

}  // namespace

std::function<void()> TraceMainThread() {
  Prepare();
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = OnTrace;
  ::sigaction(SIGUSR2, &action, nullptr);
  return [main = ::pthread_self()] { ::pthread_kill(main, SIGUSR2); };
}

void TraceCrashes(const char* program) {
  Prepare();
  std::strncpy(crashed.data(), program, crashed.size() - 1);
  struct sigaction action {};
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  action.sa_handler = OnCrash;
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) ::sigaction(signal, &action, nullptr);
}

}  // namespace muster
