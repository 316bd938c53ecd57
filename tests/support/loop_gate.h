// A place in a loop's work where it stands still until it is let go.
#pragma once

#include <future>
#include <memory>

#include "base/loop.h"

namespace muster {

class LoopGate {
 public:
  explicit LoopGate(Loop& loop) {
    loop.Post([entered = entered_, opened = opened_.get_future().share()] {
      entered->set_value();
      opened.wait();
    });
  }
  // Until the loop has come to it. Once.
  void Wait() { entered_->get_future().wait(); }
  void Open() { opened_.set_value(); }

 private:
  std::shared_ptr<std::promise<void>> entered_ = std::make_shared<std::promise<void>>();
  std::promise<void> opened_;
};

}  // namespace muster
