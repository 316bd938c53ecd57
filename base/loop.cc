#include "base/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace muster {
namespace {

class SteadyClock final : public LoopClock {
 public:
  [[nodiscard]] Time Now() const override { return std::chrono::steady_clock::now(); }
  [[nodiscard]] int WaitMs(Time due) const override {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Now());
    return left.count() < 0 ? 0 : static_cast<int>(std::min<int64_t>(left.count(), 60'000));
  }
};

}  // namespace

LoopClock& SteadyLoopClock() {
  static SteadyClock clock;
  return clock;
}

Mailbox::Mailbox() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Mailbox::Post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  posted_.push_back(std::move(work));
  if (posted_.size() > 1) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

std::vector<std::function<void()>> Mailbox::Take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
  return std::exchange(posted_, {});
}

void Mailbox::Close() {
  std::vector<std::function<void()>> dropped;  // destroyed without the lock: it may post
  const std::lock_guard lock(mutex_);
  open_ = false;
  dropped.swap(posted_);
}

Loop::Loop(LoopClock& clock)
    : clock_(clock), epoll_(::epoll_create1(EPOLL_CLOEXEC)), mailbox_(std::make_shared<Mailbox>()) {
  if (!epoll_.valid()) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  Watch(mailbox_->wake_.get(), EPOLLIN, [this](uint32_t) {
    for (auto& work : mailbox_->Take()) work();
  });
  clock_.Serve(mailbox_);
}

Loop::~Loop() {
  mailbox_->Close();
}

void Loop::Watch(int fd, uint32_t events, std::function<void(uint32_t)> ready) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  const bool known = watches_.contains(fd);
  if (::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  watches_[fd] = std::move(ready);
}

void Loop::Unwatch(int fd) {
  if (watches_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Loop::TimerId Loop::After(std::chrono::milliseconds delay, std::function<void()> fire) {
  return At(Now() + delay, std::move(fire));
}

Loop::TimerId Loop::AfterPeriod(std::chrono::milliseconds period, std::function<void()> fire) {
  const auto passed = Now() - made_ + period / 2;
  return At(made_ + (passed / period + 1) * period, std::move(fire));
}

Loop::TimerId Loop::At(Time when, std::function<void()> fire) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair{when, id}, std::move(fire));
  timer_times_.emplace(id, when);
  return id;
}

void Loop::Cancel(TimerId id) {
  const auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, id});
  timer_times_.erase(it);
}

void Loop::Stop() {
  Post([this] { stopped_ = true; });
}

int Loop::NextTimeout() const {
  return timers_.empty() ? -1 : clock_.WaitMs(timers_.begin()->first.first);
}

void Loop::FireTimers() {
  const Time now = Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void Loop::Run() {
  std::array<epoll_event, 64> events{};
  while (!stopped_) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), events.size(), NextTimeout());
    const auto woken = std::chrono::steady_clock::now();
    for (int i = 0; i < n; ++i) {
      // A handler may unwatch descriptors that are later in this batch.
      const auto it = watches_.find(events[static_cast<size_t>(i)].data.fd);
      if (it == watches_.end()) continue;
      const auto ready = it->second;
      ready(events[static_cast<size_t>(i)].events);
    }
    FireTimers();
    longest_turn_ = std::max(longest_turn_, std::chrono::steady_clock::now() - woken);
  }
  mailbox_->Close();
}

}  // namespace muster
