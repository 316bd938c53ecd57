#include "net/collectives/gloo_transport.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace muster {

std::chrono::milliseconds TimeUntil(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

using gloo::transport::UnboundBuffer;

struct CuttableTransport::Waits {
  std::mutex mutex;
  std::set<UnboundBuffer*> buffers;
  std::optional<std::string> cut;
  std::chrono::steady_clock::time_point deadline;

  // How long a wait may take.
  std::chrono::milliseconds Patience() {
    const std::lock_guard lock(mutex);
    if (cut) throw std::runtime_error(*cut);
    return TimeUntil(deadline);
  }
  void ThrowIfCut() { (void)Patience(); }
};

namespace {

class CuttableBuffer final : public UnboundBuffer {
 public:
  CuttableBuffer(std::unique_ptr<UnboundBuffer> inner, std::shared_ptr<CuttableTransport::Waits> waits)
      : UnboundBuffer(inner->ptr, inner->size), inner_(std::move(inner)), waits_(std::move(waits)) {
    const std::lock_guard lock(waits_->mutex);
    waits_->buffers.insert(inner_.get());
  }
  ~CuttableBuffer() override {
    const std::lock_guard lock(waits_->mutex);
    waits_->buffers.erase(inner_.get());
  }

  // What was aborted before the wait began ends it as well, so nothing is missed between the two lines.
  bool waitRecv(int* rank, std::chrono::milliseconds) override {
    const bool come = inner_->waitRecv(rank, waits_->Patience());
    if (!come) waits_->ThrowIfCut();
    return come;
  }
  bool waitSend(int* rank, std::chrono::milliseconds) override {
    const bool gone = inner_->waitSend(rank, waits_->Patience());
    if (!gone) waits_->ThrowIfCut();
    return gone;
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }

  void send(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->send(peer, slot, offset, bytes);
  }
  void recv(int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->recv(peer, slot, offset, bytes);
  }
  void recv(std::vector<int> peers, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->recv(std::move(peers), slot, offset, bytes);
  }

 private:
  const std::unique_ptr<UnboundBuffer> inner_;
  const std::shared_ptr<CuttableTransport::Waits> waits_;
};

}  // namespace

CuttableTransport::CuttableTransport(std::shared_ptr<gloo::transport::Context> inner,
                                     std::chrono::steady_clock::time_point deadline)
    : gloo::transport::Context(inner->rank, inner->size),
      inner_(std::move(inner)),
      waits_(std::make_shared<Waits>()) {
  waits_->deadline = deadline;
}

std::unique_ptr<UnboundBuffer> CuttableTransport::createUnboundBuffer(void* data, std::size_t bytes) {
  return std::make_unique<CuttableBuffer>(inner_->createUnboundBuffer(data, bytes), waits_);
}

void CuttableTransport::SetDeadline(std::chrono::steady_clock::time_point deadline) {
  const std::lock_guard lock(waits_->mutex);
  waits_->deadline = deadline;
}

void CuttableTransport::Cut(const std::string& why) {
  const std::lock_guard lock(waits_->mutex);
  if (!waits_->cut) waits_->cut = why;
  for (UnboundBuffer* buffer : waits_->buffers) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

}  // namespace muster
