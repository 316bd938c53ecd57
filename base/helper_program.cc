#include "base/helper_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace muster {

std::string HelperProgram(std::string_view name, std::string_view directory) {
  std::array<char, PATH_MAX> self{};
  const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  const std::string path(self.data(), size > 0 ? static_cast<size_t>(size) : 0);
  const std::string own = path.substr(0, path.rfind('/'));
  std::string beside = fmt::format("{}/{}", own, name);
  if (::access(beside.c_str(), X_OK) == 0) return beside;
  return fmt::format("{}/{}/{}", own.substr(0, own.rfind('/')), directory, name);
}

Result<pid_t> StartHelper(const std::string& program, std::vector<std::string> arguments,
                          const std::vector<std::pair<int, int>>& descriptors) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  for (const auto& [ours, its] : descriptors) posix_spawn_file_actions_adddup2(&actions, ours, its);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  arguments.insert(arguments.begin(), program);
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const char* path = std::getenv("PATH");
  std::string path_text = fmt::format("PATH={}", path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  std::array<char*, 2> environment{path_text.data(), nullptr};
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, program.c_str(), &actions, &attributes, words.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Error{Errc::kUnavailable, fmt::format("{}: {}", program, std::strerror(error))};
  return pid;
}

void ReapLater(Loop& loop, pid_t pid) {
  auto handle = std::make_shared<UniqueFd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle->valid()) return;
  loop.Watch(handle->get(), EPOLLIN, [&loop, handle, pid](uint32_t) {
    if (::waitpid(pid, nullptr, WNOHANG) == 0) return;  // not quite yet: this is called again
    loop.Unwatch(handle->get());
  });
}

}  // namespace muster
