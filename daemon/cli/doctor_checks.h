// What `muster doctor` looks at. Each check looks at this host alone, changes nothing, and may block.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "daemon/cli/doctor_report.h"
#include "daemon/cli/plugin_trial.h"
#include "daemon/config/config.h"

namespace muster::cli {

inline constexpr std::array kServices = {"munge", "slurmd", "slurmctld", "musterd"};

// A unit as systemd knows it.
struct Unit {
  std::string name;     // "slurmd.service"
  bool wanted = false;  // it must run here
  bool installed = false;
  std::string state;    // ActiveState
  std::string result;   // of its last run: "success", "exit-code", ...
  std::string says;     // its own last status text
  std::string memlock;  // LimitMEMLOCK: "infinity", or bytes
  int pid = 0;          // 0: it does not run
};

struct Host {
  std::string name;  // as Slurm knows it
  bool root = false;
  std::string config_path;
  std::optional<Config> config;
  std::string config_error;  // why there is none
  bool systemd = false;      // the units are known
  std::vector<Unit> units;   // of kServices
  SlurmFiles slurm;

  [[nodiscard]] const Unit& unit(const std::string& service) const;
  // Whether the service has its place here. Without systemd: whether it has left its marks.
  [[nodiscard]] bool Has(const std::string& service) const;
};

// What the host is, by what is installed, enabled and configured. `needs`: services that must run here in any case.
Host LookAtHost(const std::string& config_path, const std::vector<std::string>& needs);

void CheckUnits(const Host& host, DoctorNotes& notes);
void CheckMemlock(const Host& host, DoctorNotes& notes);
void CheckName(const Host& host, DoctorNotes& notes);

void CheckConfig(const Host& host, DoctorNotes& notes);
void CheckMunge(const Host& host, DoctorNotes& notes);
void CheckMusterd(const Host& host, DoctorNotes& notes);
void CheckStore(const Host& host, DoctorNotes& notes);

void CheckFabric(const Host& host, DoctorNotes& notes);

void CheckRoom(const Host& host, DoctorNotes& notes);
void CheckHealth(const Host& host, DoctorNotes& notes);

void CheckPlugin(const Host& host, DoctorNotes& notes);
void CheckSlurmctld(const Host& host, DoctorNotes& notes);
void CheckGres(const Host& host, DoctorNotes& notes);

}  // namespace muster::cli
