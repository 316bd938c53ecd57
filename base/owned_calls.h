// Answers that come to nothing once their owner has gone.
#pragma once

#include <memory>
#include <tuple>
#include <utility>

#include "base/loop.h"

namespace muster {

// A member of its owner, which lives on the loop's thread.
class OwnedCalls {
 public:
  explicit OwnedCalls(Loop& loop) : mailbox_(loop.mailbox()) {}

  // What may be called on any thread, once or more: calls `then` with copies of the arguments on the loop's thread, but not after the
  // owner's end.
  template <class F>
  [[nodiscard]] auto Back(F then) const {
    return [mailbox = mailbox_, owner = std::weak_ptr<Owner>(owner_),
            then = std::move(then)](auto&&... arguments) {
      mailbox->Post(
          [owner, then, values = std::make_tuple(std::forward<decltype(arguments)>(arguments)...)]() mutable {
            if (!owner.expired()) std::apply(then, std::move(values));
          });
    };
  }
  // What may be called on the loop's thread, once or more: calls `then` at once, but not after the owner's end.
  template <class F>
  [[nodiscard]] auto Here(F then) const {
    return [owner = std::weak_ptr<Owner>(owner_), then = std::move(then)](auto&&... arguments) {
      if (!owner.expired()) then(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  struct Owner {};
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
};

}  // namespace muster
