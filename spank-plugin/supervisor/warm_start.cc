#include "spank-plugin/supervisor/warm_start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "spank-plugin/supervisor/passed_memory.h"
#include "spank-plugin/supervisor/process_facts.h"
#include "spank-plugin/supervisor/supervisor_message.h"
#include "wire/gang_options.h"

namespace muster::supervisor {
namespace {

constexpr uint32_t kMaxBytes = 16 * 1024 * 1024;

const char* NameIn(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

}  // namespace

void WarmStart::Open(const Identity& identity, const WarmSettings& settings, const char* const* arguments,
                     int proc_fd, const char* never) {
  wire::GangOptions options;
  char error[wire::kMaxOptionError];
  if (!wire::ParseGangOptions(identity.options, strlen(identity.options), &options, error, sizeof(error)) ||
      !options.warm)
    return;
  settings_ = settings;
  slurm_arguments_ = arguments;
  never_ = options.files ? "files=yes: its directory is made for each program anew" : never;
  proc_fd_ = proc_fd;
  uint64_t number[2] = {};
  if (getrandom(number, sizeof(number), GRND_NONBLOCK) != sizeof(number)) return;
  snprintf(name_, sizeof(name_), "muster-warm-%016llx%016llx", static_cast<unsigned long long>(number[0]),
           static_cast<unsigned long long>(number[1]));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name_, strlen(name_));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + strlen(name_));
  listener_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  constexpr int kBacklog = 16;
  on_ = listener_.valid() && bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
        listen(listener_.get(), kBacklog) == 0;
  if (!on_) listener_.reset();
}

void WarmStart::InChild(const Host& host) const {
  if (!on_) return;
  host.set_environment(host.context, wire::kWarmVariable, name_);
  if (settings_.nice_raised) {
    const rlimit before = {settings_.nice_soft, settings_.nice_hard};
    setrlimit(RLIMIT_NICE, &before);
  }
}

void WarmStart::Forked(pid_t program, uint64_t generation, const EnvironmentBlock& environment) {
  if (!on_) return;
  Kill();
  SetCold(generation);
  connection_.reset();
  program_ = program;
  generation_ = generation;
  known_ = gets_on_ = replaced_ = made_ = false;
  executed_ = {};
  reason_[0] = '\0';
  look_.Clear();
  if (!last_.Copy(environment)) Refuse("there is no memory");
}

// Why a generation after the first starts cold; the reason is about the time before it.
void WarmStart::SetCold(uint64_t generation) {
  if (generation_ == 0 && reason_[0] == '\0') return;
  char importing[160] = "";
  if (reason_[0] == '\0') {
    if (!known_ && replaced_) {
      snprintf(reason_, sizeof(reason_),
               "the program is no Python, but starts one: warm starts need it in Python's place");
    } else if (!known_) {
      snprintf(reason_, sizeof(reason_),
               "the program is no Python that reads muster-warm.pth (another program, or python -I -S, or an "
               "environment without it)");
    } else if (made_) {
      LastImport(importing, sizeof(importing));
      snprintf(reason_, sizeof(reason_), "its standby was not ready yet%s%s",
               importing[0] != '\0' ? ": it was importing " : "", importing);
    } else {
      snprintf(reason_, sizeof(reason_), "the program had not got on for long enough to make a standby");
    }
  }
  Tell(&start_news_, generation, wire::WarmState::kCold, reason_);
}

void WarmStart::Executed() {
  if (!on_) return;
  char path[32];
  snprintf(path, sizeof(path), "%d/exe", program_);
  if (fstatat(proc_fd_, path, &executed_, 0) != 0) executed_ = {};
}

