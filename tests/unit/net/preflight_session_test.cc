// A test of the fabric between threads of this process, and what others say to its referee.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "net/preflight/conductor.h"
#include "net/preflight/line_stream.h"
#include "net/preflight/probe_agent.h"
#include "net/preflight/referee.h"
#include "net/preflight/roll.h"
#include "net/preflight/verbs_probe.h"
#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using nlohmann::json;
using std::chrono::seconds;
namespace fs = std::filesystem;

// What a host with one RDMA device has below /sys and /dev.
class Tree {
 public:
  Tree() {
    std::string name = testing::TempDir() + "preflight.XXXXXX";
    root_ = ::mkdtemp(name.data());
    Write("/sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
  }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  [[nodiscard]] const std::string& root() const { return root_; }

 private:
  std::string root_;
};

Deadline Soon() {
  return std::chrono::steady_clock::now() + seconds(60);
}

class Session : public testing::Test {
 protected:
  void SetUp() override {
    auto listening = rendezvous::Listen(0);
    ASSERT_TRUE(listening.ok());
    listening_ = std::move(*listening);
    port_ = rendezvous::LocalPort(listening_.get()).value();
  }

  AgentOptions Agent(uint32_t node) {
    AgentOptions options;
    options.run = "8.0/1";
    options.host = "127.0.0.1";
    options.port = port_;
    options.node = node;
    options.name = "n" + std::to_string(node);
    options.rails.emplace_back().address = "127.0.0.1";
    options.rails.back().rate_mbit_s = 20;
    return options;
  }

  std::future<Result<bool>> Come(AgentOptions options) {
    return std::async(std::launch::async, [options] { return RunAgent(options, Soon()); });
  }

  std::future<Result<json>> Lead(uint32_t nodes, Deadline come) {
    TestOptions options;
    options.run = "8.0/1";
    options.nodes = nodes;
    options.come = come;
    return std::async(std::launch::async, [this, options] { return RunTest(listening_, options); });
  }

  LineStream Guest() {
    auto fd = rendezvous::ConnectUntil("127.0.0.1", port_, Soon());
    return LineStream(fd.ok() ? std::move(*fd) : UniqueFd());
  }

  UniqueFd listening_;
  uint16_t port_ = 0;
};

TEST_F(Session, WhoDoesNotBelongToTheTestIsRefusedByNameAndDisturbsNobody) {
  auto verdict = Lead(2, Soon());
  LineStream silent = Guest();
  LineStream half = Guest();
  const std::string part = "{\"hello\":";
  ASSERT_TRUE(rendezvous::SendAll(half.fd(), std::as_bytes(std::span(part)), Soon()).ok());
  for (const std::string text : {"garbage\n", "[]\n", "{}\n", "{\"hello\": 7, \"node\": -1}\n"}) {
    LineStream other = Guest();
    ASSERT_TRUE(rendezvous::SendAll(other.fd(), std::as_bytes(std::span(text)), Soon()).ok());
    const auto answer = other.Receive(Soon());
    EXPECT_TRUE(!answer.ok() || answer->contains("refused")) << text;
  }
  AgentOptions stale = Agent(1);
  stale.run = "8.0/0";
  const auto refused = Come(stale).get();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "this node belongs to another test");
  const auto beyond = Come(Agent(2)).get();
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().message, "this test has 2 nodes");
  auto first = Come(Agent(0));
  auto second = Come(Agent(1));
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said->at("nodes"), 2);
  EXPECT_EQ(said->at("transport"), "tcp");
  EXPECT_GT(said->at("latency_us"), 0);
  EXPECT_EQ(said->at("longest_latency_us"), said->at("latency_us")) << "there is one pair";
  EXPECT_EQ(said->at("longest_pair"), json::array({"n0", "n1"}));
  EXPECT_TRUE(said->at("missing").empty() && said->at("gone").empty()) << *said;
  const auto one = first.get();
  const auto other = second.get();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(*one, said->at("ok"));
  EXPECT_EQ(*other, said->at("ok"));
}

// Each pair of rails has its carriers compared, on each node.
TEST_F(Session, OfANodesListsNoMoreIsTakenThanAHostCanHave) {
  LineStream guest = Guest();
  const std::vector<std::string> many(200, std::string(100, 'x'));
  const json rail{{"address", "127.0.0.1"}, {"port", 1}, {"carriers", many}};
  ASSERT_TRUE(
      guest
          .Send({{"hello", "8.0/1"}, {"node", 0}, {"name", "n0"}, {"networks", many}, {"rails", {rail}}},
                Soon())
          .ok());
  const auto nodes = CallRoll(listening_, "8.0/1", 1, Soon());
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].rails[0].carriers, std::vector<std::string>(32, std::string(64, 'x')));
  EXPECT_EQ(nodes[0].networks, std::vector<std::string>(64, std::string(64, 'x')));
}

