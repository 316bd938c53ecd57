#include "daemon/cli/plugin_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/unique_fd.h"
#include "daemon/cli/plugin_trial.h"
#include "daemon/cli/plugstack.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr auto kTrial = std::chrono::seconds(20);  // for each of two programs

// The version of this host's Slurm, in which the plugin loads.
Result<std::string> LoadsInto(const SlurmFiles& files) {
  const auto trial = TryPlugin(files, kPlugin, kTrial);
  if (!trial) return trial.error();
  if (trial->why.empty()) return trial->slurm;
  return Error{
      Errc::kConflict,
      fmt::format("{} does not load into Slurm {}: {}; install {}, which is compiled for this release",
                  kPlugin, trial->slurm, trial->why, PluginPackage(trial->slurm))};
}

// Replaces the file in one step, with its mode and owner; what is empty then was made by this command, and goes.
Status Replace(const std::string& path, const std::string& text) {
  const auto failed = [&](const char* what) {
    return Error{Errc::kDenied, fmt::format("cannot {} {}: {}", what, path, std::strerror(errno))};
  };
  std::error_code ignored;
  const fs::path real = fs::weakly_canonical(path, ignored);
  struct stat info {};
  const bool exists = ::stat(real.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode))
    return Error{Errc::kInvalid, fmt::format("{} is no regular file", path)};
  if (text.empty()) return ::unlink(real.c_str()) == 0 || errno == ENOENT ? Status() : failed("remove");
  std::string made = real.string() + ".muster-XXXXXX";
  const UniqueFd file(::mkostemp(made.data(), O_CLOEXEC));
  if (!file.valid()) return failed("write beside");
  const bool written = ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fchmod(file.get(), exists ? info.st_mode & 07777 : 0644) == 0 &&
                       (!exists || ::fchown(file.get(), info.st_uid, info.st_gid) == 0) &&
                       ::fsync(file.get()) == 0 && ::rename(made.c_str(), real.c_str()) == 0;
  if (written) return {};
  const Error error = failed("write");
  ::unlink(made.c_str());
  return error;
}

Result<Answered> Check() {
  const SlurmFiles files = FindSlurm();
  const auto version = LoadsInto(files);
  if (!version) return version.error();
  return Answered{{{"slurm", *version}, {"loads", true}}};
}

Result<Answered> Change(bool enable) {
  const SlurmFiles files = FindSlurm();
  if (files.conf.empty()) {
    return Error{
        Errc::kNotFound,
        "this host has no slurm.conf: neither /etc/slurm nor, from a running slurmd, /run/slurm/conf"};
  }
  json document{{"plugstack", files.plugstack}, {"configless", files.configless}};
  if (enable) {
    const auto version = LoadsInto(files);
    if (!version) return version.error();
    document["slurm"] = *version;
  }
  const auto read = ReadText(files.plugstack);
  const std::string before = read.value_or("");
  if (files.sent) {
    document["changed"] = false;
    document["enabled"] = WithoutPluginLine(before) != before;
    return Answered{document};
  }
  const std::string other = IncludedPluginLine(before, fs::path(files.plugstack).parent_path());
  if (enable && !other.empty()) {
    return Error{Errc::kConflict,
                 fmt::format("{} has a line for spank_muster.so, and {} includes it: take that line "
                             "away, for the plugin must be the last one and be there once",
                             other, files.plugstack)};
  }
  const std::string after = enable ? WithPluginLine(before) : WithoutPluginLine(before);
  document["changed"] = after != before;
  // Where slurmctld's host is a node too, slurmd has what slurmctld has sent, all the same.
  const fs::path sent = fs::path(kSentConf).replace_filename("plugstack.conf");
  const std::string of_slurmd = fs::exists(kSentConf) ? ReadText(sent).value_or("") : after;
  document["enabled"] = WithoutPluginLine(of_slurmd) != of_slurmd;
  if (after != before) {
    if (Status done = Replace(files.plugstack, after); !done) return done.error();
  }
  return Answered{document};
}

std::string PluginText(const json& document) {
  if (!document.contains("plugstack"))
    return fmt::format("spank_muster.so loads into Slurm {}\n", document.at("slurm").get<std::string>());
  const std::string path = document.at("plugstack");
  if (fs::path(path).parent_path() == fs::path(kSentConf).parent_path()) {
    return fmt::format("slurmctld sends {} to this host: run this command where slurmctld runs\n", path);
  }
  if (document.at("changed") == false) return fmt::format("{} is right as it is\n", path);
  return fmt::format(
      "{} is changed{}\n", path,
      document.at("configless") == true ? ". Nodes take it from slurmctld: run `scontrol reconfigure`" : "");
}

}  // namespace

void AddPluginCommands(CLI::App* node, const Common* common, int* result) {
  const auto add = [=](const char* name, const char* about, std::function<Result<Answered>()> run) {
    CLI::App* command = node->add_subcommand(name, about);
    command->fallthrough();
    command->callback([=] {
      const auto answered = run();
      *result = answered ? Print(*common, *answered, PluginText) : Fail(answered.error());
    });
  };
  add("enable-plugin", "Try Slurm's plugin on this host, and make it the last one of plugstack.conf",
      [] { return Change(true); });
  add("disable-plugin", "Take Muster's line out of this host's plugstack.conf", [] { return Change(false); });
  add("check-plugin", "Try whether Slurm's plugin loads on this host", Check);
}

}  // namespace muster::cli
