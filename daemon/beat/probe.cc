#include "daemon/beat/probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace muster {
namespace {

constexpr size_t kAtOnce = 256;  // sockets

struct Dial {
  size_t index = 0;
  UniqueFd socket;
};

int ErrorOf(const UniqueFd& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Port Answer(int error) {
  switch (error) {
    case 0:
      return Port::kAccepts;
    case ECONNREFUSED:
      return Port::kRefuses;
    case EINPROGRESS:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return Port::kSilent;
    default:
      return Port::kUnknown;
  }
}

}  // namespace

std::vector<Port> ProbePorts(const std::vector<BeatAddress>& addresses, std::chrono::milliseconds timeout) {
  std::vector<Port> ports(addresses.size(), Port::kUnknown);
  for (size_t first = 0; first < addresses.size(); first += kAtOnce) {
    std::vector<Dial> dials;
    std::vector<pollfd> polls;
    for (size_t i = first; i < std::min(addresses.size(), first + kAtOnce); ++i) {
      const BeatAddress& address = addresses[i];
      if (!address.valid()) continue;
      UniqueFd socket(
          ::socket(address.storage.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
      if (!socket.valid()) continue;
      const int error = ::connect(socket.get(), address.get(), address.size) == 0 ? 0 : errno;
      ports[i] = Answer(error);
      if (error != EINPROGRESS) continue;
      polls.push_back({socket.get(), POLLOUT, 0});
      dials.push_back({i, std::move(socket)});
    }
    const int64_t deadline = BoottimeNs() + timeout.count() * 1'000'000;
    size_t waiting = polls.size();
    while (waiting > 0) {
      // Also when the time is up: after a pause the answers may be there.
      const int64_t left = std::max<int64_t>((deadline - BoottimeNs()) / 1'000'000, 0);
      const int ready = ::poll(polls.data(), polls.size(), static_cast<int>(left));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) break;
      for (size_t i = 0; i < polls.size(); ++i) {
        if (polls[i].fd < 0 || polls[i].revents == 0) continue;
        ports[dials[i].index] = Answer(ErrorOf(dials[i].socket));
        polls[i].fd = -1;
        --waiting;
      }
    }
  }
  return ports;
}

}  // namespace muster
