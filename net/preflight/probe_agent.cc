#include "net/preflight/probe_agent.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/preflight/tcp_probe.h"
#include "net/preflight/verbs_probe.h"
#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// No test lasts so long; a referee that hangs ends nobody's job.
constexpr auto kLongest = std::chrono::minutes(30);
constexpr auto kAnswer = std::chrono::seconds(10);
constexpr int64_t kLongestMeasurement = 60'000;  // ms

Result<Order> ParseOrder(const json& message) {
  try {
    Order order;
    order.id = message.at("id").get<uint64_t>();
    order.address = message.value("address", "");
    order.port = message.value("port", uint16_t{0});
    const auto ms = message.at("ms").get<int64_t>();
    order.rate_mbit_s = message.at("rate").get<int64_t>();
    order.verbs = message.at("verbs").get<bool>();
    if (ms < 1 || ms > kLongestMeasurement || order.rate_mbit_s < 0)
      return Error{Errc::kInvalid, "an order of the referee is out of bounds"};
    order.duration = milliseconds(ms);
    return order;
  } catch (const json::exception& error) {
    return Error{Errc::kInvalid, fmt::format("an order of the referee is not understood: {}", error.what())};
  }
}

class Agent {
 public:
  Agent(AgentOptions options, LineStream stream)
      : options_(std::move(options)), stream_(std::move(stream)), workers_(options_.rails.size()) {}

  Status Open() {
    for (Rail& rail : options_.rails) {
      if (rail.HasVerbs()) rail.no_verbs = TryVerbs(rail.verbs, options_.root);
      auto sockets = ProbeSockets::Open(rail.address);
      if (!sockets) return sockets.error();
      sockets_.push_back(std::move(*sockets));
    }
    return {};
  }

  Status SayHello() {
    json rails = json::array();
    for (size_t i = 0; i < options_.rails.size(); ++i) {
      const Rail& rail = options_.rails[i];
      std::string address = rail.address;
      if (address.empty()) {
        const auto own = rendezvous::LocalAddress(stream_.fd());
        if (!own) return own.error();
        address = *own;
      }
      rails.push_back({{"interface", rail.interface},
                       {"address", address},
                       {"port", sockets_[i].port()},
                       {"mtu", rail.mtu},
                       {"rate", rail.rate_mbit_s},
                       {"network", rail.network},
                       {"carriers", rail.carriers},
                       {"device", rail.verbs.device},
                       {"verbs", rail.HasVerbs()},
                       {"why", rail.no_verbs.why},
                       {"fix", rail.no_verbs.fix}});
    }
    return Reply({{"hello", options_.run},
                  {"node", options_.node},
                  {"name", options_.name},
                  {"switches", options_.switches},
                  {"networks", options_.networks},
                  {"rate", options_.rate_mbit_s},
                  {"rails", rails}});
  }

  Result<bool> Obey() {
    auto verdict = UntilVerdict();
    for (std::thread& worker : workers_) {
      if (worker.joinable()) worker.join();
    }
    return verdict;
  }

 private:
  Status Reply(const json& message) {
    const std::lock_guard lock(sending_);
    return stream_.Send(message, Clock::now() + kAnswer);
  }

  Result<bool> UntilVerdict() {
    const auto until = Clock::now() + kLongest;
    for (;;) {
      auto message = stream_.Receive(until);
      if (!message) return message.error();
      if (message->contains("verdict")) return message->at("verdict").value("ok", false);
      if (message->contains("refused"))
        return Error{Errc::kInvalid, message->value("refused", std::string("the referee refuses this node"))};
      const bool sends = message->contains("send");
      if (!sends && !message->contains("receive"))
        return Error{Errc::kInvalid, "the referee says what is not known here"};
      auto order = ParseOrder(message->at(sends ? "send" : "receive"));
      if (!order) return order.error();
      order->traffic_class = options_.traffic_class;
      const size_t rail = message->value("rail", size_t{0});
      if (rail >= sockets_.size())
        return Error{Errc::kInvalid, "the referee asks for a rail that this node does not have"};
      // Rails measure at the same time, each of them one thing after the other.
      if (workers_[rail].joinable()) workers_[rail].join();
      workers_[rail] = std::thread([this, order = *order, rail, sends] { Measure(order, rail, sends); });
    }
  }

  void Measure(const Order& order, size_t rail, bool sends) {
    json answer{{"id", order.id}};
    if (sends) {
      const Sent sent = Send(order, options_.rails[rail]);
      answer["sent"] = {{"packets", sent.packets},
                        {"lost", sent.lost},
                        {"connected", sent.connected},
                        {"mbit_s", sent.mbit_s},
                        {"latency_us", sent.latency_us},
                        {"other_mbit_s", sent.other_mbit_s},
                        {"error", sent.error}};
    } else {
      const Received received = sockets_[rail].Receive(order, options_.rails[rail]);
      answer["received"] = {{"mbit_s", received.mbit_s},
                            {"other_mbit_s", received.other_mbit_s},
                            {"small", received.small_heard},
                            {"large", received.large_heard},
                            {"error", received.error}};
    }
    // The referee waits no longer than for this; when it is gone, Receive says so.
    (void)Reply(answer);
  }

  AgentOptions options_;
  LineStream stream_;
  std::vector<ProbeSockets> sockets_;
  std::mutex sending_;
  std::vector<std::thread> workers_;  // of each rail
};

}  // namespace

Result<bool> RunAgent(const AgentOptions& options, Deadline deadline) {
  auto fd = rendezvous::ConnectUntil(options.host, options.port, deadline);
  if (!fd) return fd.error();
  Agent agent(options, LineStream(std::move(*fd)));
  if (Status opened = agent.Open(); !opened) return opened.error();
  if (Status said = agent.SayHello(); !said) return said.error();
  return agent.Obey();
}

}  // namespace muster::preflight
