#include "daemon/beat/batch.h"

#include <cerrno>
#include <span>

namespace muster {

ReceiveBatch::ReceiveBatch() {
  for (size_t i = 0; i < kSize; ++i) {
    vectors_[i] = {packets_[i].data(), packets_[i].size()};
    headers_[i].msg_hdr.msg_iov = &vectors_[i];
    headers_[i].msg_hdr.msg_iovlen = 1;
    headers_[i].msg_hdr.msg_name = &from_[i].storage;
  }
}

size_t ReceiveBatch::Receive(BeatSocket& socket) {
  for (mmsghdr& header : headers_) header.msg_hdr.msg_namelen = sizeof(sockaddr_in6);
  const int count = socket.Receive(headers_);
  if (count <= 0) return 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) from_[i].size = headers_[i].msg_hdr.msg_namelen;
  return static_cast<size_t>(count);
}

std::span<const uint8_t> ReceiveBatch::bytes(size_t i) const {
  return {packets_[i].data(), headers_[i].msg_len};
}

SendBatch::SendBatch() {
  for (size_t i = 0; i < kSize; ++i) {
    vectors_[i] = {packets_[i].data(), packets_[i].size()};
    headers_[i].msg_hdr.msg_iov = &vectors_[i];
    headers_[i].msg_hdr.msg_iovlen = 1;
    headers_[i].msg_hdr.msg_name = &to_[i].storage;
  }
}

void SendBatch::Add(BeatSocket& socket, const lease::Packet& packet, const BeatAddress& to) {
  if (!to.valid()) return;
  if (count_ == kSize) Flush(socket);
  packets_[count_] = packet;
  to_[count_] = to;
  headers_[count_].msg_hdr.msg_namelen = to.size;
  ++count_;
}

void SendBatch::Flush(BeatSocket& socket) {
  size_t done = 0;
  while (done < count_) {
    const int sent = socket.Send(std::span(headers_).subspan(done, count_ - done));
    if (sent < 0 && errno == EINTR) continue;
    // The first one that is left could not be sent: no route, a full buffer.
    done += sent > 0 ? static_cast<size_t>(sent) : 1;
  }
  count_ = 0;
}

}  // namespace muster