TEST_F(Session, ANodeThatEndsInTheMiddleIsNamedAndTheOthersHaveTheirVerdict) {
  auto verdict = Lead(3, Soon());
  auto first = Come(Agent(0));
  auto second = Come(Agent(1));
  {
    LineStream dies = Guest();
    const json rail{{"address", "127.0.0.1"}, {"port", 9}};
    const json hello{{"hello", "8.0/1"}, {"node", 2}, {"name", "n2"}, {"rails", json::array({rail})}};
    ASSERT_TRUE(dies.Send(hello, Soon()).ok());
    ASSERT_TRUE(dies.Receive(Soon()).ok()) << "its first order";
  }
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said->at("gone"), json::array({"n2"}));
  EXPECT_FALSE(said->at("ok").get<bool>());
  EXPECT_TRUE(first.get().ok() && second.get().ok());
}

TEST(Conductor, ANodeThatAnswersNoMoreIsGoneAndItsLinksAreNotJudged) {
  std::vector<Node> nodes(2);
  std::vector<LineStream> others;
  for (Node& node : nodes) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    node.stream = std::make_unique<LineStream>(UniqueFd(ends[0]));
    node.rails.emplace_back().port = 9;
    others.emplace_back(UniqueFd(ends[1]));
  }
  const json sent{{"packets", 1},    {"lost", 0},         {"connected", true}, {"mbit_s", 0},
                  {"latency_us", 0}, {"other_mbit_s", 0}, {"error", ""}};
  ASSERT_TRUE(others[0].Send({{"id", 1}, {"sent", sent}}, Soon()).ok());
  Conductor conductor(nodes, std::chrono::milliseconds(100));
  EXPECT_TRUE(conductor.Measure({{0, 0, 1}}, std::chrono::milliseconds(1)).empty());
  EXPECT_FALSE(nodes[0].gone);
  EXPECT_TRUE(nodes[1].gone) << "it holds its connection, and says nothing";
  EXPECT_TRUE(conductor.Measure({{0, 0, 1}}, std::chrono::milliseconds(1)).empty())
      << "nobody waits for it again";
}

TEST(Conductor, TwoReportsThatComeAtOnceAreBothHeard) {
  std::vector<Node> nodes(2);
  std::vector<LineStream> others;
  for (Node& node : nodes) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    node.stream = std::make_unique<LineStream>(UniqueFd(ends[0]));
    for (size_t rail = 0; rail < 2; ++rail) node.rails.emplace_back().port = 9;
    others.emplace_back(UniqueFd(ends[1]));
  }
  const json sent{{"packets", 1},    {"lost", 0},         {"connected", true}, {"mbit_s", 0},
                  {"latency_us", 0}, {"other_mbit_s", 0}, {"error", ""}};
  const json received{{"mbit_s", 1}, {"other_mbit_s", 0}, {"small", 1}, {"large", 1}, {"error", ""}};
  for (const uint64_t id : {1, 2}) {
    ASSERT_TRUE(others[0].Send({{"id", id}, {"sent", sent}}, Soon()).ok());
    ASSERT_TRUE(others[1].Send({{"id", id}, {"received", received}}, Soon()).ok());
  }
  Conductor conductor(nodes, std::chrono::minutes(1));
  EXPECT_EQ(conductor.Measure({{0, 0, 1}, {1, 0, 1}}, std::chrono::milliseconds(1)).size(), 2U);
  EXPECT_FALSE(nodes[0].gone || nodes[1].gone);
}

TEST_F(Session, NodesWithoutDeviceFilesMeasureOverTcpAndSayWhy) {
  const Tree tree;
  auto verdict = Lead(2, Soon());
  std::vector<std::future<Result<bool>>> nodes;
  for (const uint32_t number : {0, 1}) {
    AgentOptions options = Agent(number);
    options.root = tree.root();
    options.rails[0].verbs.device = "mlx5_0";
    nodes.push_back(Come(options));
  }
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said->at("transport"), "tcp");
  EXPECT_GT(said->at("mbit_s"), 0) << *said;
  for (const json& finding : said->at("findings")) EXPECT_NE(finding.at("trouble"), "no-rdma") << finding;
  ASSERT_EQ(said->at("over_tcp").size(), 1U) << *said;
  EXPECT_EQ(said->at("over_tcp")[0].at("text"),
            "n0, n1 measured over TCP: /dev/infiniband: No such file or directory.");
  EXPECT_EQ(
      said->at("over_tcp")[0].at("fix"),
      "let the container have /dev/infiniband: --device=/dev/infiniband; on the host: modprobe ib_uverbs");
  for (auto& node : nodes) EXPECT_TRUE(node.get().ok());
}