void WarmStart::OnListener() {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (!fd.valid() || getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  const bool standby = standby_ > 0 && peer.pid == standby_ && !going_;
  const bool program = peer.pid == program_ && !known_ && standby_ == 0;
  if (!standby && !program) {
    replaced_ = true;
    return;
  }
  if (connection_.valid()) return;
  connection_ = static_cast<UniqueFd&&>(fd);
  of_standby_ = standby;
}

void WarmStart::OnConnection() {
  char packet[sizeof(wire::WarmHello) + wire::kMaxWarmText];
  Taken taken = Take(connection_.get(), packet, sizeof(packet));
  if (taken.size < 0) return;
  if (taken.size == 0) return connection_.reset();  // how a standby has ended, Gone is told
  uint32_t kind = 0;
  if (taken.size >= static_cast<ssize_t>(sizeof(kind))) memcpy(&kind, packet, sizeof(kind));
  switch (static_cast<wire::WarmKind>(kind)) {
    case wire::WarmKind::kHello:
      TakeHello(packet, static_cast<size_t>(taken.size), static_cast<UniqueFd&&>(taken.fds[0]),
                static_cast<UniqueFd&&>(taken.fds[1]));
      return;
    case wire::WarmKind::kReady:
      if (!of_standby_ || ready_ || !standby_imports_.valid()) break;
      ready_ = true;
      Tell(&standby_news_, generation_, wire::WarmState::kReady, "");
      return;
    case wire::WarmKind::kStarted:
      if (!going_) break;
      going_ = false;
      started_ = true;
      standby_ = 0;
      answer_.Clear();
      connection_.reset();
      return;
    case wire::WarmKind::kUnfit: {
      const auto size = static_cast<int>(taken.size - static_cast<ssize_t>(sizeof(kind)));
      if (of_standby_) Refuse("%.*s", size, packet + sizeof(kind));
      break;
    }
    default:
      break;
  }
  // Whatever it was, it is of no use.
  if (of_standby_) {
    Kill();
  } else {
    connection_.reset();
  }
}

void WarmStart::TakeHello(const char* packet, size_t size, UniqueFd start, UniqueFd imports) {
  wire::WarmHello hello{};
  if (size != sizeof(hello) || !start.valid() || !imports.valid()) return connection_.reset();
  memcpy(&hello, packet, sizeof(hello));
  if (of_standby_) {
    wire::WarmKind answer[2] = {wire::WarmKind::kLearned, static_cast<wire::WarmKind>(world_at_)};
    const int fds[] = {start_.get(), imports_.get()};
    standby_imports_ = static_cast<UniqueFd&&>(imports);
    if (!SendWith(connection_.get(), answer, sizeof(answer), fds, 2)) Kill();
    return;
  }
  connection_.reset();
  const uint64_t all = uint64_t{hello.interpreter_bytes} + hello.directory_bytes + hello.argument_bytes +
                       hello.environment_bytes + hello.world_bytes;
  if (all > kMaxBytes || hello.interpreter_bytes > sizeof(interpreter_) ||
      hello.directory_bytes > sizeof(directory_) || hello.interpreter_bytes == 0 ||
      hello.directory_bytes == 0)
    return;
  char* bytes = ReadMemory(start.get(), 0, all);
  if (bytes == nullptr) return;
  const char* directory = bytes + hello.interpreter_bytes;
  const char* arguments = directory + hello.directory_bytes;
  const char* environment = arguments + hello.argument_bytes;
  const char* world = environment + hello.environment_bytes;
  const bool whole = directory[-1] == '\0' && arguments[-1] == '\0' && hello.argument_bytes > 0 &&
                     environment[-1] == '\0' &&
                     (hello.environment_bytes == 0 || IsEnvironment(environment, hello.environment_bytes));
  if (whole && arguments_.Assign(arguments, hello.argument_bytes) &&
      environment_.Assign(environment, hello.environment_bytes)) {
    memcpy(interpreter_, bytes, hello.interpreter_bytes);
    memcpy(directory_, directory, hello.directory_bytes);
    world_at_ = static_cast<uint32_t>(world - bytes);
    start_ = static_cast<UniqueFd&&>(start);
    imports_ = static_cast<UniqueFd&&>(imports);
    known_ = true;
    imported_ = 0;
    imported_ms_ = MonotonicMs();
    look_.Set(gets_on_ ? imported_ms_ : imported_ms_ + kLookMs);
    if (never_ != nullptr) Refuse("%s", never_);
    const char* variable = environment_.Find(wire::kWarmVariable, strlen(wire::kWarmVariable));
    const bool same = IsProgramOfSlurm(variable != nullptr ? strstr(variable, wire::kWarmRun) : nullptr);
    environment_.Unset(wire::kWarmVariable, strlen(wire::kWarmVariable));
    if (!same) {
      Refuse(
          "Python is not what Slurm executes: it is started by a script or another program, which would not "
          "run again");
    }
    for (const char* entry = last_.Next(nullptr); entry != nullptr; entry = last_.Next(entry)) {
      const EnvironmentEntry wanted = EntryOf(entry);
      const char* value = environment_.Find(entry, wanted.key_size);
      if (wanted.kind == EnvironmentEntry::Kind::kSet &&
          (value == nullptr || strcmp(value, wanted.value) != 0)) {
        Refuse("%.*s has another value than Muster's: a TaskProlog or another plugin sets it",
               static_cast<int>(wanted.key_size < 64 ? wanted.key_size : 64), entry);
        break;
      }
    }
  }
  free(bytes);
}

// Whether nothing has run in the program's place before Python: Slurm has executed it, or muster-run, which says so in `run`.
bool WarmStart::IsProgramOfSlurm(const char* run) const {
  auto device = static_cast<unsigned long long>(executed_.st_dev);
  auto inode = static_cast<unsigned long long>(executed_.st_ino);
  if (run != nullptr && sscanf(run + strlen(wire::kWarmRun), "%llu:%llu", &device, &inode) != 2) return false;
  struct stat now {};
  char path[32];
  snprintf(path, sizeof(path), "%d/exe", program_);
  if (fstatat(proc_fd_, path, &now, 0) != 0 || now.st_dev != device || now.st_ino != inode) return false;
  if (slurm_arguments_ == nullptr) return true;
  return run != nullptr ? SameArgumentsAfterRun() : SameArguments();
}

bool WarmStart::SameArguments() const {
  size_t i = 0;
  for (size_t at = 0; at < arguments_.size(); at += strlen(arguments_.bytes() + at) + 1, ++i) {
    const char* wanted = slurm_arguments_[i];
    const char* argument = arguments_.bytes() + at;
    if (wanted == nullptr) return false;
    // Slurm looks for the program in PATH.
    if (i == 0 ? strcmp(NameIn(wanted), NameIn(argument)) != 0 : strcmp(wanted, argument) != 0) return false;
  }
  return slurm_arguments_[i] == nullptr;
}

// Of "muster-run [flags] train.py ..." comes "python3 -u train.py ...", of "muster-run [flags] -m train ..." "python3 -u -m train ...".
bool WarmStart::SameArgumentsAfterRun() const {
  if (slurm_arguments_[0] == nullptr || strcmp(NameIn(slurm_arguments_[0]), "muster-run") != 0) return false;
  const char* end = arguments_.bytes() + arguments_.size();
  const auto next = [end](const char* argument) {
    return argument < end ? argument + strlen(argument) + 1 : end;
  };
  const char* program = next(arguments_.bytes());
  if (program == end || strcmp(program, "-u") != 0) return false;
  program = next(program);
  if (program != end && strcmp(program, "-m") == 0) program = next(program);
  size_t left = 0;
  for (const char* argument = program; argument != end; argument = next(argument)) ++left;
  size_t count = 0;
  while (slurm_arguments_[count] != nullptr) ++count;
  if (left == 0 || left >= count) return false;
  const char* const* wanted = slurm_arguments_ + (count - left);
  for (; program != end; program = next(program), ++wanted) {
    if (strcmp(*wanted, program) != 0) return false;
  }
  return true;
}

// ---- what musterd is told

void WarmStart::Refuse(const char* format, ...) {
  if (reason_[0] != '\0') return;  // the first one is the cause of what comes behind
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason_, sizeof(reason_), format, arguments);
  va_end(arguments);
  Tell(&standby_news_, generation_, wire::WarmState::kUnfit, reason_);
}

void WarmStart::Tell(News* news, uint64_t generation, wire::WarmState state, const char* text) {
  news->due = true;
  news->generation = generation;
  news->state = state;
  snprintf(news->text, sizeof(news->text), "%s", text);
}

Sent WarmStart::Send(int socket, News* news) {
  wire::Warm body{};
  body.generation = news->generation;
  body.state = static_cast<uint32_t>(news->state);
  body.text_bytes = static_cast<uint32_t>(strlen(news->text));
  wire::SetHeader(&body, wire::Type::kWarm, body.text_bytes);
  const iovec parts[] = {{&body, sizeof(body)}, {news->text, body.text_bytes}};
  const Sent sent = SendPacket(socket, parts, 2);
  if (sent == Sent::kWhole) news->due = false;
  return sent;
}

Sent WarmStart::Report(int socket) {
  for (News* news : {&start_news_, &standby_news_}) {
    if (!news->due) continue;
    const Sent sent = Send(socket, news);
    if (sent != Sent::kWhole) return sent;
  }
  return Sent::kWhole;
}

}  // namespace muster::supervisor
