#include "daemon/beat/thread.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

namespace muster {
namespace {

constexpr size_t kReserved = 16'384;  // sends at once: an announcement to 4,096 nodes, and room
constexpr int kMostBatches = 64;      // read between two looks at the clock
constexpr lease::Nanos kLongestWait = 200 * lease::kMillisecond;

}  // namespace

BeatThread::BeatThread(BeatOptions options, std::unique_ptr<StateFile> state)
    : options_(std::move(options)),
      clock_(*options_.clock),
      socket_(*options_.socket),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      state_(std::move(state)),
      port_(socket_.port()),
      last_alive_(state_->last_alive()),
      loop_alive_(clock_.Now()),
      looked_(loop_alive_) {
  if (!wake_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
  output_.sends.reserve(kReserved);
  output_.events.reserve(kReserved);
  here_.reserve(256);
  agents_.reserve(64);
  leads_.reserve(64);
}

BeatThread::~BeatThread() {
  Stop();
}

void BeatThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void BeatThread::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  Do([](BeatThread&) {});
  thread_.join();
}

void BeatThread::Do(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void BeatThread::LoopAlive() {
  loop_alive_ = clock_.Now();
}

// Counts only time in which this thread looks: when the whole process was stopped, the loop is not to blame.
bool BeatThread::Stalled(lease::Nanos now) {
  const lease::Nanos alive = loop_alive_;
  still_ = alive == seen_alive_ ? still_ + std::min(now - looked_, 2 * kLongestWait) : 0;
  seen_alive_ = alive;
  looked_ = now;
  return still_ > options_.loop_stall_ms * lease::kMillisecond;
}

// Above all that is not time-critical, so that a busy host's beats still go out in time.
void BeatThread::RaisePriority() const {
  sched_param parameters{};
  parameters.sched_priority = 1;
  if (::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &parameters) == 0) return;
  const int refused = errno;
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), -20) == 0) return;
  spdlog::warn(
      "beats are not sent with priority (real time: {}; nice: {}): on a starved host this node may look dead",
      std::strerror(refused), std::strerror(errno));
}

void BeatThread::Run() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "musterd-beat");
  RaisePriority();
  while (!stopping_) {
    const lease::Nanos before = clock_.Now();
    const lease::Nanos wait = std::clamp(NextDeadline(before) - before, lease::Nanos{0}, kLongestWait);
    std::array<pollfd, 2> polled{pollfd{socket_.fd(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
    clock_.Wait(polled, wait);
    const lease::Nanos now = clock_.Now();
    state_->Alive(now);
    if (put_off_ || (polled[1].revents & POLLIN) != 0) RunCommands();
    const bool stalled = Stalled(now);
    if (stalled != was_stalled_) {
      was_stalled_ = stalled;
      if (stalled) {
        spdlog::error("the main loop has stood still for {} ms: no more beats", options_.loop_stall_ms);
        if (options_.stalled) options_.stalled();
      }
      if (!stalled) spdlog::warn("the main loop goes on, and so do beats");
    }
    if ((polled[0].revents & POLLIN) != 0) ReadSocket(stalled);
    if (!stalled) TickAll(clock_.Now());
    DeliverHere();
    outgoing_.Flush(socket_);
  }
  const std::lock_guard lock(mutex_);
  commands_.clear();
}

// The lock is the main loop's too, which may have been put off the processor while it holds it: then a bit later.
void BeatThread::RunCommands() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
  std::vector<Command> commands;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    put_off_ = !lock.owns_lock();
    if (put_off_) return;
    commands.swap(commands_);
  }
  for (const Command& command : commands) command(*this);
}

lease::Nanos BeatThread::NextDeadline(lease::Nanos now) const {
  const lease::Nanos soon = now + lease::kMillisecond;
  if (put_off_) return soon;
  if (was_stalled_) return lease::kNever;
  lease::Nanos next = lease::kNever;
  for (const auto& agent : agents_) {
    next = std::min(next, agent->machine->NextTick());
    if (!agent->supervisors.empty() && agent->machine->MayBeatSupervisors(now))
      next = std::min(next, agent->beaten + options_.times.beat);
  }
  for (const auto& lead : leads_) next = std::min(next, lead->machine->NextTick());
  // A machine whose time has passed and that had nothing to do must not make this spin.
  return std::max(next, soon);
}

void BeatThread::ReadSocket(bool discard) {
  for (int i = 0; i < kMostBatches; ++i) {
    const size_t count = incoming_.Receive(socket_);
    if (!discard) {
      for (size_t k = 0; k < count; ++k) TakePacket(incoming_.bytes(k), incoming_.from(k));
      DeliverHere();
      outgoing_.Flush(socket_);
    }
    if (count < ReceiveBatch::kSize) return;
  }
}

