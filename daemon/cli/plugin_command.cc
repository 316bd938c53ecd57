#include "daemon/cli/plugin_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/helper_program.h"
#include "base/unique_fd.h"
#include "daemon/cli/plugstack.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kTrialSeconds[] = "20";
constexpr int kNoProgram = 127;

// Where a slurmd without a slurm.conf keeps what slurmctld has sent (slurm.conf(5), "configless").
constexpr char kSentConf[] = "/run/slurm/conf/slurm.conf";

struct SlurmFiles {
  std::string conf;  // slurm.conf; "": this host has none
  std::string conf_text;
  std::string plugstack;  // plugstack.conf
  bool sent = false;      // the files are slurmctld's, and it writes them again
};

SlurmFiles FindSlurm() {
  const char* told = std::getenv("SLURM_CONF");
  SlurmFiles files;
  files.conf = told != nullptr ? told : "/etc/slurm/slurm.conf";
  auto text = ReadText(files.conf);
  if (!text && told == nullptr) {
    files.conf = kSentConf;
    text = ReadText(files.conf);
    files.sent = text.has_value();
  }
  if (!text) {
    files.conf.clear();
    return files;
  }
  files.conf_text = *std::move(text);
  const std::string set = SlurmSetting(files.conf_text, "PlugStackConfig");
  files.plugstack = set.empty() ? fs::path(files.conf).parent_path() / "plugstack.conf" : fs::path(set);
  return files;
}

struct Ran {
  int code = 0;
  std::string output;  // standard output and error
};

// Runs a program of Slurm to its end, or for kTrialSeconds.
Result<Ran> RunSlurm(const std::string& conf, std::vector<std::string> words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error{Errc::kInternal, fmt::format("pipe: {}", std::strerror(errno))};
  UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  words.insert(words.begin(), {"SLURM_CONF=" + conf, "timeout", "--kill-after=1", kTrialSeconds});
  const auto pid = StartHelper("/usr/bin/env", std::move(words), {{input.get(), 1}, {input.get(), 2}});
  if (!pid) return pid.error();
  input.reset();
  Ran ran;
  std::array<char, 4096> part{};
  ssize_t size = 0;
  while ((size = ::read(output.get(), part.data(), part.size())) > 0 || (size < 0 && errno == EINTR))
    ran.output.append(part.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ran;
}

// A directory with a configuration of its own, in which Slurm must load Muster's plugin or fail.
class TrialConfiguration {
 public:
  static Result<std::unique_ptr<TrialConfiguration>> Make(const SlurmFiles& files) {
    std::string name = (fs::temp_directory_path() / "muster-plugin-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      return Error{Errc::kInternal, fmt::format("cannot make {}: {}", name, std::strerror(errno))};
    std::unique_ptr<TrialConfiguration> trial(new TrialConfiguration(name));
    std::ofstream conf(trial->conf());
    conf << "ClusterName=trial\nSlurmctldHost=localhost\nPlugStackConfig=" << name << "/plugstack.conf\n";
    const std::string plugins = SlurmSetting(files.conf_text, "PluginDir");
    if (!plugins.empty()) conf << "PluginDir=" << plugins << "\n";
    std::ofstream(name + "/plugstack.conf") << "required spank_muster.so\n";
    return trial;
  }
  TrialConfiguration(const TrialConfiguration&) = delete;
  TrialConfiguration& operator=(const TrialConfiguration&) = delete;
  ~TrialConfiguration() {
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  [[nodiscard]] std::string conf() const { return directory_ + "/slurm.conf"; }

 private:
  explicit TrialConfiguration(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;
};

// "22.05.8" of "slurm-wlm 22.05.8".
std::string VersionIn(const std::string& said) {
  const size_t at = said.find_first_of("0123456789");
  return at == std::string::npos ? "" : said.substr(at, said.find_first_not_of("0123456789.", at) - at);
}

std::string SeriesOf(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// The line in which srun says why it does not load the plugin.
std::string Reason(const std::string& output) {
  size_t at = output.find("Incompatible Slurm plugin");
  if (at == std::string::npos) at = output.find("error: ");
  if (at == std::string::npos) return "srun knows no --gang, and says nothing of it";
  return output.substr(at, output.find('\n', at) - at);
}

// The version of this host's Slurm, in which the plugin loads.
Result<std::string> TryPlugin(const SlurmFiles& files) {
  auto trial = TrialConfiguration::Make(files);
  if (!trial) return trial.error();
  const auto told = RunSlurm((*trial)->conf(), {"scontrol", "--version"});
  const auto help = RunSlurm((*trial)->conf(), {"srun", "-v", "--help"});
  if (!told) return told.error();
  if (!help) return help.error();
  const std::string version = VersionIn(told->output);
  if (told->code != 0 || version.empty() || help->code == kNoProgram) {
    return Error{Errc::kNotFound,
                 "the plugin is tried with srun and scontrol, Slurm's client programs, which are not "
                 "here (package slurm-client)"};
  }
  if (help->code == 0 && help->output.find("--gang=") != std::string::npos) return version;
  return Error{
      Errc::kConflict,
      fmt::format("spank_muster.so does not load into Slurm {}: {}; install slurm-spank-muster-{}, which is "
                  "compiled for this release",
                  version, Reason(help->output), SeriesOf(version))};
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
  const auto version = TryPlugin(files);
  if (!version) return version.error();
  return Answered{{{"slurm", *version}, {"loads", true}}};
}

Result<Answered> Change(bool enable) {
  const SlurmFiles files = FindSlurm();
  if (files.conf.empty()) {
    return Error{Errc::kNotFound,
                 "this host has no slurm.conf: neither /etc/slurm nor, from a running slurmd, /run/slurm/conf"};
  }
  json document{{"plugstack", files.plugstack}};
  document["configless"] =
      SlurmSetting(files.conf_text, "SlurmctldParameters").find("enable_configless") != std::string::npos;
  if (enable) {
    const auto version = TryPlugin(files);
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
  document["enabled"] = enable;
  if (after != before) {
    if (Status done = Replace(files.plugstack, after); !done) return done.error();
  }
  return Answered{document};
}

std::string Text(const json& document) {
  if (!document.contains("plugstack"))
    return fmt::format("spank_muster.so loads into Slurm {}\n", document.at("slurm").get<std::string>());
  const std::string path = document.at("plugstack");
  if (fs::path(path).parent_path() == fs::path(kSentConf).parent_path()) {
    return fmt::format("slurmctld sends {} to this host: run this command where slurmctld runs\n", path);
  }
  if (document.at("changed") == false) return fmt::format("{} is right as it is\n", path);
  return fmt::format("{} is changed{}\n", path,
                     document.at("configless") == true
                         ? ". Nodes take it from slurmctld: run `scontrol reconfigure`"
                         : "");
}

}  // namespace

void AddPluginCommands(CLI::App* node, const Common* common, int* result) {
  const auto add = [=](const char* name, const char* about, std::function<Result<Answered>()> run) {
    CLI::App* command = node->add_subcommand(name, about);
    command->fallthrough();
    command->callback([=] {
      const auto answered = run();
      *result = answered ? Print(*common, *answered, Text) : Fail(answered.error());
    });
  };
  add("enable-plugin", "Try Slurm's plugin on this host, and make it the last one of plugstack.conf",
      [] { return Change(true); });
  add("disable-plugin", "Take Muster's line out of this host's plugstack.conf", [] { return Change(false); });
  add("check-plugin", "Try whether Slurm's plugin loads on this host", Check);
}

}  // namespace muster::cli
