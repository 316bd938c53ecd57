// Many datagrams in one system call, in memory that is there from the start.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <span>

#include "daemon/beat/address.h"
#include "daemon/beat/beat_socket.h"
#include "daemon/lease/datagram.h"

namespace muster {

class ReceiveBatch {
 public:
  static constexpr size_t kSize = 64;
  ReceiveBatch();
  ReceiveBatch(const ReceiveBatch&) = delete;
  ReceiveBatch& operator=(const ReceiveBatch&) = delete;

  // What has come, without waiting: its number.
  size_t Receive(BeatSocket& socket);
  [[nodiscard]] std::span<const uint8_t> bytes(size_t i) const;
  [[nodiscard]] const BeatAddress& from(size_t i) const { return from_[i]; }

 private:
  std::array<std::array<uint8_t, 256>, kSize> packets_{};  // a longer one is cut, and so of a wrong length
  std::array<BeatAddress, kSize> from_{};
  std::array<iovec, kSize> vectors_{};
  std::array<mmsghdr, kSize> headers_{};
};

class SendBatch {
 public:
  static constexpr size_t kSize = 64;
  SendBatch();
  SendBatch(const SendBatch&) = delete;
  SendBatch& operator=(const SendBatch&) = delete;

  // Sends when full; what cannot be sent is dropped, as datagrams are.
  void Add(BeatSocket& socket, const lease::Packet& packet, const BeatAddress& to);
  void Flush(BeatSocket& socket);

 private:
  size_t count_ = 0;
  std::array<lease::Packet, kSize> packets_{};
  std::array<BeatAddress, kSize> to_{};
  std::array<iovec, kSize> vectors_{};
  std::array<mmsghdr, kSize> headers_{};
};

}  // namespace muster
