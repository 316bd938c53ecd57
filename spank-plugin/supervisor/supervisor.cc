#include "spank-plugin/supervisor/supervisor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "spank-plugin/supervisor/anchors.h"
#include "spank-plugin/supervisor/launcher.h"

namespace muster::supervisor {
namespace {

constexpr int64_t kRescanMs = 20;
constexpr int64_t kSlowRescanMs = 500;  // for what SIGKILL has not removed in time
constexpr uint32_t kMaxEnvironment = 16 * 1024 * 1024;
constexpr int kFlushMs = 5000;

}  // namespace

void Supervisor::Prepare() {
  sigemptyset(&held_);
  const int keep[] = {socket_.get()};
  ReleaseInherited(settings_.proc_fd, keep, 1);
  const char* failed = nullptr;
  if (!stderr_.Open(STDERR_FILENO) || packet_ == nullptr) {
    failed = "memory";
  } else if (!signals_.Open()) {
    failed = "signalfd";
  } else if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    failed = "PR_SET_CHILD_SUBREAPER";
  } else if (!children_.Open(settings_.proc_fd)) {
    failed = "/proc/thread-self/children (a kernel with CONFIG_PROC_CHILDREN is needed)";
  }
  if (failed != nullptr) {
    dprintf(STDERR_FILENO, "muster: cannot supervise this task: %s: %s\n", failed, strerror(errno));
    _exit(1);
  }
  prctl(PR_SET_NAME, "muster");
  terminal_.Open();
  oom_.Open(settings_.proc_fd, settings_.cgroups_fd);
  warm_.Open(settings_.identity, settings_.warm, settings_.arguments, settings_.proc_fd,
             terminal_.valid() ? "the task has a terminal (srun --pty)" : nullptr);
}

// ---- what musterd says

bool Supervisor::TakeMessage(const Message& message, UniqueFd fd) {
  switch (message.type) {
    case wire::Type::kWelcome:
      OnWelcome(message.welcome);
      break;
    case wire::Type::kStart:
      return OnStart(message.start, static_cast<UniqueFd&&>(fd));
    case wire::Type::kTestLinks:
      if (state_ == wire::MemberState::kWaiting && !sweeping_ && !leaving_ && !terminated_)
        links_.Start(message.test_links, fd.get(), host_, settings_.root_fd);
      break;
    case wire::Type::kStop:
      OnStop(message.stop);
      break;
    case wire::Type::kFinish:
      OnFinish(message.finish);
      break;
    case wire::Type::kGetsOn:
      if (MayMakeStandby()) warm_.GetsOn(message.gets_on.generation, signals_);
      break;
    case wire::Type::kBeat:
      if (message.beat.leased != 0) fence_at_.Clear();
      break;
    case wire::Type::kBeatPage:
      OnBeatPage(fd);
      break;
    case wire::Type::kReport:
      stderr_.Append(message.text, message.text_size);
      break;
    case wire::Type::kRefused:
      OnRefused(message);
      break;
    default:
      break;
  }
  return false;
}

void Supervisor::OnWelcome(const wire::Welcome& welcome) {
  memcpy(token_, welcome.token, sizeof(token_));
  lease_ms_ = welcome.lease_ms;
  reconnect_ms_ = welcome.reconnect_ms;
  unkillable_ms_ = welcome.unkillable_ms;
  known_ = true;
  welcomed_ = true;
  disconnected_ = false;
  welcome_.Clear();
  // The musterd that is back may go again before it has a lease, and another, as in a crash loop: the time without one goes on.
  if (lease_ms_ == 0) fence_at_.Clear();
  give_up_.Clear();
  Heard(MonotonicMs());
  // The hello has told a death that happened meanwhile; its circumstances are in this message.
  if (state_ == wire::MemberState::kExited) exited_due_ = true;
  if (signalled_ != 0) signalled_due_ = true;
}

