#include "daemon/cli/net_test.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <optional>

#include "base/helper_program.h"
#include "base/own_name.h"
#include "base/small_files.h"
#include "daemon/cli/net_test_text.h"
#include "net/fabric/devices.h"
#include "net/preflight/probe_agent.h"
#include "net/preflight/rails.h"
#include "net/preflight/referee.h"
#include "net/rendezvous/socket.h"
#include "net/roce/gids.h"

namespace muster::cli {
namespace {

using nlohmann::json;
using preflight::AgentOptions;
using preflight::Rail;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxNodes = 65'536;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

preflight::NoVerbs WhyNoVerbs(const fabric::Device& device, const fabric::Port& port) {
  if (!port.Active())
    return {
        fmt::format("{} port {} is {}", device.name, port.number, port.state),
        fmt::format("rdma link show {}/{}; ip link show dev {}", device.name, port.number, port.interface)};
  if (!port.gid_index)
    return {fmt::format("{} port {}: {}", device.name, port.number, port.gid_why),
            fmt::format("muster net show {}", device.name)};
  return {};
}

std::string NetworkText(const roce::Network& network) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const int family = network.address.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  (void)::inet_ntop(family, network.address.data(), text.data(), text.size());
  return fmt::format("{}/{}", text.data(), network.prefix);
}

// Of the fabric's interfaces each is a rail, by the settings' networks and the addresses in them; without any, the node has one,
// whichever way leads to the referee.
std::vector<Rail> RailsOf(const roce::Host& host, const roce::Settings& settings) {
  std::vector<Rail> rails;
  auto addresses = host.addresses();
  std::ranges::sort(addresses, {}, [](const roce::HostAddress& one) {
    return std::pair(roce::AddressBytes(one.text), one.interface);
  });
  for (const roce::Network& network : settings.networks) {
    for (const auto& [name, address, prefix] : addresses) {
      const bool known = std::ranges::find(rails, name, &Rail::interface) != rails.end();
      if (known || !network.Has(address)) continue;
      const std::string directory = host.root + "/sys/class/net/" + name;
      Rail& rail = rails.emplace_back();
      rail.interface = name;
      rail.address = address;
      rail.mtu = static_cast<int64_t>(ReadNumber(directory + "/mtu").value_or(0));
      rail.rate_mbit_s = settings.rate > 0
                             ? settings.rate
                             : static_cast<int64_t>(ReadNumber(directory + "/speed").value_or(0));
      rail.network = NetworkText(network);
    }
  }
  for (const roce::Interface& interface : roce::FabricInterfaces(host, settings)) {
    const auto rail = std::ranges::find(rails, interface.name, &Rail::interface);
    if (rail == rails.end()) continue;
    for (const roce::PhysicalPort& port : interface.ports) rail->carriers.push_back(port.name);
    for (const roce::RdmaPort& port : interface.rdma)
      rail->carriers.push_back(fmt::format("{}:{}", port.device, port.port));
  }
  const fabric::HostDevices found = fabric::LookAtDevices(host, settings);
  for (Rail& rail : rails) {
    for (const fabric::Device& device : found.devices) {
      for (const fabric::Port& port : device.ports) {
        // A VLAN and its port's own interface share the port, and each has GIDs of its own.
        const roce::Gid* gid = roce::BestGid(port.gids, settings.networks, rail.interface);
        if ((gid == nullptr && port.interface != rail.interface) || rail.HasVerbs()) continue;
        rail.verbs = {device.name, static_cast<uint8_t>(port.number), gid == nullptr ? 0 : gid->index,
                      static_cast<uint8_t>(settings.TrafficClass())};
        rail.no_verbs = WhyNoVerbs(device, port);
      }
    }
    if (rail.verbs.device.empty())
      rail.no_verbs = {fmt::format("{} has no RDMA device", rail.interface), "muster net show"};
  }
  if (rails.empty()) rails.emplace_back().rate_mbit_s = settings.rate;
  return rails;
}

Result<AgentOptions> FromEnvironment(uint64_t& nodes) {
  AgentOptions options;
  const auto number = ParseDecimal(Variable("GROUP_RANK"));
  const auto size = ParseDecimal(Variable("GROUP_WORLD_SIZE"));
  const auto port = ParseDecimal(Variable("MASTER_PORT"));
  options.host = Variable("MASTER_ADDR");
  if (!number || !size || !port || options.host.empty() || *port == 0 || *port > 65'535) {
    return Error{Errc::kInvalid,
                 "this is no gang: start it with one task on each node, as in "
                 "srun --gang=restarts=0 -N4 --ntasks-per-node=1 muster net test"};
  }
  if (*size < 2 || *size > kMaxNodes || *number >= *size)
    return Error{Errc::kInvalid, fmt::format("a test needs two nodes or more, and this gang has {}", *size)};
  options.node = static_cast<uint32_t>(*number);
  options.port = static_cast<uint16_t>(*port);
  options.run = fmt::format("{}/{}", Variable("MUSTER_GANG"), Variable("MUSTER_GENERATION"));
  options.name = muster::OwnName();
  // "s0.s4.n12": the last part is the node itself.
  const std::string tree = Variable("SLURM_TOPOLOGY_ADDR");
  if (const size_t dot = tree.rfind('.'); dot != std::string::npos) options.switches = tree.substr(0, dot);
  nodes = *size;
  return options;
}

int Lead(const Common& common, AgentOptions agent, const preflight::TestOptions& test) {
  const auto listening = rendezvous::Listen(agent.port);
  if (!listening) return Fail(listening.error());
  agent.host = "127.0.0.1";
  // With an address of its own where it has one: the way to itself says nothing of the others'.
  auto own = std::async(std::launch::async, [&] { return RunAgent(agent, test.come); });
  auto verdict = RunTest(*listening, test);
  own.wait();
  if (!verdict) return Fail(verdict.error());
  Shorten(*verdict);
  return Print(common, Answered{*verdict, verdict->at("ok").get<bool>() ? kGood : kBadFinding}, VerdictText);
}

}  // namespace

