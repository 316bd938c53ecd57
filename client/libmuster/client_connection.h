// A packet connection to musterd that never blocks.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/unique_fd.h"
#include "wire/wire.h"

namespace muster::client {

class Connection {
 public:
  enum class Received { kPacket, kNothing, kTooLong, kClosed };

  // Gives 0 or an errno. EAGAIN: musterd is busy, try again.
  int Open(const char* socket_path);
  void Close() { fd_.reset(); }
  // Ends the connection also when forked processes have copies of the descriptor; what was sent still
  // arrives.
  void ShutDown();
  [[nodiscard]] bool open() const { return fd_.valid(); }

  // Sends one packet, with `descriptor` when it is not negative. Gives 0 or an errno; EAGAIN: there is no
  // room now.
  int Send(const void* packet, size_t size, int descriptor = -1);
  // Takes the next packet into packet().
  Received Receive();
  [[nodiscard]] const char* packet() const { return packet_; }
  [[nodiscard]] size_t packet_size() const { return size_; }
  // The descriptor that came with it, if any.
  UniqueFd TakeDescriptor() { return static_cast<UniqueFd&&>(descriptor_); }

  // Waits until there is something to receive (or room to send) or `milliseconds` have passed.
  void Wait(int milliseconds, bool for_room) const;

 private:
  void TakeDescriptors(msghdr* message);

  UniqueFd fd_;
  UniqueFd descriptor_;
  size_t size_ = 0;
  char packet_[wire::kMaxMessage];
};

}  // namespace muster::client