bool Supervisor::OnStart(const wire::Start& start, UniqueFd environment) {
  const bool idle = state_ == wire::MemberState::kWaiting || state_ == wire::MemberState::kStopped;
  if (!idle || sweeping_ || leaving_ || terminated_ || start.generation <= generation_) {
    Log("generation %llu is not started: generation %llu is in state %u, terminated %d",
        static_cast<unsigned long long>(start.generation), static_cast<unsigned long long>(generation_),
        static_cast<unsigned>(state_), terminated_ ? 1 : 0);
    return false;
  }
  generation_ = start.generation;
  executed_ = executed_due_ = exited_due_ = exiting_due_ = stopped_due_ = false;
  fencing_ = oom_killed_ = dumping_ = false;
  last_words_.took_ms = 0;
  wait_status_ = 0;
  tail_size_ = 0;
  unkillable_ = 0;
  oom_.Advanced();
  links_.End();
  if (first_) NameLauncher();

  EnvironmentBlock block;
  if (start.environment_bytes <= kMaxEnvironment && block.Read(environment.get(), start.environment_bytes)) {
    environment.reset();
    if (first_) NameOwn(block);
    return !StartWarm(block) && StartCold(block);
  }
  Say("cannot start the program: the environment that musterd sent is not readable");
  state_ = wire::MemberState::kRunning;
  OnMemberEnd(0, kCannotStart << 8);
  return false;
}

// Once for all tasks. It is a piece of advice: the gang runs as it is.
void Supervisor::NameLauncher() {
  const Launcher launcher = LauncherIn(settings_.arguments);
  if (launcher.name == nullptr || settings_.identity.hello.task_id != 0) return;
  char tasks[16] = "N";
  if (launcher.processes > 0) snprintf(tasks, sizeof(tasks), "%u", launcher.processes);
  Say("%s starts processes that Muster does not know, and checkpoints do not work for: write muster-run in "
      "its place, and #SBATCH --ntasks-per-node=%s for the %s processes of a node",
      launcher.name, tasks, tasks);
}

// Names the variables that the user has set and that Muster would set to something else. The first task's supervisor does so for all.
void Supervisor::NameOwn(const EnvironmentBlock& block) {
  if (host_.get_environment == nullptr || settings_.identity.hello.task_id != 0) return;
  for (const char* entry = block.Next(nullptr); entry != nullptr; entry = block.Next(entry)) {
    const EnvironmentEntry given = EntryOf(entry);
    char key[128];
    char own[512];
    if (given.kind != EnvironmentEntry::Kind::kDefault || given.key_size >= sizeof(key)) continue;
    memcpy(key, entry, given.key_size);
    key[given.key_size] = '\0';
    if (host_.get_environment(host_.context, key, own, sizeof(own)) && strcmp(own, given.value) != 0)
      Say("%s=%s is yours, and stays; Muster's is %s (muster net env)", key, own, given.value);
  }
}

bool Supervisor::StartCold(const EnvironmentBlock& block) {
  Forked forked;
  if (files_.Start(block, host_, settings_.identity, settings_.root_fd))
    forked = ForkMember(signals_, terminal_, block, host_, stderr_.NewPipe());
  if (forked.pid == 0) {
    warm_.InChild(host_);
    files_.AwaitDirectory(host_);
    (void)forked.exec_pipe.release();  // the exec closes it
    return true;
  }
  if (forked.pid < 0) {
    Say("cannot start the program: %s", strerror(errno));
    state_ = wire::MemberState::kRunning;
    OnMemberEnd(0, kCannotStart << 8);
    return false;
  }
  child_ = forked.pid;
  warm_.Forked(child_, generation_, block);
  files_.Forked();
  exec_pipe_ = static_cast<UniqueFd&&>(forked.exec_pipe);
  state_ = wire::MemberState::kRunning;
  if (first_) ReleaseStdin();
  first_ = false;
  return false;
}

void Supervisor::OnStop(const wire::Stop& stop) {
  if (stop.generation < generation_) return;  // of a generation that has ended long since
  stop_asked_ = true;
  stop_generation_ = stop.generation;
  if (sweeping_) exiting_at_.Set(MonotonicMs() + settings_.exiting_ms);  // each order gets its answer
  if (!BeginLastWords(stop)) Sweep();
}

