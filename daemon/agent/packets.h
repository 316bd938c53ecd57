// What supervisors and libmuster say, read out of packets that wire::CheckHeader has passed. Pure, and fuzzed: all
// of it comes from users' processes. Texts point into the packet.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/gang_job/gang_job.h"
#include "wire/wire.h"

namespace muster {

struct SupervisorHelloPacket {
  wire::SupervisorHello body;
  std::string_view node_list;
  std::string_view node_name;
  std::string_view options;
  std::string_view components;
};
struct ExitedPacket {
  wire::Exited body;
  std::string program;  // every byte that is not printable ASCII is '?'
  std::string_view stderr_tail;
};
struct WarmPacket {
  wire::Warm body;
  std::string text;  // every byte that is not printable ASCII is '?'
};
struct LinksTestedPacket {
  wire::LinksTested body;
  std::string_view text;
};
struct ClientHelloPacket {
  wire::ClientHello body;
  std::string_view gang;
};

struct ExchangePacket {
  wire::Exchange body;
  std::string_view key;
  std::string_view value;
};
struct AskMissingPacket {
  wire::AskMissing body;
  std::string_view key;
};

// Empty for what is malformed: too short, with lengths that do not fit the packet, or above their limits.
std::optional<SupervisorHelloPacket> ReadSupervisorHello(std::string_view packet);
std::optional<ExitedPacket> ReadExited(std::string_view packet);
std::optional<WarmPacket> ReadWarm(std::string_view packet);
std::optional<LinksTestedPacket> ReadLinksTested(std::string_view packet);
std::optional<ClientHelloPacket> ReadClientHello(std::string_view packet);
std::optional<ExchangePacket> ReadExchange(std::string_view packet);
std::optional<AskMissingPacket> ReadAskMissing(std::string_view packet);
// For bodies without a tail.
template <typename Body>
std::optional<Body> ReadPacket(std::string_view packet) {
  Body body{};
  if (!wire::ReadBody(packet.data(), packet.size(), &body)) return std::nullopt;
  return body;
}

// The step that a hello is of, not checked yet: enough to find its gang by Id.
GangJob StepOf(const SupervisorHelloPacket& hello);
// Completes the job, and checks that the hello's numbers fit it and one another. kInvalid with the reason.
Status CompleteStep(const wire::SupervisorHello& hello, GangJob* job);
// Slurm numbers a component's nodes and tasks by themselves: makes them this gang's, for the daemon of node `self`. Does
// nothing in a step of one component. kInvalid when the job, the node and the numbers are not one component's.
Status PlaceInGang(const GangJob& job, std::string_view self, wire::SupervisorHello* hello);

}  // namespace muster
