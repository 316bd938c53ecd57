// A transport of Gloo's whose waits share a deadline, and can be ended. In Gloo each wait of an operation has a timeout of
// its own, some not that of the operation, and ends then or when a peer closes.
#pragma once

#include <gloo/transport/context.h>

#include <chrono>
#include <memory>
#include <string>

namespace muster {

// What is left until `deadline`, for Gloo's timeouts; never 0, which Gloo takes for "no limit".
[[nodiscard]] std::chrono::milliseconds TimeUntil(std::chrono::steady_clock::time_point deadline);

class CuttableTransport final : public gloo::transport::Context {
 public:
  CuttableTransport(std::shared_ptr<gloo::transport::Context> inner,
                    std::chrono::steady_clock::time_point deadline);

  std::unique_ptr<gloo::transport::Pair>& getPair(int peer) override { return inner_->getPair(peer); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override { return inner_->createPair(peer); }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override;

  // Of all waits from now on.
  void SetDeadline(std::chrono::steady_clock::time_point deadline);

  // From now on who waits, or begins to, gets an exception that says `why`. Any thread may call it.
  void Cut(const std::string& why);

  struct Waits;  // for buffers

 private:
  const std::shared_ptr<gloo::transport::Context> inner_;
  const std::shared_ptr<Waits> waits_;
};

}  // namespace muster
