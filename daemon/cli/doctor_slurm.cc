// What Muster needs of Slurm: its plugin, slurmctld's opinion of this node, the devices of gres.conf.
#include <fmt/format.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/hostlist.h"
#include "base/run_program.h"
#include "base/small_files.h"
#include "daemon/cli/doctor_checks.h"
#include "daemon/cli/plugstack.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kTrial = std::chrono::seconds(12);  // for each of two programs
constexpr auto kPing = std::chrono::seconds(15);
constexpr auto kShowNode = std::chrono::seconds(10);

// The first host of slurm.conf's SlurmctldHost, "ctl(10.0.0.1)".
std::string Controller(const Host& host) {
  const std::string value = SlurmSetting(host.slurm.conf_text, "SlurmctldHost");
  return value.empty() ? "the controller" : value.substr(0, value.find('('));
}

// A command that is to be run where slurmctld is.
std::string OnController(const Host& host, const std::string& command) {
  const std::string controller = Controller(host);
  return controller == host.name ? command : fmt::format("on {}: {}", controller, command);
}

// Installs the plugin for a release of Slurm.
std::string InstallAgain(const std::string& slurm) {
  std::error_code ignored;
  if (fs::exists("/usr/bin/apt-get", ignored)) return "apt-get install --reinstall " + PluginPackage(slurm);
  return "dnf reinstall slurm-spank-muster";  // it requires the series
}

// The value of "KEY=" in what scontrol has printed on one line; up to the next key of its own line or blank.
std::string Field(const std::string& line, const std::string& key, const char* end) {
  const size_t at = line.find(key);
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size();
  return line.substr(begin, line.find_first_of(end, begin) - begin);
}

// The paths of "/dev/nvidia[0-3],/dev/x"; nothing: it is not understood.
std::optional<std::vector<std::string>> Paths(const std::string& expression) {
  std::vector<std::string> paths;
  std::string part;
  int depth = 0;
  for (const char c : expression + ",") {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c != ',' || depth > 0) {
      part += c;
      continue;
    }
    const auto names = ExpandHostlist(fs::path(part).filename().string());
    if (!names) return std::nullopt;
    for (const std::string& name : *names) paths.push_back(fs::path(part).parent_path() / name);
    part.clear();
  }
  return paths;
}

// The devices that gres.conf names for a node, and the lines that are not understood.
struct Gres {
  std::vector<std::string> files;
  std::vector<std::string> strange;
};

Gres ParseGres(const std::string& text, const std::string& node) {
  Gres gres;
  for (const std::string& line : Words(text, "\n")) {
    const std::string said = line.substr(0, line.find('#'));
    const std::string nodes = SlurmSetting(said, "NodeName");
    std::string files = SlurmSetting(said, "File");
    if (files.empty()) files = SlurmSetting(said, "MultipleFiles");
    if (files.empty()) continue;
    const auto hosts = nodes.empty() ? Result<std::vector<std::string>>({node}) : ExpandHostlist(nodes);
    const auto paths = Paths(files);
    if (!hosts || !paths) {
      gres.strange.push_back(said);
    } else if (std::ranges::find(*hosts, node) != hosts->end()) {
      gres.files.insert(gres.files.end(), paths->begin(), paths->end());
    }
  }
  return gres;
}

std::string GresFix(const std::string& path, const std::string& conf) {
  const std::string name = fs::path(path).filename();
  if (name.starts_with("nvidia") && name.size() > 6 && ParseDecimal(name.substr(6)))
    return fmt::format("nvidia-modprobe -c {}", name.substr(6));
  return fmt::format("load the driver that makes {}, or take it out of {}", path, conf);
}

}  // namespace

