#include "daemon/hang/capture/kernel_side.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <string>

#include "daemon/hang/capture/observed_process.h"

namespace muster::capture {
namespace {

constexpr size_t kStackDepth = 24;

struct Call {
  long number;
  const char* name;
};

// The ones that programs wait in; of others the number is given.
constexpr std::array kCalls = {
    Call{SYS_read, "read"},
    Call{SYS_write, "write"},
    Call{SYS_readv, "readv"},
    Call{SYS_writev, "writev"},
    Call{SYS_pread64, "pread64"},
    Call{SYS_pwrite64, "pwrite64"},
    Call{SYS_openat, "openat"},
    Call{SYS_close, "close"},
    Call{SYS_fsync, "fsync"},
    Call{SYS_fdatasync, "fdatasync"},
    Call{SYS_sync, "sync"},
    Call{SYS_flock, "flock"},
    Call{SYS_fcntl, "fcntl"},
    Call{SYS_ioctl, "ioctl"},
    Call{SYS_statx, "statx"},
    Call{SYS_getdents64, "getdents64"},
    Call{SYS_renameat, "renameat"},
    Call{SYS_unlinkat, "unlinkat"},
    Call{SYS_mmap, "mmap"},
    Call{SYS_munmap, "munmap"},
    Call{SYS_futex, "futex"},
    Call{SYS_nanosleep, "nanosleep"},
    Call{SYS_clock_nanosleep, "clock_nanosleep"},
    Call{SYS_sched_yield, "sched_yield"},
    Call{SYS_ppoll, "ppoll"},
    Call{SYS_pselect6, "pselect6"},
    Call{SYS_epoll_pwait, "epoll_pwait"},
    Call{SYS_accept4, "accept4"},
    Call{SYS_connect, "connect"},
    Call{SYS_sendto, "sendto"},
    Call{SYS_sendmsg, "sendmsg"},
    Call{SYS_recvfrom, "recvfrom"},
    Call{SYS_recvmsg, "recvmsg"},
    Call{SYS_wait4, "wait4"},
    Call{SYS_waitid, "waitid"},
    Call{SYS_rt_sigtimedwait, "rt_sigtimedwait"},
    Call{SYS_rt_sigsuspend, "rt_sigsuspend"},
    Call{SYS_restart_syscall, "restart_syscall"},
    Call{SYS_io_getevents, "io_getevents"},
    Call{SYS_io_uring_enter, "io_uring_enter"},
#ifdef SYS_poll
    Call{SYS_poll, "poll"},
    Call{SYS_select, "select"},
    Call{SYS_epoll_wait, "epoll_wait"},
    Call{SYS_pause, "pause"},
    Call{SYS_open, "open"},
    Call{SYS_stat, "stat"},
    Call{SYS_rename, "rename"},
    Call{SYS_unlink, "unlink"},
#endif
};

// "" while the thread runs in user space.
std::string CallName(const std::string& text) {
  if (text.empty() || text.starts_with("running") || text.starts_with("-1")) return "";
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str()) return "";
  const auto* found =
      std::find_if(kCalls.begin(), kCalls.end(), [&](const Call& c) { return c.number == number; });
  return found != kCalls.end() ? found->name : fmt::format("call {}", number);
}

// "[<0>] futex_wait_queue+0x60/0xd0" without the address.
std::vector<std::string> Stack(const std::string& text) {
  std::vector<std::string> functions;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && functions.size() < kStackDepth;) {
    const size_t begin = line.find("] ");
    if (begin == std::string::npos) continue;
    const std::string function = line.substr(begin + 2);
    functions.push_back(function.substr(0, function.find('+')));
  }
  return functions;
}

}  // namespace

nlohmann::json KernelSide(pid_t pid, const std::vector<pid_t>& threads) {
  nlohmann::json groups = nlohmann::json::array();
  std::vector<nlohmann::json> keys;
  for (const pid_t thread : threads) {
    const std::string task = fmt::format("{}/task/{}", pid, thread);
    const auto stat = ReadStat(task);
    if (!stat) continue;
    std::string wait = ReadText("/proc/" + task + "/wchan", 256);
    if (wait == "0") wait.clear();
    nlohmann::json key = {{"state", std::string(1, stat->state)}, {"wait", wait}};
    key["call"] = CallName(ReadText("/proc/" + task + "/syscall", 256));
    key["stack"] = Stack(ReadText("/proc/" + task + "/stack", 16 * 1024));
    const auto found = std::find(keys.begin(), keys.end(), key);
    if (found != keys.end()) {
      groups[static_cast<size_t>(found - keys.begin())]["threads"].push_back(thread);
      continue;
    }
    keys.push_back(key);
    key["threads"] = {thread};
    key["name"] = stat->name;
    groups.push_back(std::move(key));
  }
  return groups;
}

}  // namespace muster::capture
