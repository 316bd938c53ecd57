// A program's connection to a musterd, packet by packet, for tests that say what libmuster or a supervisor would.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "base/unique_fd.h"

namespace muster {

class PacketSocket {
 public:
  explicit PacketSocket(const std::string& socket);

  // Sends one packet, with a descriptor when `fd` is not -1.
  void Send(const std::string& packet, int fd = -1);

  // The next message, which must be of `type`; what follows its body in `rest`, a descriptor that came with it in `fd`.
  template <typename Body>
  Body Expect(uint16_t type = Body::kType) {
    Body body{};
    const std::string packet = Receive();
    if (packet.size() < sizeof body) {
      ADD_FAILURE() << "a message of " << packet.size() << " bytes instead of type " << type;
      return body;
    }
    std::memcpy(&body, packet.data(), sizeof body);
    rest = packet.substr(sizeof body);
    EXPECT_EQ(body.header.type, type) << rest;
    EXPECT_EQ(body.header.size, packet.size());
    return body;
  }
  // The same, past the lines for the job's stderr that come before it: they are added to `reports`.
  template <typename Body>
  Body ExpectAfterReports() {
    PassReports();
    return Expect<Body>();
  }
  // The type of the next message, which stays; 0 after a deadline, or when the connection has ended.
  uint16_t Peek();
  // Nothing is on its way but the end of the connection.
  bool Ended();

  std::string rest;
  std::string reports;
  UniqueFd fd;

 private:
  // "" after a deadline, or when the connection has ended.
  std::string Receive();
  void PassReports();

  UniqueFd socket_;
};

// The first bytes of a file or memory.
std::string ReadAll(int fd, uint64_t bytes);
// Memory as musterd takes it for a save.
UniqueFd SealedMemory(const std::string& content);

}  // namespace muster