void CheckPlugin(const Host& host, DoctorNotes& notes) {
  if (host.slurm.conf.empty())
    return notes.Unchecked("the plugin: this host has no slurm.conf, nor one from a running slurmd");
  const std::string text = ReadText(host.slurm.plugstack).value_or("");
  std::string plugin = PluginIn(text);
  const std::string included = IncludedPluginLine(text, fs::path(host.slurm.plugstack).parent_path());
  if (plugin.empty() && !included.empty()) plugin = PluginIn(ReadText(included).value_or(""));
  const auto trial = TryPlugin(host.slurm, plugin.empty() ? kPlugin : plugin, kTrial);
  if (!trial) return notes.Unchecked("the plugin: " + trial.error().message);
  notes.Check(trial->why.empty(),
              {"plugin-not-loading", "",
               fmt::format("{} does not load into Slurm {}: {}", kPlugin, trial->slurm, trial->why),
               "compiled for this release", InstallAgain(trial->slurm)});
  if (!trial->why.empty()) return;
  const bool sent = host.slurm.sent || host.slurm.configless;
  const std::string enable = "muster node enable-plugin";
  notes.Check(!plugin.empty(),
              {"plugin-off", "", fmt::format("{} has no line for {}", host.slurm.plugstack, kPlugin),
               "its last line", sent ? OnController(host, enable + " && scontrol reconfigure") : enable});
}

void CheckSlurmctld(const Host& host, DoctorNotes& notes) {
  if (host.slurm.conf.empty()) return;
  const std::string conf = "SLURM_CONF=" + host.slurm.conf;
  const auto ping = RunProgram({conf, "scontrol", "ping"}, kPing);
  if (!ping || ping->code == kNoProgram) return notes.Unchecked("slurmctld: scontrol is not installed");
  const bool up = ping->output.find(" is UP") != std::string::npos;
  notes.Check(up,
              {"slurmctld-unreachable", "", fmt::format("slurmctld on {} does not answer", Controller(host)),
               "it answers within seconds", OnController(host, "systemctl restart slurmctld.service")});
  if (!up || !host.Has("slurmd")) return;
  const auto shown = RunProgram({conf, "scontrol", "show", "node", host.name, "--oneliner"}, kShowNode);
  if (!shown || shown->code == kTooLong)
    return notes.Unchecked("this node in Slurm: scontrol does not answer");
  const std::string state = Field(shown->output, " State=", " \n");
  const std::string reason = Field(shown->output, " Reason=", "\n");
  if (state.empty()) {
    if (!host.systemd) return;  // a host of another kind that has a slurm.conf
    return notes.Check(false, {"node-down", "unknown", fmt::format("slurmctld knows no node {}", host.name),
                               "a NodeName of slurm.conf",
                               OnController(host, "add it to slurm.conf; scontrol reconfigure")});
  }
  const auto has = [&](const char* word) { return state.find(word) != std::string::npos; };
  const bool drained = has("DRAIN") || has("FAIL");
  // Not NOT_RESPONDING: it has been given back a moment ago, or is DOWN in a moment.
  const bool down = has("DOWN") && !has("POWER");
  const std::string fix = reason.starts_with("muster: ")
                              ? fmt::format("muster node resume {}", host.name)
                              : fmt::format("scontrol update nodename={} state=resume", host.name);
  notes.Check(!drained && !down, {"node-down", drained ? "drained: " + reason : "down",
                                  fmt::format("Slurm has {} as {}: {}", host.name, state,
                                              reason.empty() ? "it says no reason" : reason),
                                  "a node that takes jobs", fix});
}

void CheckGres(const Host& host, DoctorNotes& notes) {
  if (host.slurm.conf.empty() || !host.Has("slurmd")) return;
  const std::string conf = fs::path(host.slurm.conf).parent_path() / "gres.conf";
  const Gres gres = ParseGres(ReadText(conf).value_or(""), host.name);
  for (const std::string& line : gres.strange) notes.Unchecked(fmt::format("{}: {}", conf, line));
  if (gres.files.empty()) return;
  std::string missing;
  std::string fix;
  for (const std::string& path : gres.files) {
    if (::access(path.c_str(), F_OK) == 0) continue;
    missing += (missing.empty() ? "" : ", ") + path;
    fix += (fix.empty() ? "" : "; ") + GresFix(path, conf);
  }
  notes.Check(missing.empty(), {"gres", "", fmt::format("{} names {}, which is not there", conf, missing),
                                "a device for each that Slurm gives to jobs", fix});
}

}  // namespace muster::cli
