// Members as real processes, for tests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "net/collectives/collectives.h"

namespace muster::test {

// Forks `count` members that run `body(index)` and exit with what it returns; waits for all and gives their
// wait statuses in order. What still runs at the deadline is killed; nothing is left behind.
[[nodiscard]] std::vector<int> RunMembers(int count, const std::function<int(int)>& body,
                                          std::chrono::seconds deadline = std::chrono::seconds(60));

// Whether a wait status says "exited with 0".
[[nodiscard]] bool Succeeded(int status);

// A member's exit status: what went wrong is printed, because its assertions do not reach the test.
int Fail(const std::string& why);

// A loopback group for member `rank`, with short deadlines; the same `port` on all members.
[[nodiscard]] GroupOptions LoopbackGroup(int rank, int size, std::uint16_t port);
// A port that nobody listens on.
[[nodiscard]] std::uint16_t FreePort();

// All members share a machine's first GPU: NCCL takes this process for one of a host that no other member has.
void ShareTheGpu(int rank);

// An exchange through files, in a directory that no other group has.
[[nodiscard]] Exchange ExchangeIn(const std::string& directory, int rank, int size);

// Memory that forked members share with the test.
class SharedFloats {
 public:
  explicit SharedFloats(std::size_t count);
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;
  ~SharedFloats();
  [[nodiscard]] std::span<float> values() const { return values_; }

 private:
  std::span<float> values_;
};

// A directory that goes with the object.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster::test
