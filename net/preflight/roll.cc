#include "net/preflight/roll.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>

#include "net/rendezvous/socket.h"

namespace muster::preflight {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kMaxRails = 16;
constexpr size_t kMaxName = 64;  // bytes
constexpr size_t kMaxNetworks = 64;
constexpr size_t kMaxCarriers = 32;  // names of a rail's ports
constexpr size_t kMaxWhy = 250;      // bytes
constexpr milliseconds kHello{500};
constexpr milliseconds kRefusalSent{5'000};

// The names of a list, no more than `most` of them.
std::vector<std::string> Names(const json& message, const char* key, size_t most) {
  auto names = message.value(key, std::vector<std::string>());
  names.resize(std::min(names.size(), most));
  for (std::string& name : names) name.resize(std::min(name.size(), kMaxName));
  return names;
}

std::optional<Node> ParseHello(const json& message, const std::string& run, std::string& refused) {
  try {
    Node node;
    node.number = message.at("node").get<uint32_t>();
    node.name = message.at("name").get<std::string>().substr(0, 255);
    node.switches = message.value("switches", "").substr(0, 1'024);
    if (message.at("hello").get<std::string>() != run) {
      refused = "this node belongs to another test";
      return std::nullopt;
    }
    node.networks = Names(message, "networks", kMaxNetworks);
    node.rate_mbit_s = std::max<int64_t>(0, message.value("rate", int64_t{0}));
    for (const json& one : message.at("rails")) {
      RailOf& rail = node.rails.emplace_back();
      rail.interface = one.value("interface", "").substr(0, kMaxName);
      rail.address = one.at("address").get<std::string>().substr(0, kMaxName);
      rail.port = one.at("port").get<uint16_t>();
      rail.mtu = one.value("mtu", int64_t{0});
      rail.rate_mbit_s = std::max<int64_t>(0, one.value("rate", int64_t{0}));
      rail.network = one.value("network", "").substr(0, kMaxName);
      rail.carriers = Names(one, "carriers", kMaxCarriers);
      rail.own = node.rails.size() - 1;
      rail.verbs = one.value("verbs", false);
      rail.device = !one.value("device", "").empty();
      rail.no_verbs = {one.value("why", "").substr(0, kMaxWhy), one.value("fix", "").substr(0, kMaxWhy)};
    }
    if (node.rails.empty() || node.rails.size() > kMaxRails) {
      refused = "a node has one rail to sixteen";
      return std::nullopt;
    }
    return node;
  } catch (const json::exception& error) {
    refused = fmt::format("what this node says is not understood: {}", error.what());
    return std::nullopt;
  }
}

// Who has come over the loopback interface is on this host, and the others reach it where they have reached the referee.
void GiveOwnAddress(std::vector<Node>& nodes) {
  std::string own;
  for (const Node& node : nodes) {
    const auto address = rendezvous::LocalAddress(node.stream->fd());
    const std::string text = !address ? "" : address->starts_with("::ffff:") ? address->substr(7) : *address;
    if (!text.empty() && !rendezvous::IsLoopback(text)) own = text;
  }
  if (own.empty()) return;
  for (Node& node : nodes) {
    for (RailOf& rail : node.rails) {
      if (rendezvous::IsLoopback(rail.address)) rail.address = own;
    }
  }
}

class Roll {
 public:
  Roll(const UniqueFd& listening, const std::string& run, uint32_t nodes, Deadline come)
      : listening_(listening), run_(run), wanted_(nodes), come_(come) {}

  std::vector<Node> Call() {
    while (nodes_.size() < wanted_ && Clock::now() < come_) {
      std::vector<pollfd> entries{{listening_.get(), POLLIN, 0}};
      for (const auto& guest : guests_) entries.push_back({guest->fd(), POLLIN, 0});
      const auto left = std::chrono::ceil<milliseconds>(come_ - Clock::now());
      if (::poll(entries.data(), entries.size(),
                 static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000))) <= 0)
        continue;
      for (size_t i = guests_.size(); i-- > 0;) {
        if (entries[i + 1].revents == 0) continue;
        auto guest = std::move(guests_[i]);
        guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
        Meet(std::move(guest));
      }
      if (entries[0].revents != 0) Accept();
    }
    std::ranges::sort(nodes_, {}, &Node::number);
    GiveOwnAddress(nodes_);
    return std::move(nodes_);
  }

 private:
  void Accept() {
    UniqueFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid() && guests_.size() < size_t{2} * wanted_ + 16)
      guests_.push_back(std::make_unique<LineStream>(std::move(fd)));
  }

  void Meet(std::unique_ptr<LineStream> stream) {
    // Who sends half a line holds up the others for a moment.
    const auto hello = stream->Receive(std::min(come_, Clock::now() + kHello));
    if (!hello) return;
    std::string refused;
    auto node = ParseHello(*hello, run_, refused);
    if (node && std::ranges::any_of(nodes_, [&](const Node& one) { return one.number == node->number; }))
      refused = fmt::format("node {} is here already", node->number);
    if (node && node->number >= wanted_) refused = fmt::format("this test has {} nodes", wanted_);
    if (!refused.empty()) {
      (void)stream->Send({{"refused", refused}}, Clock::now() + kRefusalSent);
      return;
    }
    node->stream = std::move(stream);
    nodes_.push_back(std::move(*node));
  }

  const UniqueFd& listening_;
  const std::string& run_;
  uint32_t wanted_;
  Deadline come_;
  std::vector<std::unique_ptr<LineStream>> guests_;  // have not said who they are
  std::vector<Node> nodes_;
};

}  // namespace

std::vector<Node> CallRoll(const UniqueFd& listening, const std::string& run, uint32_t nodes, Deadline come) {
  return Roll(listening, run, nodes, come).Call();
}

}  // namespace muster::preflight
