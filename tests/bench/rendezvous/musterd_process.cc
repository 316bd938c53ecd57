#include "tests/bench/rendezvous/musterd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);

bool Accepts(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

MusterdProcess::MusterdProcess(const std::string& program, const std::string& directory,
                               const std::string& name, uint16_t port)
    : log_(directory + "/musterd.log") {
  const std::string config = directory + "/muster.yaml";
  std::ofstream(config) << fmt::format(
      "cluster: bench\nnode_name: {}\nport: {}\nlisten_address: 127.0.0.1\nstore: dir:{}/store\nsocket: "
      "{}/musterd.sock\n"
      "state_dir: {}/gangs\n"
      // The simulated nodes send no beats.
      "silence: 10m\n"
      // Nor do they save anything; and a port less is in use.
      "partner_memory: 0\n",
      name, port, directory, directory, directory);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, 0);
    ::dup2(log, 1);
    ::dup2(log, 2);
    ::execl(program.c_str(), program.c_str(), "--config", config.c_str(), nullptr);
    ::_exit(127);
  }
  for (const auto end = std::chrono::steady_clock::now() + kDeadline; !Accepts(port);) {
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_ || std::chrono::steady_clock::now() > end) {
      std::stringstream text;
      text << std::ifstream(log_).rdbuf();
      std::fprintf(stderr, "rendezvous_bench: musterd does not come up:\n%s\n", text.str().c_str());
      ::kill(pid_, SIGKILL);
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

MusterdProcess::~MusterdProcess() {
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

double MusterdProcess::PeakRssMb() const {
  std::ifstream status(fmt::format("/proc/{}/status", pid_));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  }
  return 0;
}

double MusterdProcess::CpuSeconds() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace muster
