// Figures over HTTP: what is asked and how, and who connects without asking.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/metrics/metrics_port.h"

namespace muster {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\nHost: n1:305\r\n\r\n";
constexpr int kDeadlineMs = 60'000;
// For a connection whose end nobody waits for.
constexpr std::chrono::milliseconds kForEver{600'000};

// A peer on a connection of its own.
class Peer {
 public:
  explicit Peer(uint16_t port, int receive_buffer = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0)
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  void Say(const std::string& text) {
    // Nothing of it arrives where the connection has been closed.
    [[maybe_unused]] const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // All that comes until the other side closes.
  std::string Hear() {
    std::string heard;
    char part[4096];
    for (ssize_t size = 1; size > 0;) {
      pollfd waits{fd_.get(), POLLIN, 0};
      if (::poll(&waits, 1, kDeadlineMs) != 1) return heard + " and no end";
      size = ::recv(fd_.get(), part, sizeof part, 0);
      if (size > 0) heard.append(part, static_cast<size_t>(size));
    }
    return heard;
  }
  std::string Ask(const std::string& request) {
    Say(request);
    return Hear();
  }

 private:
  UniqueFd fd_;
};

// A loop that runs, as musterd's.
class MetricsPortTest : public ::testing::Test {
 protected:
  ~MetricsPortTest() override {
    loop_.Post([this] { metrics_.reset(); });
    loop_.Stop();
    if (thread_.joinable()) thread_.join();
  }
  void Start(std::chrono::milliseconds patience = kForEver,
             std::chrono::milliseconds fresh = std::chrono::milliseconds(0)) {
    auto started = MetricsPort::Start(loop_, {"127.0.0.1", 0, patience, fresh}, [this] {
      ++gathered_;
      return text_;
    });
    ASSERT_TRUE(started) << started.error().message;
    metrics_ = *std::move(started);
    port_ = metrics_->port();
  }
  void Run() {
    thread_ = std::thread([this] { loop_.Run(); });
  }

  Loop loop_;
  std::string text_ = "muster 1\n";
  std::atomic<int> gathered_{0};
  std::unique_ptr<MetricsPort> metrics_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(MetricsPortTest, WhoAsksGetsTheTextAndTheEnd) {
  Start();
  Run();
  EXPECT_EQ(
      Peer(port_).Ask(kGet),
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 9\r\n"
      "Connection: close\r\n\r\nmuster 1\n");
  EXPECT_THAT(Peer(port_).Ask("GET /metrics?all=1 HTTP/1.0\r\n\r\n"), EndsWith("\r\n\r\nmuster 1\n"));
}

TEST_F(MetricsPortTest, ARequestMayComeInPiecesAndWithMoreBehindIt) {
  Start();
  Run();
  Peer slow(port_);
  for (const char c : std::string(kGet)) slow.Say(std::string(1, c));
  EXPECT_THAT(slow.Hear(), EndsWith("muster 1\n"));
  EXPECT_THAT(Peer(port_).Ask(std::string(kGet) + std::string(1 << 20, 'x')), EndsWith("muster 1\n"));
}

TEST_F(MetricsPortTest, AnythingElseIsRefused) {
  Start();
  Run();
  for (const auto& [request, status] : std::vector<std::pair<std::string, std::string>>{
           {"GET / HTTP/1.1\r\n\r\n", "404 Not Found"},
           {"GET /metricsx HTTP/1.1\r\n\r\n", "404 Not Found"},
           {"GET /a /metrics HTTP/1.1\r\n\r\n", "404 Not Found"},
           {"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "405 Method Not Allowed\r\nAllow: GET"},
           {"HEAD /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"},
           {"GET /metrics\r\n\r\n", "400 Bad Request"},
           {"GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"},
           {"\r\n\r\n", "400 Bad Request"},
           {"\x16\x03\x01 \x01 \r\n\r\n", "400 Bad Request"},
           {"GET /metrics HTTP/1.1\r\nX: " + std::string(1 << 16, 'x'), "431 "},
       })
    EXPECT_THAT(Peer(port_).Ask(request), StartsWith("HTTP/1.1 " + status)) << request.substr(0, 40);
  EXPECT_EQ(gathered_, 0);
}

TEST_F(MetricsPortTest, OneTextAnswersAllWhoAskSoon) {
  Start(kForEver, kForEver);
  Run();
  for (int i = 0; i < 100; ++i) ASSERT_THAT(Peer(port_).Ask(kGet), EndsWith("muster 1\n"));
  EXPECT_EQ(gathered_, 1);
}

TEST_F(MetricsPortTest, WhoOnlySitsThereKeepsNobodyOut) {
  Start();
  Run();
  std::vector<std::unique_ptr<Peer>> silent;
  for (size_t i = 0; i < 4 * MetricsPort::kMostConnections; ++i) {
    silent.push_back(std::make_unique<Peer>(port_));
    silent.back()->Say(i % 2 == 0 ? "GET /metr" : "");
    if (i % 8 == 0) {
      EXPECT_THAT(Peer(port_).Ask(kGet), EndsWith("muster 1\n"));
    }
  }
  EXPECT_EQ(silent.front()->Hear(), "");  // it has given way
}

TEST_F(MetricsPortTest, WhoDoesNotReadKeepsNobodyOut) {
  text_ = std::string(8 << 20, '#');  // more than a socket holds
  Start();
  Run();
  std::vector<std::unique_ptr<Peer>> deaf;
  for (size_t i = 0; i < MetricsPort::kMostConnections; ++i) {
    deaf.push_back(std::make_unique<Peer>(port_, 4096));
    deaf.back()->Say(kGet);
  }
  EXPECT_TRUE(Peer(port_).Ask(kGet).ends_with("\r\n\r\n" + text_));
}

TEST_F(MetricsPortTest, AConnectionHasADeadline) {
  Start(std::chrono::milliseconds(200));
  Run();
  EXPECT_EQ(Peer(port_).Hear(), "");
  EXPECT_EQ(Peer(port_).Ask("GET /metrics HTTP/1.1\r\n"), "");
}

TEST_F(MetricsPortTest, ALoopThatStandsStillAnswersNobody) {
  Start(std::chrono::milliseconds(200));
  EXPECT_EQ(Peer(port_).Ask(kGet), "");
  Run();
}

TEST_F(MetricsPortTest, APortThatIsTakenIsSaid) {
  Start();
  const auto second = MetricsPort::Start(loop_, {"127.0.0.1", port_}, [] { return ""; });
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, StartsWith("cannot listen on 127.0.0.1 port "));
  EXPECT_THAT(second.error().message, HasSubstr("(metrics_port): Address already in use"));
  EXPECT_FALSE(MetricsPort::Start(loop_, {"localhost", 0}, [] { return ""; }));
}

TEST_F(MetricsPortTest, ItsEndIsTheEndOfAllConnections) {
  Start();
  Peer peer(port_);
  peer.Say(kGet);
  Peer silent(port_);
  metrics_.reset();
  EXPECT_EQ(silent.Hear(), "");
  EXPECT_EQ(peer.Hear(), "");
}

}  // namespace
}  // namespace muster