void Supervisor::OnFinish(const wire::Finish& finish) {
  finish_ = finish;
  leaving_ = true;
  // The last generation's core may be written to the end: nobody waits for its processes to go.
  if (!dumping_) Sweep();
}

// One that is of no use is not spoken of: beats go on then.
void Supervisor::OnBeatPage(const UniqueFd& memory) {
  beat_page_due_ = beats_.Open(memory);
}

void Supervisor::OnRefused(const Message& message) {
  Say("%.*s", static_cast<int>(message.text_size), message.text);
  finish_.as = static_cast<uint32_t>(wire::FinishAs::kCode);
  finish_.code = 1;
  leaving_ = true;
  Sweep();
}

// ---- the program

void Supervisor::OnExecPipe() {
  exec_pipe_.reset();
  // The pipe's end is the exec, or a death before it (TaskProlog failed, no such program).
  if (child_ <= 0 || !HasExecuted(settings_.proc_fd, child_)) return;
  warm_.Executed();
  OnExecuted();
}

void Supervisor::OnExecuted() {
  executed_ns_ = RealtimeNs();
  executed_ = executed_due_ = true;
  if (MayDumpCore(settings_.proc_fd, child_)) core_poll_.Set(MonotonicMs() + settings_.core_poll_ms);
  ForwardHeld();
}

void Supervisor::LookForCoreDump() {
  core_poll_.Clear();
  if (!ProgramRuns() || sweeping_) return;
  const int wait_status = CoreDumpStatus(settings_.proc_fd, child_);
  if (wait_status == 0) {
    core_poll_.Set(MonotonicMs() + settings_.core_poll_ms);
    return;
  }
  program_ = NameOf(settings_.proc_fd, child_);
  dumping_ = true;
  OnMemberEnd(child_, wait_status);
}

// Takes every dead child away. Called on SIGCHLD and while sweeping.
void Supervisor::Reap() {
  bool reaped = false;
  for (;;) {
    siginfo_t info{};
    // The dead are looked at before they are reaped: as zombies they still have their facts in /proc.
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0) {
      if (errno == EINTR) continue;
      if (Stopping()) OnSwept();  // ECHILD: no descendant is left
      break;
    }
    if (info.si_pid == 0) {
      // The parents are gone; those whom they had forked are this process's children now.
      if (Stopping() && Spared() != 0 && children_.Count(Spared()) == 0) {
        OnSwept();
      } else if (sweeping_ && reaped) {
        children_.Kill(Spared());
      }
      break;
    }
    const bool failed = info.si_pid == warm_.becoming();
    const bool member = info.si_pid == child_ && !failed;
    if (member) {
      if (exec_pipe_.valid()) OnExecPipe();
      program_ = NameOf(settings_.proc_fd, child_);
    }
    int wait_status = 0;
    if (waitpid(info.si_pid, &wait_status, __WALL) != info.si_pid) continue;
    reaped = true;
    if (info.si_pid == files_.pid()) OnFilesEnd(wait_status);
    if (info.si_pid == links_.pid()) links_.Ended(wait_status);
    if (info.si_pid == warm_.pid()) {
      // Its death is no fault, and no word about the program's memory.
      warm_.Gone(info.si_pid, wait_status);
      if (WIFSIGNALED(wait_status)) oom_.Advanced();
    }
    if (failed) warm_.Gone(info.si_pid, wait_status);
    if (!member) continue;
    child_ = 0;
    if (!BeginDrain(info.si_pid, wait_status)) OnMemberEnd(info.si_pid, wait_status);
  }
  if (leaving_ && !sweeping_ && !dumping_) Sweep();
}