TEST_F(Session, ANodeThatLacksARailIsNamedAndTheOthersMeasureWithTheirLike) {
  auto verdict = Lead(3, Soon());
  std::vector<std::future<Result<bool>>> nodes;
  for (const uint32_t number : {0, 1, 2}) {
    AgentOptions options = Agent(number);
    options.networks = {"10.1.0.0/16", "10.2.0.0/16"};
    // Where two rails are taken for one, their MTU differs.
    Rail& first = options.rails[0];
    first.network = options.networks[0];
    first.interface = "roce0";
    first.mtu = 9'000;
    Rail second = first;
    second.network = options.networks[1];
    second.interface = "roce1";
    second.address = "127.0.0.2";
    second.mtu = 1'500;
    options.rails.push_back(second);
    if (number == 1) options.rails.erase(options.rails.begin());
    nodes.push_back(Come(options));
  }
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said->at("rails"), 2);
  EXPECT_EQ(said->at("measurements"), 8) << *said;  // of one pair, and of three
  json findings = said->at("findings");
  std::erase_if(findings.get_ref<json::array_t&>(),
                [](const json& one) { return one.at("trouble") == "slow" || one.at("trouble") == "lossy"; });
  ASSERT_EQ(findings.size(), 1U) << findings;
  EXPECT_EQ(findings[0].at("trouble"), "no-rail");
  EXPECT_EQ(findings[0].at("node"), "n1");
  EXPECT_EQ(findings[0].at("text"), "n1 has no address in 10.1.0.0/16, others have (roce0).");
  EXPECT_FALSE(said->at("ok").get<bool>());
  for (auto& node : nodes) EXPECT_TRUE(node.get().ok());
}

// Nodes with two rails each over one port of 100 Gb/s: what measures at the same time shares it. One rail of one node carries half.
class SimulatedNodes {
 public:
  SimulatedNodes(size_t nodes, const std::function<LineStream()>& connect) {
    for (size_t i = 0; i < nodes; ++i) {
      streams_.push_back(connect());
      json rails = json::array();
      for (const char* interface : {"roce0", "roce0.100"}) {
        rails.push_back({{"interface", interface},
                         {"address", "10.1.0.1"},
                         {"port", 9},
                         {"network", rails.empty() ? "10.1.0.0/16" : "10.2.0.0/16"},
                         {"carriers", {"roce0"}}});
      }
      (void)streams_.back().Send(
          {{"hello", "8.0/1"}, {"node", i}, {"name", "n" + std::to_string(i)}, {"rails", rails}}, Soon());
    }
  }

