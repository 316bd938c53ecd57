#include "processes.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

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
  // Bound for as long as this process lives, and never listened at: nobody else is given it meanwhile.
  static std::vector<UniqueFd> held;
  UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) return 0;
  const Result<std::uint16_t> port = rendezvous::LocalPort(socket.get());
  held.push_back(std::move(socket));
  return port ? *port : 0;
}

void ShareTheGpu(int rank) {
  ::setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

Exchange ExchangeIn(const std::string& directory, int rank, int size) {
  return [=](const std::string& key, const std::string& value,
             std::chrono::steady_clock::time_point deadline) -> Result<std::vector<std::string>> {
    const auto of = [&](int member) {
      return std::filesystem::path(directory) / (key + "." + std::to_string(member));
    };
    std::filesystem::path aside = of(rank);
    aside += ".part";
    std::ofstream(aside, std::ios::binary) << value;
    std::filesystem::rename(aside, of(rank));
    std::vector<std::string> values;
    for (int member = 0; member < size; ++member) {
      while (!std::filesystem::exists(of(member))) {
        if (std::chrono::steady_clock::now() >= deadline)
          return Error{Errc::kUnavailable, "rank " + std::to_string(member) + " gave nothing under " + key};
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::ifstream in(of(member), std::ios::binary);
      values.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    return values;
  };
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