// The program has ended (or cannot be started, or is a mere core dump by now).
void Supervisor::OnMemberEnd(pid_t pid, int wait_status) {
  if (dumping_ && child_ == 0) {  // the dump is finished; the death was reported when it began
    dumping_ = false;
    wait_status_ = wait_status;
    return;
  }
  // Such an end stands for the SIGKILL that it spares.
  if (last_words_.end.IsSet()) wait_status = SIGKILL;
  exited_ns_ = RealtimeNs();
  exited_pid_ = pid;
  wait_status_ = wait_status;
  state_ = wire::MemberState::kExited;
  core_poll_.Clear();
  stderr_.Drain();
  tail_size_ = stderr_.Tail(tail_);
  const bool killed = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
  oom_killed_ = oom_.Advanced() && killed;
  // A death that musterd has ordered is no news; one that came before the order reached the program is.
  exited_due_ = !(killed && Stopping() && !fencing_);
  // musterd may have a last word on how this task is to end.
  // Where SIGTERM may be the job's own warning the others may save for long, and no SIGKILL follows.
  if (terminated_ && settings_.warn_signal != SIGTERM) leave_at_.Set(MonotonicMs() + settings_.leave_ms);
}

// Kills on the supervisor's own decision, because musterd has not been heard for too long.
void Supervisor::Fence(const char* why) {
  if (state_ != wire::MemberState::kRunning && state_ != wire::MemberState::kExited) return;
  Say("%s: the program of generation %llu is killed on this node", why,
      static_cast<unsigned long long>(generation_));
  Log("%s: generation %llu is killed", why, static_cast<unsigned long long>(generation_));
  fencing_ = true;
  Sweep();
}

// Kills everything that descends from this process; comes back from Reap until nothing is left. Each death
// makes the orphans this process's own children, so its own children are all that need be looked at, and no
// pid that it has not reaped can have gone to another process. A child that SIGKILL does not end keeps its own
// children; OnTimers kills those whenever rescan_ has passed.
void Supervisor::Sweep() {
  // Whoever is fenced cannot save any more, and has not ended well then.
  EndDrain(fencing_ ? SIGKILL : 0);
  EndLastWords();
  const int64_t now = MonotonicMs();
  // A stop that is ordered again while something is still there gets a new answer, and a new count.
  if (!sweeping_ || (stop_asked_ && !sweep_end_.IsSet())) BeginWatch(now);
  sweeping_ = true;
  if (child_ > 0 && !terminal_.valid()) kill(-child_, SIGKILL);
  warm_.Cancel();
  children_.Kill(Spared());
  // SIGCHLD tells what goes; this is for a child that the kernel's list has missed.
  rescan_.Set(now + (sweep_end_.IsSet() ? kRescanMs : kSlowRescanMs));
  // A process of hundreds of GB is not stuck because the kernel frees its memory for half a minute.
  if (sweep_end_.IsSet() && watch_.LookDue(now)) {
    watch_.Look(children_.Look(settings_.proc_fd, Spared()), now);
    sweep_end_.Set(watch_.stuck_at());
  }
  Reap();
}

void Supervisor::BeginWatch(int64_t now) {
  watch_.Begin(now, unkillable_ms_);
  sweep_end_.Set(watch_.stuck_at());
  exiting_at_.Set(now + settings_.exiting_ms);
}

void Supervisor::Rescan(int64_t now) {
  const KillPass pass = children_.KillBelow(settings_.proc_fd, Spared());
  if (stop_asked_ && exiting_at_.Passed(now) && pass.all_exit && pass == last_pass_) {
    exiting_at_.Clear();
    exiting_due_ = true;
  }
  last_pass_ = pass;
  Sweep();
}

void Supervisor::OnSwept() {
  EndLastWords();
  sweeping_ = exiting_due_ = false;
  sweep_end_.Clear();
  rescan_.Clear();
  stderr_.Drain();
  exec_pipe_.reset();
  if (state_ != wire::MemberState::kWaiting) state_ = wire::MemberState::kStopped;
  unkillable_ = 0;
  if (stop_asked_) stopped_due_ = true;
  stop_asked_ = false;
  if (leaving_) Leave();
}

// ---- what musterd is told