int TestGpus(const Common& common, const roce::Host& host, const roce::Settings& settings,
             const TestWords& words) {
  const std::string program = HelperProgram("muster-nccl-test");
  std::vector<std::string> arguments{
      program, fmt::format("--wait={}", words.wait_seconds),
      fmt::format("--largest-mib={}", words.largest_mib),
      fmt::format("--link-mbit={}", RailsOf(host, settings).front().rate_mbit_s)};
  if (common.json) arguments.emplace_back("--json");
  std::vector<char*> words_of_exec;
  words_of_exec.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words_of_exec.push_back(argument.data());
  words_of_exec.push_back(nullptr);
  ::execv(program.c_str(), words_of_exec.data());
  return Fail(
      Error{Errc::kNotFound, fmt::format("{} cannot be executed ({}): the package muster-train has it",
                                         program, std::strerror(errno))});
}

int TestFabric(const Common& common, const roce::Host& host, const roce::Settings& settings,
               const TestWords& words) {
  if (ParseDecimal(Variable("LOCAL_RANK")).value_or(0) > 0) return kGood;
  uint64_t nodes = 0;
  auto agent = FromEnvironment(nodes);
  if (!agent) return Fail(agent.error());
  agent->rails = RailsOf(host, settings);
  for (const roce::Network& network : settings.networks) agent->networks.push_back(NetworkText(network));
  // An emulated adapter says no speed, and its host's processors may reach less than the settings' rate: no rate is expected of it.
  const bool says_speed = std::ranges::any_of(agent->rails, [&](const Rail& rail) {
    return ReadNumber(host.root + "/sys/class/net/" + rail.interface + "/speed").value_or(0) > 0;
  });
  if (says_speed) agent->rate_mbit_s = settings.rate;
  agent->root = host.root;
  agent->traffic_class = static_cast<uint8_t>(settings.networks.empty() ? 0 : settings.TrafficClass());
  const auto come = Clock::now() + std::chrono::seconds(words.wait_seconds);
  if (agent->node == 0) {
    preflight::TestOptions test;
    test.run = agent->run;
    test.nodes = static_cast<uint32_t>(nodes);
    test.full = words.full;
    test.come = come;
    return Lead(common, *agent, test);
  }
  const auto good = RunAgent(*agent, come);
  if (!good) return Fail(good.error());
  return *good ? kGood : kBadFinding;
}

}  // namespace muster::cli
