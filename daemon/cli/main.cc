// muster: what gangs do and did, and their checkpoints. Exit codes: 0 good, 1 a bad finding, 2 usage, 3 not
// reachable.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "daemon/cli/output.h"
#include "daemon/config/config.h"
#include "daemon/proto/muster.pb.h"
#include "daemon/rpc/ask.h"

namespace {

using muster::v1::Answer;
using muster::v1::Question;

constexpr int kUsage = 2;
constexpr int kNotReachable = 3;
constexpr int kTimeoutSeconds = 60;

struct Options {
  std::string config = "/etc/muster/muster.yaml";
  bool json = false;
  std::optional<uint32_t> uid;
  std::string job;
  std::optional<uint64_t> step;
};

std::string OwnName(const muster::Config& config) {
  if (!config.node_name.empty()) return config.node_name;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string full(name.data());
  return full.substr(0, full.find('.'));
}

muster::Result<Answer> AskOne(const std::string& node, const std::string& address, const Question& question) {
  auto reply = muster::AskDaemon(node, address, question.SerializeAsString(), kTimeoutSeconds);
  if (!reply) return reply.error();
  Answer answer;
  if (!answer.ParseFromString(*reply)) return muster::Error{muster::Errc::kInternal, "malformed answer"};
  return answer;
}

// Asks this host's daemon, and the coordinator when that one knows better; if it does not answer, what the
// store says is shown.
muster::Result<Answer> Ask(const muster::Config& config, const Question& question) {
  auto answer = AskOne(OwnName(config), fmt::format("127.0.0.1:{}", config.port), question);
  if (!answer || answer->ask_instead().empty()) return answer;
  const std::string address = answer->ask_instead();
  auto better = AskOne(address.substr(0, address.rfind(':')), address, question);
  if (better && better->error().empty()) return better;
  std::cerr << fmt::format("muster: the coordinator at {} does not answer; this is its last record\n",
                           address);
  return answer;
}

int Show(const Options& options, Question question, std::string (*table)(const nlohmann::json&)) {
  const auto config = muster::LoadConfig(options.config);
  if (!config) {
    std::cerr << "muster: " << config.error().message << "\n";
    return kUsage;
  }
  question.set_gang(options.job);
  question.set_has_uid(options.uid.has_value());
  question.set_uid(options.uid.value_or(0));
  question.set_has_step(options.step.has_value());
  question.set_step(options.step.value_or(0));
  const auto answer = Ask(*config, question);
  if (!answer) {
    std::cerr << "muster: " << answer.error().message << " (is musterd.service running?)\n";
    return kNotReachable;
  }
  if (!answer->error().empty()) {
    std::cerr << "muster: " << answer->error() << "\n";
    return static_cast<int>(answer->exit_code());
  }
  if (options.json) {
    std::cout << answer->json() << "\n";
  } else {
    std::cout << table(nlohmann::json::parse(answer->json()));
  }
  return static_cast<int>(answer->exit_code());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"muster: gangs and their checkpoints"};
  app.require_subcommand(1);
  app.set_version_flag("--version", MUSTER_VERSION);
  Options options;
  app.add_option("--config", options.config, "Configuration file")->capture_default_str();
  app.add_option("--uid", options.uid, "Another user's gangs (root only)");
  const auto common = [&](CLI::App* command) {
    command->add_flag("--json", options.json, "Print JSON");
    command->fallthrough();
    return command;
  };
  // JOB or JOB.STEP, as squeue and sacct show it.
  const auto check_job = CLI::Validator(
      [](const std::string& text) {
        const bool good =
            !text.empty() && text.size() <= 32 && text.find_first_not_of("0123456789.-r") == text.npos;
        return good ? std::string() : fmt::format("'{}' is not a job (12) or a step of one (12.0)", text);
      },
      "JOB[.STEP]");
  int result = 0;

  CLI::App* status = common(app.add_subcommand("status", "What gangs are doing"));
  status->add_option("job", options.job, "Only this job's")->check(check_job);
  status->callback([&] { result = Show(options, Question(), muster::StatusTable); });

  const auto with_kind = [](Question::Kind kind) {
    Question question;
    question.set_kind(kind);
    return question;
  };
  CLI::App* events = common(app.add_subcommand("events", "What has happened to a gang"));
  events->add_option("job", options.job, "Job")->required()->check(check_job);
  events->callback([&] { result = Show(options, with_kind(Question::EVENTS), muster::EventsTable); });

  CLI::App* checkpoint = common(app.add_subcommand("checkpoint", "A gang's checkpoints"));
  checkpoint->require_subcommand(1);
  CLI::App* list = common(checkpoint->add_subcommand("list", "List them"));
  list->add_option("job", options.job, "Job")->required()->check(check_job);
  list->callback(
      [&] { result = Show(options, with_kind(Question::CHECKPOINT_LIST), muster::CheckpointTable); });
  CLI::App* verify =
      common(checkpoint->add_subcommand("verify", "Read every byte and check it; exit code 1: bad"));
  verify->add_option("job", options.job, "Job")->required()->check(check_job);
  verify->add_option("--step", options.step, "Only this step's");
  verify->callback(
      [&] { result = Show(options, with_kind(Question::CHECKPOINT_VERIFY), muster::VerifyTable); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return result;
}