void Supervisor::Report() {
  const auto put = [this](bool* due, Sent sent) {
    if (sent == Sent::kWhole) *due = false;
    // Where musterd has gone its last words are still to be read: ReadSocket finds the end behind them.
    if (sent != Sent::kWhole) blocked_ = true;
    return sent == Sent::kWhole;
  };
  if (!welcomed_ || blocked_) return;
  if (beat_page_due_ &&
      !put(&beat_page_due_, SendBody(socket_.get(), wire::BeatPageHandover{}, wire::Type::kBeatPageRead)))
    return;
  if (warm_.due() && warm_.Report(socket_.get()) != Sent::kWhole) {
    blocked_ = true;
    return;
  }
  if (executed_due_) {
    wire::Executed body{};
    body.generation = generation_;
    body.realtime_ns = executed_ns_;
    body.pid = child_ > 0 ? child_ : exited_pid_;
    if (!put(&executed_due_, SendBody(socket_.get(), body, wire::Type::kExecuted))) return;
  }
  if (exited_due_) {
    wire::Exited body{};
    body.generation = generation_;
    body.realtime_ns = exited_ns_;
    body.pid = exited_pid_;
    body.wait_status = wait_status_;
    body.oom_killed = oom_killed_ ? 1 : 0;
    body.program_bytes = static_cast<uint32_t>(strlen(program_.text));
    body.stderr_bytes = static_cast<uint32_t>(tail_size_);
    wire::SetHeader(&body, wire::Type::kExited, size_t{body.program_bytes} + body.stderr_bytes);
    const iovec parts[] = {
        {&body, sizeof(body)}, {program_.text, body.program_bytes}, {tail_, body.stderr_bytes}};
    if (!put(&exited_due_, SendPacket(socket_.get(), parts, 3))) return;
  }
  if (links_.answer_due() && links_.Answer(socket_.get()) != Sent::kWhole) {
    blocked_ = true;
    return;
  }
  if (signalled_due_) {
    wire::Signalled body{};
    body.signal = static_cast<uint32_t>(signalled_);
    body.warn_seconds = signalled_ == settings_.warn_signal ? settings_.warn_seconds : 0;
    if (!put(&signalled_due_, SendBody(socket_.get(), body, wire::Type::kSignalled))) return;
  }
  if (exiting_due_) {
    wire::Exiting body{};
    body.generation = stop_generation_;
    if (!put(&exiting_due_, SendBody(socket_.get(), body, wire::Type::kExiting))) return;
  }
  if (stopped_due_) {
    wire::Stopped body{};
    body.generation = stop_generation_;
    body.realtime_ns = RealtimeNs();
    body.unkillable = unkillable_;
    body.last_words_ms = last_words_.took_ms;
    put(&stopped_due_, SendBody(socket_.get(), body, wire::Type::kStopped));
  }
}

void Supervisor::Say(const char* format, ...) {
  char text[2048] = "muster: ";
  constexpr size_t kAt = 8;
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(text + kAt, sizeof(text) - kAt - 1, format, arguments);
  va_end(arguments);
  size_t end = kAt + (size > 0 ? static_cast<size_t>(size) : 0);
  if (end > sizeof(text) - 2) end = sizeof(text) - 2;
  text[end++] = '\n';
  stderr_.Append(text, end);
}

void Supervisor::Log(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  host_.log(host_.context, text);
}

void Supervisor::Leave() {
  Report();
  files_.Remove(settings_.root_fd, settings_.remove_ms);
  stderr_.Flush(kFlushMs);
  int code = 0;
  switch (static_cast<wire::FinishAs>(finish_.as)) {
    case wire::FinishAs::kZero:
      break;
    case wire::FinishAs::kCode:
      code = static_cast<int>(finish_.code);
      break;
    case wire::FinishAs::kOwnStatus: {
      const int signal = gone_by_term_ ? SIGTERM : WIFSIGNALED(wait_status_) ? WTERMSIG(wait_status_) : 0;
      if (signal != 0) RaiseAsDefault(signal);
      code = signal != 0 ? 128 + signal : WEXITSTATUS(wait_status_);
    }
  }
  _exit(code);
}

}  // namespace muster::supervisor
