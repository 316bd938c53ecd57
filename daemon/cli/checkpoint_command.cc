#include "daemon/cli/checkpoint_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/cli/checkpoint_output.h"
#include "daemon/cli/checkpoint_transfer.h"
#include "daemon/cli/commit.h"
#include "daemon/cli/musterd_session.h"
#include "wire/gang_options.h"

namespace muster::cli {
namespace {

using nlohmann::json;
using v1::Question;

struct Options {
  std::string of;  // JOB, JOB.STEP or name=KEY
  std::optional<uint64_t> step;
  std::string pinned;  // the name of a pinned one, in place of a step
  std::optional<uint32_t> rank;
  std::optional<uint32_t> keep;
  std::string directory;
  std::string name;
  std::vector<std::string> files;
};

// What a command that moves shards needs.
struct Work {
  const Common& common;
  const Options& options;
  Config config;

  Result<MusterdSession> Session() const { return MusterdSession::Open(config.socket, common.uid); }
  Result<Answered> List() const {
    Question question;
    question.set_kind(Question::CHECKPOINT_LIST);
    question.set_gang(options.of);
    return Ask(common, config, question);
  }
};

Question About(const Options& options, Question::Kind kind) {
  Question question;
  question.set_kind(kind);
  question.set_gang(options.of);
  question.set_has_step(options.step.has_value());
  question.set_step(options.step.value_or(0));
  question.set_has_rank(options.rank.has_value());
  question.set_rank(options.rank.value_or(0));
  question.set_has_keep(options.keep.has_value());
  question.set_keep(options.keep.value_or(0));
  question.set_name(options.name);
  return question;
}

// The steps that are meant, of a list of checkpoints: all when none is named.
Result<std::vector<uint64_t>> StepsOf(const json& list, const Options& options) {
  std::vector<uint64_t> steps;
  for (const json& item : list.at("checkpoints")) {
    const bool meant = options.pinned.empty() ? !options.step || item.at("step") == *options.step
                                              : item.at("pinned") == options.pinned;
    if (meant) steps.push_back(item.at("step"));
  }
  if (!steps.empty() || (!options.step && options.pinned.empty())) return steps;
  return Error{Errc::kNotFound,
               options.pinned.empty()
                   ? fmt::format("{} has no checkpoint of step {}", options.of, *options.step)
                   : fmt::format("{} has no checkpoint pinned as '{}'", options.of, options.pinned)};
}

// The one that is meant: the newest good one when none is named.
Result<uint64_t> StepOf(const json& list, const Options& options) {
  if (options.step || !options.pinned.empty()) {
    const auto steps = StepsOf(list, options);
    return steps ? Result<uint64_t>(steps->front()) : steps.error();
  }
  for (const json& item : list.at("checkpoints")) {
    if (item.at("latest").get<bool>()) return item.at("step").get<uint64_t>();
  }
  return Error{Errc::kNotFound, options.of + " has no good checkpoint"};
}

// A question about one checkpoint, whose step is looked up when it is named otherwise.
template <Question::Kind kind>
Result<Answered> AskOfOne(const Work& work) {
  Question question = About(work.options, kind);
  if (!work.options.pinned.empty()) {
    const auto list = work.List();
    if (!list) return list.error();
    const auto step = StepOf(list->document, work.options);
    if (!step) return step.error();
    question.set_has_step(true);
    question.set_step(*step);
  }
  return Ask(work.common, work.config, question, kLongTimeoutSeconds);
}

Result<Answered> Verify(const Work& work) {
  const auto list = work.List();
  if (!list) return list.error();
  const auto steps = StepsOf(list->document, work.options);
  if (!steps) return steps.error();
  auto session = work.Session();
  if (!session) return session.error();
  const auto verified = VerifyCheckpoints(*session, list->document.at("key"), *steps);
  if (!verified) return verified.error();
  Answered answered;
  json found = json::array();
  json removed = json::array();
  const bool named = work.options.step || !work.options.pinned.empty();
  for (const Verified& one : *verified) {
    if (one.removed && named) return Error{Errc::kNotFound, one.reason};
    if (one.removed) {
      removed.push_back({{"step", one.step}, {"reason", one.reason}});
      continue;
    }
    if (!one.reason.empty()) answered.code = kBadFinding;
    found.push_back(
        {{"step", one.step}, {"bytes", one.bytes}, {"verified", one.reason.empty()}, {"reason", one.reason}});
  }
  answered.document = {{"gang", list->document.at("gang")},
                       {"key", list->document.at("key")},
                       {"checkpoints", found},
                       {"removed", removed}};
  return answered;
}

Result<Answered> Export(const Work& work) {
  const auto list = work.List();
  if (!list) return list.error();
  const auto step = StepOf(list->document, work.options);
  if (!step) return step.error();
  auto session = work.Session();
  if (!session) return session.error();
  auto document = ExportCheckpoint(*session, list->document.at("key"), *step, work.options.directory);
  if (!document && document.error().code == Errc::kNotFound) {
    return Error{Errc::kNotFound,
                 document.error().message + " (one that is pinned stays: muster checkpoint pin)"};
  }
  if (!document) return document.error();
  return Answered{*std::move(document)};
}

Result<Answered> Import(const Work& work) {
  auto session = work.Session();
  if (!session) return session.error();
  auto document = ImportCheckpoint(*session, work.options.name, *work.options.step, work.options.files);
  if (!document) return document.error();
  return Answered{*std::move(document)};
}

int Do(const Common& common, const Options& options, Result<Answered> (*work)(const Work&),
       std::string (*table)(const json&)) {
  auto config = LoadConfig(common.config_path);
  if (!config) return Fail({Errc::kInvalid, config.error().message});
  const auto answered = work(Work{common, options, *std::move(config)});
  return answered ? Print(common, *answered, table) : Fail(answered.error());
}

bool IsJob(const std::string& text) {
  return !text.empty() && text.size() <= 48 && text.find_first_not_of("0123456789abcdef.-r") == text.npos;
}

bool IsName(const std::string& text) {
  return wire::detail::IsName(text.data(), text.size());
}

// A job, or the name under which several jobs share their checkpoints.
CLI::Validator Owner() {
  return {[](const std::string& text) {
            const bool good = IsJob(text) || (text.starts_with("name=") && IsName(text.substr(5)));
            return good ? std::string()
                        : fmt::format("'{}' is not a job (12), a step of one (12.0), or name=KEY", text);
          },
          "JOB[.STEP]|name=KEY"};
}

CLI::Validator Key(const char* what) {
  return {[](const std::string& text) {
            return IsName(text)
                       ? std::string()
                       : fmt::format("'{}' is no name: letters, digits, '.', '_' and '-', at most {}", text,
                                     wire::kMaxName);
          },
          what};
}

// CLI11 takes a negative number for a large one.
CLI::Validator Digits() {
  return {[](const std::string& text) {
            const bool good = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
            return good ? std::string() : fmt::format("'{}' is not a number from 0 on", text);
          },
          ""};
}

}  // namespace

CLI::Validator JobName() {
  return {[](const std::string& text) {
            return IsJob(text) ? std::string()
                               : fmt::format("'{}' is not a job (12) or a step of one (12.0)", text);
          },
          "JOB[.STEP]"};
}

void AddCheckpointCommand(CLI::App* app, const Common* common, int* result) {
  const auto options = std::make_shared<Options>();
  CLI::App* checkpoint = app->add_subcommand("checkpoint", "A gang's checkpoints");
  checkpoint->fallthrough();
  checkpoint->require_subcommand(1);
  const auto add = [&](const char* name, const char* about) {
    CLI::App* command = checkpoint->add_subcommand(name, about);
    command->fallthrough();
    return command;
  };
  const auto add_of = [&](const char* name, const char* about) {
    CLI::App* command = add(name, about);
    command->add_option("job", options->of, "Job, or name=KEY")->required()->check(Owner());
    return command;
  };
  // A checkpoint is named by its step, or by the name under which it is pinned.
  const auto add_step = [&](CLI::App* command, const char* about) {
    return command->add_option("--step", options->step, about)->check(Digits());
  };
  const auto add_one = [&](CLI::App* command, const char* about) {
    CLI::Option_group* one = command->add_option_group("which");
    one->add_option("--step", options->step, about)->check(Digits());
    one->add_option("--name", options->pinned, "Name of a pinned checkpoint")->check(Key("NAME"));
    return one;
  };
  const auto ask = [=](Question::Kind kind, std::string (*table)(const json&)) {
    return [=] { *result = Show(*common, About(*options, kind), table); };
  };
  const auto work = [=](Result<Answered> (*what)(const Work&), std::string (*table)(const json&)) {
    return [=] { *result = Do(*common, *options, what, table); };
  };

  add_of("list", "List a gang's checkpoints")->callback(ask(Question::CHECKPOINT_LIST, CheckpointTable));

  CLI::App* show = add_of("show", "Show a checkpoint's shards and tensors");
  add_one(show, "Step number (default: the newest good checkpoint)")->require_option(0, 1);
  show->add_option("--rank", options->rank, "Rank whose entries are shown when there are many")
      ->check(Digits());
  show->callback(work(AskOfOne<Question::CHECKPOINT_SHOW>, CheckpointText));

  CLI::App* verify = add_of("verify", "Read and check every byte; exit 1 if a checkpoint is bad");
  add_one(verify, "Only the checkpoint of this step")->require_option(0, 1);
  verify->callback(work(Verify, VerifyTable));

  CLI::App* pin = add_of("pin", "Keep a checkpoint under a name until it is unpinned");
  add_step(pin, "Step number")->required();
  pin->add_option("--name", options->name, "Name by which other commands find it")
      ->required()
      ->check(Key("NAME"));
  pin->callback(work(AskOfOne<Question::CHECKPOINT_PIN>, PinText));

  CLI::App* unpin = add_of("unpin", "Unpin a checkpoint");
  add_one(unpin, "Step number")->require_option(1);
  unpin->callback(work(AskOfOne<Question::CHECKPOINT_UNPIN>, PinText));

  CLI::App* remove = add_of("delete", "Delete a checkpoint");
  add_one(remove, "Step number")->require_option(1);
  remove->callback(work(AskOfOne<Question::CHECKPOINT_DELETE>, RemovedText));

  CLI::App* prune =
      add_of("prune", "Delete checkpoints that the configuration does not keep, or all but the newest");
  prune->add_option("--keep", options->keep, "How many of the newest good checkpoints to keep")
      ->check(CLI::Range(1, 1'000'000));
  prune->callback(work(AskOfOne<Question::CHECKPOINT_PRUNE>, RemovedText));

  CLI::App* give = add_of("export", "Write a checkpoint as safetensors files, one for each member");
  add_one(give, "Step number (default: the newest good checkpoint)")->require_option(0, 1);
  give->add_option("--to", options->directory, "Directory; created if it is missing")->required();
  give->callback(work(Export, ExportText));

  CLI::App* take = add("import", "Make a checkpoint from safetensors files, one for each member");
  take->add_option("--name", options->name, "Jobs with --gang=name=KEY start from the checkpoint")
      ->required()
      ->check(Key("KEY"));
  add_step(take, "Step number")->required();
  take->add_option("files", options->files, "safetensors files in the order of the ranks")->required();
  take->callback(work(Import, ImportText));

  AddCommitCommand(checkpoint, common, result);
}

}  // namespace muster::cli
