#include "daemon/cli/plugin_trial.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/run_program.h"
#include "daemon/cli/plugstack.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

// A directory with a configuration of its own, in which Slurm must load the plugin or fail.
class TrialConfiguration {
 public:
  static Result<std::unique_ptr<TrialConfiguration>> Make(const SlurmFiles& files,
                                                          const std::string& plugin) {
    std::string name = (fs::temp_directory_path() / "muster-plugin-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      return Error{Errc::kInternal, fmt::format("cannot make {}: {}", name, std::strerror(errno))};
    std::unique_ptr<TrialConfiguration> trial(new TrialConfiguration(name));
    std::ofstream conf(trial->conf());
    conf << "ClusterName=trial\nSlurmctldHost=localhost\nPlugStackConfig=" << name << "/plugstack.conf\n";
    const std::string plugins = SlurmSetting(files.conf_text, "PluginDir");
    if (!plugins.empty()) conf << "PluginDir=" << plugins << "\n";
    std::ofstream(name + "/plugstack.conf") << "required " << plugin << "\n";
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

// The line in which srun says why it does not load the plugin.
std::string Reason(const Ran& help) {
  if (help.code == kTooLong) return "srun does not answer";
  const std::string& output = help.output;
  size_t at = output.find("Incompatible Slurm plugin");
  if (at == std::string::npos) at = output.find("error: ");
  if (at == std::string::npos) return "srun knows no --gang, and says nothing of it";
  return output.substr(at, output.find('\n', at) - at);
}

}  // namespace

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
  files.configless =
      SlurmSetting(files.conf_text, "SlurmctldParameters").find("enable_configless") != std::string::npos;
  const std::string set = SlurmSetting(files.conf_text, "PlugStackConfig");
  files.plugstack = set.empty() ? fs::path(files.conf).parent_path() / "plugstack.conf" : fs::path(set);
  return files;
}

Result<PluginTrial> TryPlugin(const SlurmFiles& files, const std::string& plugin,
                              std::chrono::milliseconds limit) {
  auto made = TrialConfiguration::Make(files, plugin);
  if (!made) return made.error();
  const std::string conf = "SLURM_CONF=" + (*made)->conf();
  const auto told = RunProgram({conf, "scontrol", "--version"}, limit);
  const auto help = RunProgram({conf, "srun", "-v", "--help"}, limit);
  if (!told) return told.error();
  if (!help) return help.error();
  PluginTrial trial;
  trial.slurm = VersionIn(told->output);
  if (told->code != 0 || trial.slurm.empty() || help->code == kNoProgram) {
    return Error{Errc::kNotFound,
                 "the plugin is tried with srun and scontrol, Slurm's client programs, which are not "
                 "here (package slurm-client)"};
  }
  if (help->code != 0 || help->output.find("--gang=") == std::string::npos) trial.why = Reason(*help);
  return trial;
}

std::string PluginPackage(const std::string& slurm) {
  return "slurm-spank-muster-" + slurm.substr(0, slurm.find('.', slurm.find('.') + 1));
}

}  // namespace muster::cli
