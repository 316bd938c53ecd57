#include "daemon/agent/port_lease.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace muster {
namespace {

using ::testing::HasSubstr;

// A range that other programs on the machine are unlikely to use, away from the daemon's default.
constexpr uint16_t kFirst = 17'000;
constexpr uint16_t kLast = 17'999;

sockaddr_in Address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return address;
}

// 0 or errno.
int Bind(const UniqueFd& fd, uint16_t port, bool reuse) {
  const int on = reuse ? 1 : 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = Address(port);
  return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

UniqueFd Socket() {
  return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

TEST(PortLease, LiesInItsRange) {
  for (int i = 0; i < 20; ++i) {
    const auto lease = PortLease::Take(kFirst, kLast, 3);
    ASSERT_TRUE(lease) << lease.error().message;
    EXPECT_GE(lease->port(), kFirst);
    EXPECT_LE(lease->port() + 2, kLast);
  }
}

TEST(PortLease, AServerWithReuseaddrListensOnEachOfItsPorts) {
  const auto lease = PortLease::Take(kFirst, kLast, 3);
  ASSERT_TRUE(lease) << lease.error().message;
  for (uint16_t i = 0; i < 3; ++i) {
    const UniqueFd server = Socket();
    ASSERT_EQ(Bind(server, static_cast<uint16_t>(lease->port() + i), true), 0);
    ASSERT_EQ(::listen(server.get(), 8), 0);
    const UniqueFd client = Socket();
    sockaddr_in address = Address(static_cast<uint16_t>(lease->port() + i));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
}

TEST(PortLease, AProgramWithoutReuseaddrCannotHaveItsPorts) {
  const auto lease = PortLease::Take(kFirst, kLast, 2);
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(Bind(Socket(), lease->port(), false), EADDRINUSE);
  EXPECT_EQ(Bind(Socket(), static_cast<uint16_t>(lease->port() + 1), false), EADDRINUSE);
}

TEST(PortLease, TwoLeasesDoNotOverlap) {
  // Room for two of three, placed wherever they fall, or for one.
  const auto first = PortLease::Take(kFirst, kFirst + 11, 3);
  ASSERT_TRUE(first) << first.error().message;
  const auto second = PortLease::Take(kFirst, kFirst + 11, 3);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_GE(std::abs(first->port() - second->port()), 3);
}

TEST(PortLease, APortThatAServerListensOnIsNotLeased) {
  const UniqueFd server = Socket();
  ASSERT_EQ(Bind(server, kFirst + 100, true), 0);
  ASSERT_EQ(::listen(server.get(), 8), 0);
  EXPECT_FALSE(PortLease::Take(kFirst + 100, kFirst + 100, 1));
}

TEST(PortLease, ALeaseThatHasEndedCanBeHadAgain) {
  { ASSERT_TRUE(PortLease::Take(kFirst + 200, kFirst + 201, 2)); }
  EXPECT_TRUE(PortLease::Take(kFirst + 200, kFirst + 201, 2));
}

TEST(PortLease, ARangeThatIsUsedUpIsSaidSo) {
  const auto all = PortLease::Take(kFirst + 300, kFirst + 301, 2);
  ASSERT_TRUE(all) << all.error().message;
  const auto none = PortLease::Take(kFirst + 300, kFirst + 301, 1);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kExhausted);
  EXPECT_THAT(none.error().message, HasSubstr("17300 and 17301 (master_ports_first, _last)"));
}

TEST(PortLease, MorePortsThanTheRangeHasAreRefused) {
  const auto lease = PortLease::Take(kFirst, kFirst + 3, 5);
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.error().code, Errc::kInvalid);
}

TEST(PortLease, TheLastPortOfAllCanBeLeased) {
  const auto lease = PortLease::Take(65'535, 65'535, 1);
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(lease->port(), 65'535);
}

}  // namespace
}  // namespace muster
