// Where the beats' datagrams go out and come in: UDP. Tests give one whose datagrams they deliver, delay and drop.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace muster {

// On the beats' thread, but for what makes it.
class BeatSocket {
 public:
  virtual ~BeatSocket() = default;
  // Readable while Receive has something to give.
  [[nodiscard]] virtual int fd() const = 0;
  [[nodiscard]] virtual uint16_t port() const = 0;
  // As recvmmsg and sendmmsg, without waiting.
  virtual int Receive(std::span<mmsghdr> packets) = 0;
  virtual int Send(std::span<mmsghdr> packets) = 0;

  // `port` 0: any. Errors: it is taken.
  static Result<std::shared_ptr<BeatSocket>> OpenUdp(const std::string& address, uint16_t port);
};

}  // namespace muster
