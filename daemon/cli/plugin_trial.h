// This host's Slurm: its files, and whether it loads Muster's plugin.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace muster::cli {

// Where a slurmd without a slurm.conf keeps what slurmctld has sent (slurm.conf(5), "configless").
inline constexpr char kSentConf[] = "/run/slurm/conf/slurm.conf";

struct SlurmFiles {
  std::string conf;  // slurm.conf; "": this host has none
  std::string conf_text;
  std::string plugstack;    // plugstack.conf
  bool sent = false;        // the files are slurmctld's, and it writes them again
  bool configless = false;  // slurm.conf says that slurmctld sends nodes their files
};
SlurmFiles FindSlurm();

struct PluginTrial {
  std::string slurm;  // the version of this host's Slurm
  std::string why;    // it does not load the plugin; "": it does
};
// Loads a plugin, by its path or its name, with a configuration of its own. kNotFound: Slurm's client programs are not here.
Result<PluginTrial> TryPlugin(const SlurmFiles& files, const std::string& plugin,
                              std::chrono::milliseconds limit);

// The package that has the plugin for a release of Slurm.
std::string PluginPackage(const std::string& slurm);

}  // namespace muster::cli
