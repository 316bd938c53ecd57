#include "processes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "net/rendezvous/socket.h"

namespace muster::test {

std::vector<int> RunMembers(int count, const std::function<int(int)>& body, std::chrono::seconds deadline) {
  const pid_t parent = ::getpid();
  std::vector<pid_t> members;
  for (int index = 0; index < count; ++index) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(99);
      ::_exit(body(index));
    }
    members.push_back(pid);
  }
  std::vector<int> statuses(members.size(), -1);
  const auto end = std::chrono::steady_clock::now() + deadline;
  std::size_t running = members.size();
  while (running > 0) {
    const bool late = std::chrono::steady_clock::now() >= end;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] <= 0) continue;
      if (late) ::kill(members[i], SIGKILL);
      if (::waitpid(members[i], &statuses[i], late ? 0 : WNOHANG) != members[i]) continue;
      members[i] = 0;
      --running;
      if (late) ADD_FAILURE() << "member " << i << " was still running at the deadline";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return statuses;
}

bool Succeeded(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "member: %s\n", why.c_str());
  return 1;
}

GroupOptions LoopbackGroup(int rank, int size, std::uint16_t port) {
  GroupOptions options;
  options.rank = rank;
  options.size = size;
  options.master_addr = "127.0.0.1";
  options.master_port = port;
  options.round = "test.1";
  options.connect_timeout = std::chrono::seconds(20);
  options.operation_timeout = std::chrono::seconds(20);
  return options;
}

std::uint16_t FreePort() {
  Result<UniqueFd> listener = rendezvous::Listen(0);
  if (!listener) return 0;
  const Result<std::uint16_t> port = rendezvous::LocalPort(listener->get());
  return port ? *port : 0;
}

SharedFloats::SharedFloats(std::size_t count) {
  void* memory =
      ::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) values_ = {static_cast<float*>(memory), count};
}

SharedFloats::~SharedFloats() {
  ::munmap(values_.data(), values_.size_bytes());
}

ScratchDirectory::ScratchDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "muster-net-test.XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << path_;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace muster::test
