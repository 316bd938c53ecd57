// A process as a killed supervisor leaves it: its parent has gone, signals do not end it, only its environment says whose it was.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "base/unique_fd.h"

namespace muster {

class Orphan {
 public:
  // With this one variable.
  explicit Orphan(const std::string& variable) {
    int ends[2] = {};
    int exec[2] = {};  // its end is the exec
    EXPECT_EQ(::pipe(ends), 0);
    EXPECT_EQ(::pipe2(exec, O_CLOEXEC), 0);
    alive_.reset(ends[0]);
    const UniqueFd executed(exec[0]);
    const pid_t parent = ::fork();
    if (parent == 0) {
      ::close(ends[0]);
      ::setsid();
      const pid_t child = ::fork();
      if (child != 0) ::_exit(::write(ends[1], &child, sizeof child) == sizeof child ? 0 : 1);
      ::signal(SIGTERM, SIG_IGN);
      ::signal(SIGHUP, SIG_IGN);
      const char* environment[] = {variable.c_str(), nullptr};
      ::execle("/bin/sleep", "sleep", "3600", nullptr, environment);
      ::_exit(1);
    }
    ::close(ends[1]);
    ::close(exec[1]);
    char none = 0;
    EXPECT_EQ(::read(executed.get(), &none, 1), 0);
    EXPECT_EQ(::read(alive_.get(), &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
    EXPECT_EQ(::waitpid(parent, nullptr, 0), parent);
  }
  ~Orphan() {
    if (Alive()) ::kill(pid_, SIGKILL);
  }
  Orphan(const Orphan&) = delete;
  Orphan& operator=(const Orphan&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // It holds the pipe's other end.
  [[nodiscard]] bool Alive() const {
    pollfd end{alive_.get(), POLLIN, 0};
    return ::poll(&end, 1, 0) == 0;
  }

 private:
  UniqueFd alive_;
  pid_t pid_ = 0;
};

}  // namespace muster
