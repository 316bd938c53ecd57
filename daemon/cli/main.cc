// muster: what gangs do and did, and their checkpoints. Exit codes: 0 good, 1 a bad finding, 2 usage, 3 not
// reachable.
#include <CLI/CLI.hpp>
#include <string>

#include "daemon/cli/ask.h"
#include "daemon/cli/checkpoint_command.h"
#include "daemon/cli/checkpoint_output.h"
#include "daemon/cli/doctor.h"
#include "daemon/cli/net_command.h"
#include "daemon/cli/output.h"
#include "daemon/cli/plugin_command.h"

int main(int argc, char** argv) {
  using muster::cli::Show;
  using muster::v1::Question;
  CLI::App app{"muster: gangs and their checkpoints"};
  app.require_subcommand(1);
  app.set_version_flag("--version", MUSTER_VERSION);
  muster::cli::Common common;
  std::string job;
  std::string node;
  std::string reason;
  bool all = false;
  app.add_option("--config", common.config_path, "Configuration file")->capture_default_str();
  app.add_option("--uid", common.uid, "Another user's gangs (root only)");
  app.add_flag("--json", common.json, "Print JSON");
  const auto add = [](CLI::App* parent, const char* name, const char* about) {
    CLI::App* command = parent->add_subcommand(name, about);
    command->fallthrough();
    return command;
  };
  int result = 0;

  CLI::App* status = add(&app, "status", "Show what gangs are doing");
  status->add_option("job", job, "Only gangs of this job")->check(muster::cli::JobName());
  const auto of_job = [&](Question::Kind kind) {
    Question question;
    question.set_kind(kind);
    question.set_gang(job);
    return question;
  };
  status->callback([&] { result = Show(common, of_job(Question::STATUS), muster::StatusTable); });

  CLI::App* events = add(&app, "events", "Show what happened to a gang");
  events->add_option("job", job, "Job")->required()->check(muster::cli::JobName());
  events->callback([&] { result = Show(common, of_job(Question::EVENTS), muster::EventsTable); });

  muster::cli::AddCheckpointCommand(&app, &common, &result);

  muster::cli::AddDoctorCommand(&app, &common, &result);

  muster::cli::AddNetCommand(&app, &common, &result);

  CLI::App* report = add(&app, "report", "Show what is used");
  report->require_subcommand(1);
  CLI::App* storage = add(report, "storage", "Storage used by checkpoints");
  storage->add_flag("--all", all, "All users (root only)");
  storage->callback([&] {
    Question question;
    question.set_kind(Question::STORAGE);
    question.set_all(all);
    result = Show(common, question, muster::cli::StorageTable, muster::cli::kLongTimeoutSeconds);
  });

  CLI::App* nodes =
      add(&app, "node", "Show a node; take it out of service, or give it back; Slurm's plugin on this host");
  nodes->require_subcommand(1);
  const auto of_node = [&](Question::Kind kind) {
    Question question;
    question.set_kind(kind);
    question.set_node(node);
    question.set_reason(reason);
    return question;
  };
  CLI::App* show = add(nodes, "show", "Show whether gangs may run there, its fabric's ports, and the gangs");
  show->add_option("node", node, "Slurm's NodeName")->required();
  show->callback([&] {
    result =
        Show(common, of_node(Question::NODE_SHOW), muster::NodeViewText, muster::cli::kLongTimeoutSeconds);
  });
  CLI::App* drain = add(nodes, "drain",
                        "Checkpoint the gangs there, move them to their spares, and drain the node in Slurm");
  drain->add_option("node", node, "Slurm's NodeName")->required();
  drain->add_option("--reason", reason, "Reason, shown in Slurm and in the gangs' events");
  drain->callback([&] { result = Show(common, of_node(Question::NODE_DRAIN), muster::NodeText); });
  CLI::App* resume = add(nodes, "resume", "Let gangs and Slurm use the node again");
  resume->add_option("node", node, "Slurm's NodeName")->required();
  resume->callback([&] { result = Show(common, of_node(Question::NODE_RESUME), muster::NodeText); });
  muster::cli::AddPluginCommands(nodes, &common, &result);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : muster::cli::kUsage;
  }
  return result;
}
