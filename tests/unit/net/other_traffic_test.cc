// What a link carries besides, by the kernel's own counters of the loopback interface.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "net/preflight/other_traffic.h"

namespace muster::preflight {
namespace {

using std::chrono::milliseconds;

Rail Loopback() {
  Rail rail;
  rail.interface = "lo";
  return rail;
}

TEST(OtherTraffic, IsWhatTheInterfaceCountsInThatTime) {
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  nobody.sin_port = htons(9);
  nobody.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::atomic<bool> over = false;
  std::thread traffic([&] {
    const std::vector<char> datagram(8'000);
    while (!over) {
      (void)::sendto(fd.get(), datagram.data(), datagram.size(), 0,
                     reinterpret_cast<const sockaddr*>(&nobody), sizeof(nobody));
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  for (const Flow flow : {Flow::kOut, Flow::kIn}) {
    double seen = 0;
    for (int i = 0; i < 200 && seen == 0; ++i) seen = OtherTraffic(Loopback(), flow, -1, milliseconds(50));
    EXPECT_GT(seen, 0);
  }
  over = true;
  traffic.join();
}

TEST(OtherTraffic, IsUnknownWithoutCountersAndWhenTheMeasurementHasBegun) {
  Rail unknown;
  EXPECT_EQ(OtherTraffic(unknown, Flow::kOut, -1, milliseconds(1)), 0);
  unknown.interface = "none-such";
  EXPECT_EQ(OtherTraffic(unknown, Flow::kIn, -1, milliseconds(1)), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  ASSERT_EQ(::send(one.get(), "d", 1, 0), 1);
  EXPECT_EQ(OtherTraffic(Loopback(), Flow::kIn, other.get(), milliseconds(60'000)), 0);
}

}  // namespace
}  // namespace muster::preflight
