#include "daemon/agent/packets.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster {
namespace {

constexpr uint32_t kMaxProgram = 64;
constexpr uint32_t kMaxGangId = 64;

// A program's name goes into messages, and into the next generation's environment.
std::string Printable(std::string_view text) {
  std::string name(text);
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return name;
}

}  // namespace

std::optional<SupervisorHelloPacket> ReadSupervisorHello(std::string_view packet) {
  SupervisorHelloPacket hello{};
  const char* pieces[4] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &hello.body) ||
      !wire::ReadTail<wire::SupervisorHello, 4>(packet.data(), packet.size(),
                                                {hello.body.node_list_bytes, hello.body.node_name_bytes,
                                                 hello.body.options_bytes, hello.body.components_bytes},
                                                pieces)) {
    return std::nullopt;
  }
  hello.node_list = {pieces[0], hello.body.node_list_bytes};
  hello.node_name = {pieces[1], hello.body.node_name_bytes};
  hello.options = {pieces[2], hello.body.options_bytes};
  hello.components = {pieces[3], hello.body.components_bytes};
  return hello;
}

std::optional<ExitedPacket> ReadExited(std::string_view packet) {
  ExitedPacket exited{};
  const char* pieces[2] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &exited.body) ||
      !wire::ReadTail<wire::Exited, 2>(packet.data(), packet.size(),
                                       {exited.body.program_bytes, exited.body.stderr_bytes}, pieces) ||
      exited.body.program_bytes > kMaxProgram || exited.body.stderr_bytes > wire::kMaxStderrTail) {
    return std::nullopt;
  }
  exited.program = Printable({pieces[0], exited.body.program_bytes});
  exited.stderr_tail = {pieces[1], exited.body.stderr_bytes};
  return exited;
}

std::optional<WarmPacket> ReadWarm(std::string_view packet) {
  WarmPacket warm{};
  const char* pieces[1] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &warm.body) ||
      !wire::ReadTail<wire::Warm, 1>(packet.data(), packet.size(), {warm.body.text_bytes}, pieces) ||
      warm.body.text_bytes > wire::kMaxWarmText) {
    return std::nullopt;
  }
  warm.text = Printable({pieces[0], warm.body.text_bytes});
  return warm;
}

std::optional<LinksTestedPacket> ReadLinksTested(std::string_view packet) {
  LinksTestedPacket tested{};
  const char* pieces[1] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &tested.body) ||
      !wire::ReadTail<wire::LinksTested, 1>(packet.data(), packet.size(), {tested.body.text_bytes}, pieces) ||
      tested.body.text_bytes > wire::kMaxLinksText) {
    return std::nullopt;
  }
  tested.text = {pieces[0], tested.body.text_bytes};
  return tested;
}

std::optional<ClientHelloPacket> ReadClientHello(std::string_view packet) {
  ClientHelloPacket hello{};
  const char* pieces[1] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &hello.body) ||
      !wire::ReadTail<wire::ClientHello, 1>(packet.data(), packet.size(), {hello.body.gang_bytes}, pieces) ||
      hello.body.gang_bytes > kMaxGangId) {
    return std::nullopt;
  }
  hello.gang = {pieces[0], hello.body.gang_bytes};
  return hello;
}

std::optional<ExchangePacket> ReadExchange(std::string_view packet) {
  ExchangePacket exchange{};
  const char* pieces[2] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &exchange.body) ||
      !wire::ReadTail<wire::Exchange, 2>(packet.data(), packet.size(),
                                         {exchange.body.key_bytes, exchange.body.value_bytes}, pieces) ||
      exchange.body.key_bytes > wire::kMaxExchangeKey ||
      exchange.body.value_bytes > wire::kMaxExchangeValue || exchange.body.heard > wire::Heard::kAnswered) {
    return std::nullopt;
  }
  exchange.key = {pieces[0], exchange.body.key_bytes};
  exchange.value = {pieces[1], exchange.body.value_bytes};
  return exchange;
}

std::optional<AskMissingPacket> ReadAskMissing(std::string_view packet) {
  AskMissingPacket ask{};
  const char* pieces[1] = {};
  if (!wire::ReadBody(packet.data(), packet.size(), &ask.body) ||
      !wire::ReadTail<wire::AskMissing, 1>(packet.data(), packet.size(), {ask.body.key_bytes}, pieces) ||
      ask.body.key_bytes > wire::kMaxExchangeKey) {
    return std::nullopt;
  }
  ask.key = {pieces[0], ask.body.key_bytes};
  return ask;
}

GangJob StepOf(const SupervisorHelloPacket& hello) {
  GangJob job;
  job.job_id = hello.body.job_id;
  job.step_id = hello.body.step_id;
  job.restart_count = hello.body.restart_count;
  job.submission = hello.body.submission;
  job.launched_ns = hello.body.launched_ns;
  job.uid = hello.body.uid;
  job.gid = hello.body.gid;
  job.task_count = hello.body.task_count;
  job.node_list = hello.node_list;
  job.options_text = hello.options;
  job.components_text = hello.components;
  if (!hello.components.empty()) job.job_id = GangJobOf(hello.components);
  return job;
}

Status CompleteStep(const wire::SupervisorHello& hello, GangJob* job) {
  if (Status complete = job->Complete(); !complete) return complete;
  const bool one = job->components.list.empty();
  if ((one && (hello.node_id >= job->hosts.size() || hello.node_count != job->hosts.size())) ||
      hello.task_id >= hello.task_count || hello.local_task_count == 0 ||
      hello.local_task_count > hello.task_count || hello.local_id >= hello.local_task_count) {
    return Error{Errc::kInvalid, "the step's numbers contradict each other"};
  }
  return {};
}

Status PlaceInGang(const GangJob& job, std::string_view self, wire::SupervisorHello* hello) {
  if (job.components.list.empty()) return {};
  const auto host = std::find(job.hosts.begin(), job.hosts.end(), self);
  if (host == job.hosts.end()) {
    return Error{Errc::kInvalid,
                 fmt::format("musterd calls this node {} (node_name in muster.yaml), which is "
                             "not one of the step's nodes {}",
                             self, job.node_list)};
  }
  const auto node = static_cast<uint32_t>(host - job.hosts.begin());
  const Component& component = job.components.list[job.components.of_node[node]];
  // Components of one job cannot be told apart, and are one to Muster: Slurm counts each of them.
  if (component.job_id != hello->job_id || hello->node_count > component.nodes.size() ||
      hello->local_task_count != job.components.node_tasks[node]) {
    return Error{Errc::kInvalid, fmt::format("the step's components contradict what Slurm says of {}", self)};
  }
  hello->job_id = job.job_id;
  hello->node_id = node;
  hello->node_count = static_cast<uint32_t>(job.hosts.size());
  hello->task_id = job.components.first_task[node] + hello->local_id;
  hello->task_count = job.task_count;
  return {};
}

}  // namespace muster
