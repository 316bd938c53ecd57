#include "daemon/hang/stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/unique_fd.h"

namespace muster::hang {
namespace {

constexpr std::string_view kInstalled = "/usr/libexec/muster/muster-stacks";
// What muster-stacks is to have done so long before the deadline, so that its last words arrive.
constexpr std::chrono::milliseconds kMargin{60};

struct Spawned {
  pid_t pid = 0;
  int error = 0;
};

Spawned Spawn(const std::string& program, pid_t supervisor, std::chrono::milliseconds deadline, int out) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string limit = fmt::format("--deadline-ms={}", deadline.count());
  std::string name = program;
  std::string number = std::to_string(supervisor);
  char* arguments[] = {name.data(), limit.data(), number.data(), nullptr};
  // Nothing of musterd's environment is needed but where to look for py-spy.
  const char* path = std::getenv("PATH");
  std::string path_text = fmt::format("PATH={}", path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  char* environment[] = {path_text.data(), nullptr};
  Spawned spawned;
  spawned.error = ::posix_spawn(&spawned.pid, program.c_str(), &actions, &attributes, arguments, environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return spawned;
}

// Takes the process's status when it ends, however long after its kill that may be.
void ReapLater(Loop& loop, pid_t pid) {
  auto handle = std::make_shared<UniqueFd>(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle->valid()) return;
  loop.Watch(handle->get(), EPOLLIN, [&loop, handle, pid](uint32_t) {
    if (::waitpid(pid, nullptr, WNOHANG) == 0) return;  // not quite yet: this is called again
    loop.Unwatch(handle->get());
  });
}

// One question for all members of a node; lives in the loop's handlers until it is answered.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  Capture(Loop& loop, std::function<void(std::vector<MemberStacks>)> done)
      : loop_(loop), done_(std::move(done)) {}

  void Begin(const std::string& program, const std::vector<pid_t>& supervisors,
             std::chrono::milliseconds deadline) {
    for (const pid_t supervisor : supervisors) Start(program, supervisor, deadline);
    timer_ = loop_.After(deadline, [self = shared_from_this()] {
      self->timer_ = 0;
      self->GiveUp();
    });
    if (open_ == 0) loop_.Post([self = shared_from_this()] { self->Finish(); });
  }

 private:
  struct Member {
    MemberStacks stacks;
    pid_t pid = 0;
    UniqueFd from;
  };

  void Start(const std::string& program, pid_t supervisor, std::chrono::milliseconds deadline) {
    members_.emplace_back();
    Member& member = members_.back();
    member.stacks.supervisor = supervisor;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      member.stacks.error = fmt::format("pipe: {}", std::strerror(errno));
      return;
    }
    member.from.reset(ends[0]);
    const UniqueFd to(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    const Spawned spawned = Spawn(program, supervisor, std::max(deadline - kMargin, deadline / 2), to.get());
    if (spawned.error != 0) {
      member.stacks.error = fmt::format("{}: {}", program, std::strerror(spawned.error));
      member.from.reset();
      return;
    }
    member.pid = spawned.pid;
    ReapLater(loop_, spawned.pid);
    ++open_;
    loop_.Watch(ends[0], EPOLLIN, [self = shared_from_this(), index = members_.size() - 1](uint32_t) {
      self->Read(self->members_[index]);
    });
  }

  void Read(Member& member) {
    for (;;) {
      char part[16 * 1024];
      const ssize_t n = ::read(member.from.get(), part, sizeof part);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      std::string& lines = member.stacks.lines;
      if (n > 0) {
        lines.append(part, static_cast<size_t>(n));
        if (lines.size() <= kMaxStacks) continue;
        lines.resize(kMaxStacks);
        ::kill(member.pid, SIGKILL);
      }
      Close(member);
      if (--open_ == 0) Finish();
      return;
    }
  }

  void Close(Member& member) {
    loop_.Unwatch(member.from.get());
    member.from.reset();
    std::string& lines = member.stacks.lines;
    lines.erase(lines.rfind('\n') + 1);  // a half line is none
    member.stacks.complete = lines.find(R"("complete":true)") != std::string::npos;
    if (!member.stacks.complete && member.stacks.error.empty())
      member.stacks.error = "not all of it was ready in time";
  }

  void GiveUp() {
    for (Member& member : members_) {
      if (!member.from.valid()) continue;
      ::kill(member.pid, SIGKILL);  // not yet reaped: ReapLater runs on this thread too
      Close(member);
    }
    open_ = 0;
    Finish();
  }

  void Finish() {
    if (!done_) return;
    loop_.Cancel(timer_);
    std::vector<MemberStacks> all;
    all.reserve(members_.size());
    for (Member& member : members_) all.push_back(std::move(member.stacks));
    std::exchange(done_, nullptr)(std::move(all));
  }

  Loop& loop_;
  std::function<void(std::vector<MemberStacks>)> done_;
  std::vector<Member> members_;
  size_t open_ = 0;
  Loop::TimerId timer_ = 0;
};

}  // namespace

std::string StacksProgram() {
  char self[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  if (n > 0) {
    std::string beside(self, static_cast<size_t>(n));
    beside = beside.substr(0, beside.rfind('/')) + "/muster-stacks";
    if (::access(beside.c_str(), X_OK) == 0) return beside;
  }
  return std::string(kInstalled);
}

void CaptureStacks(Loop& loop, const std::string& program, const std::vector<pid_t>& supervisors,
                   std::chrono::milliseconds deadline, std::function<void(std::vector<MemberStacks>)> done) {
  std::make_shared<Capture>(loop, std::move(done))->Begin(program, supervisors, deadline);
}

}  // namespace muster::hang
