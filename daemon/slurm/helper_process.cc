#include "daemon/slurm/helper_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/unique_fd.h"
#include "daemon/slurm/messages.h"

namespace muster::slurm {
namespace {

using nlohmann::json;

constexpr size_t kMaxWaiting = 64;
constexpr size_t kMaxLogLine = 1024;

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by SIG{}", sigabbrev_np(WTERMSIG(status)));
  return fmt::format("ended with exit status {}", WEXITSTATUS(status));
}

}  // namespace

struct HelperProcess::Process {
  pid_t pid = -1;
  UniqueFd pidfd;
  UniqueFd socket;
  UniqueFd errors;         // its stderr
  std::string input;       // of an unfinished line
  std::string error_line;  // likewise
  std::string last_error;
  int status = 0;
};

HelperProcess::HelperProcess(Loop& loop, std::string path, std::chrono::milliseconds idle)
    : loop_(loop), path_(std::move(path)), idle_(idle) {}

HelperProcess::~HelperProcess() {
  *alive_ = false;
  for (const Question& question : questions_) loop_.Cancel(question.timer);
  loop_.Cancel(idle_timer_);
  Kill();
  for (const auto& process : dying_) {
    loop_.Unwatch(process->pidfd.get());
    loop_.Unwatch(process->errors.get());
    // It was killed; only one that hangs in the kernel is left to init.
    pollfd ended = {process->pidfd.get(), POLLIN, 0};
    if (::poll(&ended, 1, 1'000) == 1) ::waitpid(process->pid, nullptr, 0);
  }
}

int HelperProcess::pid() const {
  return process_ != nullptr ? process_->pid : 0;
}

void HelperProcess::Ask(json question, std::chrono::milliseconds timeout, Done done) {
  Question item;
  item.id = next_id_++;
  item.name = question.value("do", "?");
  item.timeout = timeout;
  item.done = std::move(done);
  question["v"] = kProtocol;
  question["id"] = item.id;
  item.line = question.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  const bool too_many = questions_.size() >= kMaxWaiting;
  if (too_many || item.line.size() > kMaxRequest) {
    Error error =
        too_many ? Error{Errc::kExhausted, fmt::format("{} questions to Slurm wait already", kMaxWaiting)}
                 : Error{Errc::kInvalid, "the question to Slurm is too long"};
    loop_.Post([alive = alive_, done = std::move(item.done), error = std::move(error)] {
      if (*alive) done(error);
    });
    return;
  }
  item.timer = loop_.After(timeout, [this, id = item.id] { OnDeadline(id); });
  questions_.push_back(std::move(item));
  if (next_posted_) return;
  next_posted_ = true;
  loop_.Post([this, alive = alive_] {
    if (!*alive) return;
    next_posted_ = false;
    Next();
  });
}

void HelperProcess::Next() {
  if (asked_ || questions_.empty()) return;
  loop_.Cancel(idle_timer_);
  asked_ = true;
  if (process_ == nullptr) {
    if (Status started = Start(); !started) return Finish(started.error());
  }
  const std::string& line = questions_.front().line;
  const ssize_t sent = ::send(process_->socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // It has nothing else to read: a line that does not go whole means that it is gone, which OnExit will say.
  if (sent != static_cast<ssize_t>(line.size())) ::kill(process_->pid, SIGKILL);
}

Status HelperProcess::Start() {
  const auto failed = [&](int error) {
    return Error{Errc::kUnavailable,
                 fmt::format("Slurm cannot be asked: {} cannot be started: {}", path_, std::strerror(error))};
  };
  std::array<int, 2> ends{};
  std::array<int, 2> pipe_ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return failed(errno);
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  if (::pipe2(pipe_ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return failed(errno);
  UniqueFd errors(pipe_ends[0]);
  const UniqueFd their_errors(pipe_ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, their_errors.get(), 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string program = path_;
  const std::array<char*, 2> argv = {program.data(), nullptr};
  auto process = std::make_unique<Process>();
  const int error = ::posix_spawn(&process->pid, path_.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return failed(error);
  process->pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process->pid, 0)));
  if (!process->pidfd.valid()) {
    const int why = errno;
    ::kill(process->pid, SIGKILL);
    ::waitpid(process->pid, nullptr, 0);
    return failed(why);
  }
  process->socket = std::move(ours);
  process->errors = std::move(errors);
  process_ = std::move(process);
  Process* const raw = process_.get();
  loop_.Watch(raw->socket.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
  loop_.Watch(raw->errors.get(), EPOLLIN, [this, raw](uint32_t) { OnStderr(raw); });
  loop_.Watch(raw->pidfd.get(), EPOLLIN, [this, raw](uint32_t) { OnExit(raw); });
  return {};
}

void HelperProcess::OnOutput() {
  std::array<char, 16 << 10> block;
  const ssize_t size = ::recv(process_->socket.get(), block.data(), block.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) {  // closed: OnExit says how it ended
    loop_.Unwatch(process_->socket.get());
    ::kill(process_->pid, SIGKILL);
    return;
  }
  std::string& input = process_->input;
  input.append(block.data(), static_cast<size_t>(size));
  const size_t end = input.find('\n');
  if (end == std::string::npos && input.size() <= kMaxReply) return;
  if (end != input.size() - 1 || !asked_) {
    return Fail({Errc::kInternal, "muster-slurm says something that it was not asked"});
  }
  const std::string line = std::exchange(input, {});
  OnLine(std::string_view(line).substr(0, end));
}

void HelperProcess::OnLine(std::string_view line) {
  Result<json> answer = ParseReply(line, questions_.front().id);
  // libslurm reads its configuration once: after an answer of this kind it may be that which is out of date.
  if (!answer && (answer.error().code == Errc::kUnavailable || answer.error().code == Errc::kInternal))
    Kill();
  Finish(std::move(answer));
}

void HelperProcess::OnStderr(Process* process) {
  std::array<char, 4096> block;
  const ssize_t size = ::read(process->errors.get(), block.data(), block.size());
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return loop_.Unwatch(process->errors.get());
  for (const char c : std::string_view(block.data(), static_cast<size_t>(size))) {
    if (c != '\n' && process->error_line.size() < kMaxLogLine) {
      process->error_line += c;
    } else if (c == '\n') {
      process->last_error = CleanText(std::exchange(process->error_line, {}));
      spdlog::warn("slurm: {}", process->last_error);
    }
  }
}

void HelperProcess::OnExit(Process* process) {
  OnStderr(process);
  int status = 0;
  if (::waitpid(process->pid, &status, WNOHANG) == 0) return;
  loop_.Unwatch(process->pidfd.get());
  loop_.Unwatch(process->errors.get());
  if (process != process_.get()) {
    std::erase_if(dying_, [&](const auto& other) { return other.get() == process; });
    return;
  }
  loop_.Unwatch(process_->socket.get());
  const std::unique_ptr<Process> ended = std::move(process_);
  if (!asked_) return;
  std::string message = fmt::format("Slurm cannot be asked: {} {} while it was asked '{}'", path_,
                                    HowItEnded(status), questions_.front().name);
  if (!ended->last_error.empty()) message += ": " + ended->last_error;
  Finish(Error{Errc::kUnavailable, std::move(message)});
}

void HelperProcess::OnDeadline(uint64_t id) {
  if (asked_ && questions_.front().id == id) {
    const Question& question = questions_.front();
    return Fail(
        {Errc::kUnavailable, fmt::format("Slurm has not answered '{}' within {} ms: is slurmctld running?",
                                         question.name, question.timeout.count())});
  }
  for (auto it = questions_.begin(); it != questions_.end(); ++it) {
    if (it->id != id) continue;
    const Question question = std::move(*it);
    questions_.erase(it);
    question.done(
        Error{Errc::kUnavailable, fmt::format("'{}' waited {} ms for Slurm to answer earlier questions",
                                              question.name, question.timeout.count())});
    return;
  }
}

void HelperProcess::Fail(Error error) {
  Kill();
  if (asked_) {
    Finish(std::move(error));
  } else {
    spdlog::warn("{}", error.message);
  }
}

void HelperProcess::Finish(Result<json> answer) {
  const Question question = std::move(questions_.front());
  questions_.pop_front();
  asked_ = false;
  loop_.Cancel(question.timer);
  if (questions_.empty() && process_ != nullptr) {
    idle_timer_ = loop_.After(idle_, [this] { Kill(); });
  }
  const std::shared_ptr<bool> alive = alive_;
  question.done(std::move(answer));
  if (*alive) Next();
}

void HelperProcess::Kill() {
  if (process_ == nullptr) return;
  ::kill(process_->pid, SIGKILL);
  loop_.Unwatch(process_->socket.get());
  dying_.push_back(std::move(process_));
}

}  // namespace muster::slurm
