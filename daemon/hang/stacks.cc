#include "daemon/hang/stacks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "base/helper_program.h"
#include "base/unique_fd.h"

namespace muster::hang {
namespace {

// What muster-stacks is to have done so long before the deadline, so that its last words arrive.
constexpr std::chrono::milliseconds kMargin{60};

// One question for all members of a node; lives in the loop's handlers until it is answered.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  Capture(Loop& loop, std::function<void(std::vector<MemberStacks>)> done)
      : loop_(loop), done_(std::move(done)) {}

  void Begin(const std::string& program, const std::vector<pid_t>& supervisors,
             std::chrono::milliseconds deadline, bool ask_dump) {
    for (const pid_t supervisor : supervisors) Start(program, supervisor, deadline, ask_dump);
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

  void Start(const std::string& program, pid_t supervisor, std::chrono::milliseconds deadline,
             bool ask_dump) {
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
    const auto limit = std::max(deadline - kMargin, deadline / 2);
    std::vector<std::string> words = {fmt::format("--deadline-ms={}", limit.count()),
                                      std::to_string(supervisor)};
    if (ask_dump) words.insert(words.begin(), "--ask-dump");
    const auto pid = StartHelper(program, words, {{to.get(), 1}});
    if (!pid) {
      member.stacks.error = pid.error().message;
      member.from.reset();
      return;
    }
    member.pid = *pid;
    ReapLater(loop_, member.pid);
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
    member.stacks.dump_asked = lines.find(R"("asked":[")") != std::string::npos;
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

void CaptureStacks(Loop& loop, const std::string& program, const std::vector<pid_t>& supervisors,
                   std::chrono::milliseconds deadline, bool ask_dump,
                   std::function<void(std::vector<MemberStacks>)> done) {
  std::make_shared<Capture>(loop, std::move(done))->Begin(program, supervisors, deadline, ask_dump);
}

}  // namespace muster::hang
