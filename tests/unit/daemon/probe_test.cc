#include "daemon/beat/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/unique_fd.h"

namespace muster {
namespace {

using testing::ElementsAre;

// Bound to a port of its own on the loopback; listening with `backlog`, or not at all when it is negative.
UniqueFd Bind(BeatAddress* address, int backlog) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  *address = *ResolveBeatAddress("127.0.0.1", 0);
  EXPECT_EQ(::bind(socket.get(), address->get(), address->size), 0);
  EXPECT_EQ(::getsockname(socket.get(), address->get(), &address->size), 0);
  if (backlog >= 0) {
    EXPECT_EQ(::listen(socket.get(), backlog), 0);
  }
  return socket;
}

TEST(Probe, TellsAListenerFromAHostWhereNobodyListens) {
  BeatAddress open;
  BeatAddress closed;
  const UniqueFd listener = Bind(&open, 8);
  const UniqueFd mute = Bind(&closed, -1);
  EXPECT_THAT(ProbePorts({open, closed, BeatAddress(), open}, std::chrono::seconds(30)),
              ElementsAre(Port::kAccepts, Port::kRefuses, Port::kUnknown, Port::kAccepts));
}

TEST(Probe, AHostThatDoesNotAnswerIsSilent) {
  BeatAddress full;
  const UniqueFd listener = Bind(&full, 0);
  // Fills its queue: what comes after is not answered.
  std::vector<UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) {
    UniqueFd& socket = waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)::connect(socket.get(), full.get(), full.size);
  }
  EXPECT_THAT(ProbePorts({full}, std::chrono::milliseconds(50)), ElementsAre(Port::kSilent));
}

TEST(Probe, ThousandsAreAskedInTurns) {
  BeatAddress closed;
  const UniqueFd mute = Bind(&closed, -1);
  EXPECT_EQ(ProbePorts(std::vector<BeatAddress>(2000, closed), std::chrono::seconds(30)),
            std::vector<Port>(2000, Port::kRefuses));
}

}  // namespace
}  // namespace muster
