// A test's end of a link: what comes is kept until the test takes it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "daemon/link/link.h"

namespace muster {

// `Message`: what the other end says. Thread-safe.
template <typename Message>
class LinkPeer {
 public:
  LinkEvents Events() {
    return {[inbox = inbox_](const std::string& payload) {
              Message message;
              EXPECT_TRUE(message.ParseFromString(payload));
              const std::lock_guard lock(inbox->mutex);
              inbox->messages.push_back(std::move(message));
              inbox->changed.notify_all();
            },
            [inbox = inbox_](const std::string& why) {
              const std::lock_guard lock(inbox->mutex);
              inbox->closed = why;
              inbox->changed.notify_all();
            }};
  }
  void Opened(std::shared_ptr<Link> link) {
    const std::lock_guard lock(inbox_->mutex);
    link_ = std::move(link);
    inbox_->closed.reset();
    inbox_->messages.clear();
    ++opened_;
    inbox_->changed.notify_all();
  }
  // Waits until it has been opened so often, in all.
  bool WaitOpened(int times) {
    return Wait([&] { return opened_ >= times; });
  }
  [[nodiscard]] int opened() {
    const std::lock_guard lock(inbox_->mutex);
    return opened_;
  }

  template <typename Said>
  void Send(const Said& said) {
    link()->Send(said.SerializeAsString());
  }
  void Close() { link()->Close("the test closes it"); }

  // The next message for which `wanted` is so; others on the way are dropped. Nothing when the link ends, or when none comes for
  // a long time.
  template <typename Wanted>
  std::optional<Message> Take(Wanted wanted) {
    for (;;) {
      std::optional<Message> next;
      Wait([&] {
        if (inbox_->messages.empty()) return inbox_->closed.has_value();
        next = std::move(inbox_->messages.front());
        inbox_->messages.pop_front();
        return true;
      });
      if (!next || wanted(*next)) return next;
    }
  }
  // Why it has ended; nothing when it does not for a long time.
  std::optional<std::string> Closed() {
    Wait([&] { return inbox_->closed.has_value(); });
    const std::lock_guard lock(inbox_->mutex);
    return inbox_->closed;
  }
  [[nodiscard]] bool open() {
    const std::lock_guard lock(inbox_->mutex);
    return link_ != nullptr && !inbox_->closed;
  }

 private:
  std::shared_ptr<Link> link() {
    const std::lock_guard lock(inbox_->mutex);
    return link_;
  }

  static constexpr std::chrono::seconds kDeadline{60};  // for a hang

  struct Inbox {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Message> messages;
    std::optional<std::string> closed;
  };

  template <typename So>
  bool Wait(So so) {
    std::unique_lock lock(inbox_->mutex);
    return inbox_->changed.wait_for(lock, kDeadline, so);
  }

  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::shared_ptr<Link> link_;
  int opened_ = 0;
};

}  // namespace muster