  // Until the verdict.
  void Obey() {
    while (!told_) {
      std::vector<pollfd> entries;
      for (const LineStream& stream : streams_) entries.push_back({stream.fd(), POLLIN, 0});
      // What is ordered within that time measures at the same time.
      const int ready = ::poll(entries.data(), entries.size(), orders_.empty() ? 60'000 : 50);
      if (ready < 0 || (ready == 0 && orders_.empty())) return;
      if (ready == 0) Answer();
      for (size_t node = 0; node < entries.size(); ++node) {
        if (entries[node].revents != 0) Hear(node);
      }
    }
  }

 private:
  struct Order {
    size_t node = 0;
    size_t rail = 0;
    uint64_t id = 0;
    bool sends = false;
  };

  void Hear(size_t node) {
    do {
      const auto message = streams_[node].Receive(Soon());
      told_ = !message.ok() || message->contains("verdict");
      if (told_) return;
      const bool sends = message->contains("send");
      orders_.push_back({node, message->at("rail").get<size_t>(),
                         message->at(sends ? "send" : "receive").at("id").get<uint64_t>(), sends});
    } while (streams_[node].HasMessage());
  }

  [[nodiscard]] double RateAt(const Order& order) const {
    const auto sharing = std::ranges::count_if(
        orders_, [&](const Order& one) { return one.node == order.node && one.sends == order.sends; });
    return std::min(order.node == 2 && order.rail == 1 ? 50'000.0 : 100'000.0,
                    100'000.0 / static_cast<double>(sharing));
  }

  void Answer() {
    for (const Order& order : orders_) {
      json answer{{"id", order.id}};
      if (order.sends) {
        answer["sent"] = {{"packets", 10'000}, {"lost", 0},         {"connected", true}, {"mbit_s", 0},
                          {"latency_us", 5},   {"other_mbit_s", 0}, {"error", ""}};
      } else {
        double rate = RateAt(order);
        for (const Order& other : orders_) {
          if (other.id == order.id) rate = std::min(rate, RateAt(other));
        }
        answer["received"] = {
            {"mbit_s", rate}, {"other_mbit_s", 0}, {"small", 10}, {"large", 10}, {"error", ""}};
      }
      (void)streams_[order.node].Send(answer, Soon());
    }
    orders_.clear();
  }

  std::vector<LineStream> streams_;
  std::vector<Order> orders_;
  bool told_ = false;
};

TEST_F(Session, RailsOverOnePortTakeTurnsSoALinkOfHalfTheRateIsNamed) {
  auto verdict = Lead(4, Soon());
  SimulatedNodes nodes(4, [&] { return Guest(); });
  nodes.Obey();
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(said->at("mbit_s"), 100'000);
  ASSERT_EQ(said->at("findings").size(), 1U) << *said;
  const json& finding = said->at("findings")[0];
  EXPECT_EQ(finding.at("trouble"), "slow");
  EXPECT_EQ(finding.at("node"), "n2");
  EXPECT_EQ(finding.at("interface"), "roce0.100");
}

TEST_F(Session, WhereAllLinksCarryLessThanTheSettingsSayThatIsTheFinding) {
  auto verdict = Lead(2, Soon());
  std::vector<std::future<Result<bool>>> nodes;
  for (const uint32_t number : {0, 1}) {
    AgentOptions options = Agent(number);  // whose senders keep to 20 Mbit/s
    options.rate_mbit_s = 60;
    nodes.push_back(Come(options));
  }
  const auto said = verdict.get();
  ASSERT_TRUE(said.ok()) << said.error().message;
  EXPECT_EQ(std::ranges::count_if(said->at("findings"),
                                  [](const json& one) { return one.value("should", 0.0) == 60; }),
            1)
      << *said;
  for (auto& node : nodes) EXPECT_TRUE(node.get().ok());
}

TEST(TryVerbs, SaysWhatIsWrongWithADeviceFileAndWhatMendsIt) {
  const Tree tree;
  const VerbsPort port{.device = "mlx5_0"};
  tree.Write("/dev/infiniband/uverbs0", "");
  EXPECT_EQ(TryVerbs(port, tree.root()).why, "/dev/infiniband/uverbs3: No such file or directory");
  tree.Write("/dev/infiniband/uverbs3", "");
  fs::permissions(tree.root() + "/dev/infiniband/uverbs3", fs::perms::none);
  std::thread([&] {
    // Root opens every file by its capabilities; this thread alone gives its own up.
    __user_cap_header_struct self{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
    ASSERT_EQ(::syscall(SYS_capset, &self, none.data()), 0);
    const NoVerbs denied = TryVerbs(port, tree.root());
    EXPECT_EQ(denied.why, "/dev/infiniband/uverbs3: Permission denied");
    EXPECT_EQ(denied.fix, "chmod a+x /dev/infiniband; chmod a+rw /dev/infiniband/uverbs3");
  }).join();
  fs::permissions(tree.root() + "/dev/infiniband/uverbs3", fs::perms::owner_all);
  const NoVerbs provider = TryVerbs(port, tree.root());
  EXPECT_EQ(provider.why, "libibverbs has no provider for mlx5_0");
  EXPECT_EQ(provider.fix, "apt-get install ibverbs-providers");
  EXPECT_EQ(TryVerbs({.device = "mlx5_1"}, tree.root()).why, "the kernel has no uverbs of mlx5_1");
}

TEST_F(Session, OneNodeAloneIsNoTest) {
  auto alone = Come(Agent(0));
  auto verdict = Lead(2, std::chrono::steady_clock::now() + seconds(20));
  const auto said = verdict.get();
  ASSERT_FALSE(said.ok());
  EXPECT_EQ(said.error().message, "1 of 2 nodes came to the test: it needs two");
  EXPECT_FALSE(alone.get().ok());
}

TEST(LineStream, RefusesWhatIsNoMessage) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  LineStream stream{UniqueFd(ends[0])};
  UniqueFd other(ends[1]);
  const auto write = [&](const std::string& text) {
    return rendezvous::SendAll(other.get(), std::as_bytes(std::span(text)), Soon()).ok();
  };
  ASSERT_TRUE(write("{\"a\": 1}\n{\"b\": 2}\nnonsense\n"));
  EXPECT_EQ(stream.Receive(Soon())->at("a"), 1);
  EXPECT_EQ(stream.Receive(Soon())->at("b"), 2);
  EXPECT_EQ(stream.Receive(Soon()).error().code, Errc::kInvalid);
  auto flood = std::async(std::launch::async, [&] { return write(std::string(kMaxLine + 8192, 'x')); });
  EXPECT_EQ(stream.Receive(Soon()).error().message, "a message is too long");
  flood.get();
}

}  // namespace
}  // namespace muster::preflight
