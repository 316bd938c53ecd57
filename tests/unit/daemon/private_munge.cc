#include "tests/unit/daemon/private_munge.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr char kSocket[] = "/run/munge/munge.socket.2";
constexpr auto kDeadline = std::chrono::seconds(60);

bool Write(const char* path, const std::string& text) {
  const UniqueFd fd(::open(path, O_WRONLY | O_CLOEXEC));
  return ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// "" or what failed.
std::string OwnMounts() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) {
    return std::string("no mount namespace of the test's own: ") + std::strerror(errno);
  }
  if (uid != 0 && (!Write("/proc/self/setgroups", "deny") ||
                   !Write("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1") ||
                   !Write("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1"))) {
    return std::string("no user namespace of the test's own: ") + std::strerror(errno);
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("muster-test", "/run", "tmpfs", 0, "mode=0755") != 0 || ::mkdir("/run/munge", 0755) != 0) {
    return std::string("cannot mount over /run: ") + std::strerror(errno);
  }
  return "";
}

bool Answers() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, kSocket, sizeof kSocket);
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

PrivateMunge::PrivateMunge() {
  problem_ = OwnMounts();
  if (!problem_.empty()) return;
  const std::string key = directory_.path() + "/munge.key";
  std::ofstream(key, std::ios::binary) << std::string(64, 'k') << ::getpid();
  ::chmod(key.c_str(), 0600);
  Start();
}

PrivateMunge::~PrivateMunge() {
  Stop();
}

void PrivateMunge::Start() {
  const auto option = [&](const char* name, const char* file) { return name + directory_.path() + file; };
  std::array<std::string, 8> words = {"munged",
                                      "--foreground",
                                      "--force",
                                      option("--key-file=", "/munge.key"),
                                      option("--log-file=", "/munged.log"),
                                      option("--pid-file=", "/munged.pid"),
                                      option("--seed-file=", "/munged.seed"),
                                      std::string("--socket=") + kSocket};
  std::array<char*, 9> arguments{};
  for (size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  daemon_ = ::fork();
  if (daemon_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) ::dup2(null, fd);
    ::execv("/usr/sbin/munged", arguments.data());
    ::_exit(127);
  }
  for (const auto end = std::chrono::steady_clock::now() + kDeadline; !Answers();) {
    const bool ended = ::waitpid(daemon_, nullptr, WNOHANG) == daemon_;
    if (ended) daemon_ = -1;
    if (ended || std::chrono::steady_clock::now() > end) {
      problem_ = ended ? "munged does not run here" : "munged does not answer";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void PrivateMunge::Stop() {
  if (daemon_ < 0) return;
  // munged does not see a signal that comes just before it waits for a connection: it is told again.
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  for (int signal = SIGTERM; ::kill(daemon_, signal) == 0 && ::waitpid(daemon_, nullptr, WNOHANG) == 0;) {
    if (std::chrono::steady_clock::now() > end) signal = SIGKILL;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  daemon_ = -1;
}

PrivateMunge& PrivateMunge::Get() {
  static PrivateMunge munge;
  return munge;
}

}  // namespace muster