void BeatThread::TakePacket(std::span<const uint8_t> bytes, const BeatAddress& from) {
  const auto gang = lease::PeekGang(bytes);
  if (!gang) return;
  const auto open = [&](const Party& party) -> std::optional<lease::Datagram> {
    if (party.gang != *gang) return std::nullopt;
    for (const lease::Authenticator& key : party.keys) {
      if (auto datagram = key.Open(bytes)) return datagram;
    }
    return std::nullopt;
  };
  for (const auto& lead : leads_) {
    if (const auto datagram = open(*lead)) return Dispatch(*datagram, bytes, from);
  }
  for (const auto& agent : agents_) {
    if (const auto datagram = open(*agent)) return Dispatch(*datagram, bytes, from);
  }
}

// Beats are for the coordinator where it is, and to be carried further elsewhere.
void BeatThread::Dispatch(const lease::Datagram& datagram, std::span<const uint8_t> bytes,
                          const BeatAddress& from) {
  const lease::Nanos now = clock_.Now();
  const bool report = datagram.type == lease::Type::kBeat || datagram.type == lease::Type::kSpent;
  bool led = false;
  for (const auto& lead : leads_) {
    if (lead->gang != datagram.gang || (!report && datagram.term <= lead->machine->term())) continue;
    led = led || !lead->machine->deposed();
    lead->machine->Receive(datagram, now, &output_);
    Carry(*lead, from);
  }
  if (report && led) return;
  for (const auto& agent : agents_) {
    if (agent->gang != datagram.gang) continue;
    agent->machine->Receive(datagram, now, &output_);
    Carry(*agent, now, bytes, from);
  }
}

// Each round may bring the next one's; a coordinator and its own agent settle in a few.
void BeatThread::DeliverHere() {
  for (size_t i = 0; i < here_.size() && i < 4096; ++i) {
    const lease::Datagram datagram = here_[i];
    Dispatch(datagram, {}, {});
  }
  here_.clear();
}

void BeatThread::TickAll(lease::Nanos now) {
  for (const auto& lead : leads_) {
    if (now >= lead->machine->SoonestTick()) {
      lead->machine->Tick(now, &output_);
      Carry(*lead, {});
    }
  }
  for (const auto& agent : agents_) {
    if (now >= agent->machine->NextTick()) agent->machine->Tick(now, &output_);
    Carry(*agent, now, {}, {});
  }
}

void BeatThread::SendAll(const Party& party, std::span<const uint8_t> bytes, const BeatAddress& from) {
  for (const lease::Send& send : output_.sends) {
    if (send.to == party.self) {
      // Its author's code was checked on the way in; what is forwarded has no other one to be sealed with.
      if (here_.size() < here_.capacity()) here_.push_back(send.datagram);
    } else if (!party.keys.empty() && (send.to < party.addresses.size() || send.back)) {
      lease::Packet packet;
      if (!send.forward) {
        party.keys.front().Seal(send.datagram, &packet);
      } else if (bytes.size() == packet.size()) {
        std::copy(bytes.begin(), bytes.end(), packet.begin());
      } else {
        continue;
      }
      const BeatAddress known = send.to < party.addresses.size() ? party.addresses[send.to] : BeatAddress();
      outgoing_.Add(socket_, packet, known);
      if (send.back && from.valid() && !(from == known)) outgoing_.Add(socket_, packet, from);
    }
  }
  output_.sends.clear();
}

void BeatThread::Carry(Agent& agent, lease::Nanos now, std::span<const uint8_t> bytes,
                       const BeatAddress& from) {
  lease::AgentLease& machine = *agent.machine;
  if (machine.promised() > agent.promised) {
    agent.promised = machine.promised();
    state_->Promise(agent.gang, agent.promised, now);
  }
  SendAll(agent, bytes, from);
  const bool renewed = machine.RunUntil() > agent.run_until;
  agent.run_until = machine.RunUntil();
  agent.view->start_until =
      machine.MayRun(now) ? agent.run_until - options_.times.lease + options_.times.Freshness() : 0;
  if (machine.MayBeatSupervisors(now) && (renewed || now >= agent.beaten + options_.times.beat)) {
    BeatSupervisors(agent, now);
  }
  for (const lease::Event& event : output_.events) PostEvent(agent, event);
  output_.events.clear();
}

void BeatThread::Carry(Lead& lead, const BeatAddress& from) {
  SendAll(lead, {}, from);
  for (const lease::Event& event : output_.events) PostEvent(lead, event);
  output_.events.clear();
}

}  // namespace muster
