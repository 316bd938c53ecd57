#include "daemon/cli/ask.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <set>
#include <utility>

#include "base/hostlist.h"
#include "base/run_program.h"
#include "base/small_files.h"
#include "daemon/rpc/ask_daemon.h"

namespace muster::cli {
namespace {

constexpr auto kSlurm = std::chrono::seconds(10);
constexpr size_t kMostServers = 5;  // one that is away costs seconds

Result<v1::Answer> AskOne(const std::string& node, const std::string& address, const v1::Question& question,
                          int timeout_seconds) {
  auto reply = AskDaemon(node, address, question.SerializeAsString(), timeout_seconds);
  if (!reply) {
    return Error{reply.error().code, reply.error().message + " (is musterd.service running?)"};
  }
  v1::Answer answer;
  if (!answer.ParseFromString(*reply)) return Error{Errc::kUnavailable, "malformed answer"};
  return answer;
}

// musterd has made its directory on each host that has ever had one.
bool HasMusterd(const Config& config) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(config.socket).parent_path(), ignored);
}

// A program of Slurm that prints a list of nodes on each line.
std::vector<std::string> NodesBy(std::vector<std::string> words) {
  std::vector<std::string> nodes;
  const auto ran = RunProgram(std::move(words), kSlurm);
  if (!ran || ran->code != 0) return nodes;
  for (const std::string& line : Words(ran->output, "\n")) {
    if (const auto names = ExpandHostlist(line)) nodes.insert(nodes.end(), names->begin(), names->end());
  }
  return nodes;
}

// Whom to ask where no musterd runs: each of them knows all gangs.
std::vector<std::string> Servers(const Common& common, const Config& config) {
  std::vector<std::string> nodes = Words(config.servers, ", ");
  if (!nodes.empty()) return nodes;
  const std::string uid = std::to_string(common.uid.value_or(::getuid()));
  nodes = NodesBy({"squeue", "--noheader", "--states=RUNNING", "--user=" + uid, "--format=%N"});
  const auto others = NodesBy({"sinfo", "--noheader", "--responding", "--format=%N"});
  nodes.insert(nodes.end(), others.begin(), others.end());
  std::set<std::string> seen;
  std::erase_if(nodes, [&](const std::string& node) { return !seen.insert(node).second; });
  return nodes;
}

Result<v1::Answer> AskAny(const Common& common, const Config& config, const v1::Question& question,
                          int timeout_seconds) {
  const auto nodes = Servers(common, config);
  Error last{
      Errc::kUnavailable,
      "this host has no musterd, and Slurm names no node that has one: say some as `servers` in muster.yaml"};
  for (size_t i = 0; i < std::min(nodes.size(), kMostServers); ++i) {
    auto answer = AskOne(nodes[i], fmt::format("{}:{}", nodes[i], config.port), question, timeout_seconds);
    if (answer || answer.error().code == Errc::kDenied) return answer;
    last = answer.error();
  }
  return last;
}

Result<v1::Answer> AskBest(const Common& common, const Config& config, const v1::Question& question,
                           int timeout_seconds) {
  auto answer = HasMusterd(config) ? AskOne(OwnName(config), fmt::format("127.0.0.1:{}", config.port),
                                            question, timeout_seconds)
                                   : AskAny(common, config, question, timeout_seconds);
  if (!answer || answer->ask_instead().empty()) return answer;
  const std::string address = answer->ask_instead();
  auto better = AskOne(address.substr(0, address.rfind(':')), address, question, timeout_seconds);
  if (better && better->error().empty()) return better;
  if (!question.node().empty()) {
    if (better) return better;
    return Error{Errc::kUnavailable, better.error().message + "; for a dead node use scontrol"};
  }
  std::cerr << fmt::format("muster: the coordinator at {} does not answer; this is its last record\n",
                           address);
  return answer;
}

Errc CodeOf(uint32_t exit_code) {
  if (exit_code == kUsage) return Errc::kInvalid;
  return exit_code == kBadFinding ? Errc::kNotFound : Errc::kUnavailable;
}

}  // namespace

std::string OwnName(const Config& config) {
  if (!config.node_name.empty()) return config.node_name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string full(name.data());
  return full.substr(0, full.find('.'));
}

Result<Answered> Ask(const Common& common, const Config& config, v1::Question question, int timeout_seconds) {
  question.set_has_uid(common.uid.has_value());
  question.set_uid(common.uid.value_or(0));
  const auto answer = AskBest(common, config, question, timeout_seconds);
  if (!answer) return Error{Errc::kUnavailable, answer.error().message};
  if (!answer->error().empty()) return Error{CodeOf(answer->exit_code()), answer->error()};
  Answered answered{nlohmann::json::parse(answer->json(), nullptr, false),
                    static_cast<int>(answer->exit_code())};
  if (answered.document.is_discarded()) return Error{Errc::kUnavailable, "malformed answer"};
  return answered;
}

int ExitCode(Errc code) {
  switch (code) {
    case Errc::kInvalid:
    case Errc::kDenied:
      return kUsage;
    case Errc::kUnavailable:
      return kNotReachable;
    case Errc::kNotFound:
    case Errc::kConflict:
    case Errc::kCorrupt:
    case Errc::kExhausted:
    case Errc::kInternal:
      return kBadFinding;
  }
  return kBadFinding;
}

int Fail(const Error& error) {
  std::cerr << "muster: " << error.message << "\n";
  return ExitCode(error.code);
}

int Print(const Common& common, const Answered& answered, std::string (*table)(const nlohmann::json&)) {
  if (common.json) {
    std::cout << answered.document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << table(answered.document);
  }
  return answered.code;
}

int Show(const Common& common, const v1::Question& question, std::string (*table)(const nlohmann::json&),
         int timeout_seconds) {
  const auto config = LoadConfig(common.config_path);
  if (!config) return Fail({Errc::kInvalid, config.error().message});
  const auto answered = Ask(common, *config, question, timeout_seconds);
  if (!answered) return Fail(answered.error());
  return Print(common, *answered, table);
}

}  // namespace muster::cli
