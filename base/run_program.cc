#include "base/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/helper_program.h"
#include "base/unique_fd.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(2);
constexpr auto kDies = std::chrono::milliseconds(500);  // what SIGKILL ends at all

// Reads until the other end is closed; false when it is not by then.
bool ReadAll(const UniqueFd& from, Clock::time_point deadline, std::string* text) {
  std::array<char, 4096> part{};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wait{from.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t size = ::read(from.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return true;
    text->append(part.data(), static_cast<size_t>(size));
  }
}

bool EndsBy(pid_t pid, Clock::time_point deadline, int* status) {
  while (::waitpid(pid, status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

Result<Ran> RunProgram(std::vector<std::string> words, std::chrono::milliseconds limit) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error{Errc::kInternal, fmt::format("pipe: {}", std::strerror(errno))};
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  const char* path = std::getenv("PATH");
  words.insert(words.begin(),
               fmt::format("PATH={}:/usr/sbin:/sbin", path != nullptr ? path : "/usr/bin:/bin"));
  const auto pid = StartHelper("/usr/bin/env", std::move(words), {{input.get(), 1}, {input.get(), 2}});
  if (!pid) return pid.error();
  input.reset();
  const auto deadline = Clock::now() + limit;
  Ran ran;
  int status = 0;
  if (!ReadAll(output, deadline, &ran.output) || !EndsBy(*pid, deadline, &status)) {
    ::kill(-*pid, SIGKILL);
    EndsBy(*pid, Clock::now() + kDies, &status);
    ran.code = kTooLong;
    return ran;
  }
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

}  // namespace muster
