#include "daemon/cli/doctor.h"

#include <memory>
#include <string>
#include <vector>

#include "daemon/cli/doctor_checks.h"
#include "daemon/cli/doctor_report.h"

namespace muster::cli {
namespace {

constexpr auto kChecks = std::chrono::seconds(30);
// With what comes before the checks: looking at the host.
constexpr auto kAll = std::chrono::seconds(43);

struct Named {
  const char* subject;
  void (*run)(const Host&, DoctorNotes&);
};
constexpr std::array kAllChecks = {
    Named{"services", CheckUnits},        Named{"memlock", CheckMemlock},
    Named{"this host's name", CheckName}, Named{"the configuration", CheckConfig},
    Named{"MUNGE", CheckMunge},           Named{"musterd", CheckMusterd},
    Named{"the store", CheckStore},       Named{"room on disks", CheckRoom},
    Named{"health", CheckHealth},         Named{"the plugin", CheckPlugin},
    Named{"slurmctld", CheckSlurmctld},   Named{"gres", CheckGres},
    Named{"the fabric", CheckFabric},
};

Answered Diagnose(const Common& common, const std::vector<std::string>& needs) {
  // Even to read a configuration may take for ever: in a process of its own, too.
  const DoctorReport report = RunChecks(
      {{"this host",
        [&](DoctorNotes& notes) {
          const Host host = LookAtHost(common.config_path, needs);
          std::vector<DoctorCheck> checks;
          checks.reserve(kAllChecks.size());
          for (const Named& one : kAllChecks) {
            checks.push_back({one.subject, [&host, run = one.run](DoctorNotes& own) { run(host, own); }});
          }
          notes.Add(RunChecks(checks, kChecks));
        }}},
      kAll);
  const auto config = LoadConfig(common.config_path);
  const DoctorReport causes = CausesOnly(report);
  return {DoctorJson(causes, OwnName(config ? *config : Config())), causes.ok() ? kGood : kBadFinding};
}

}  // namespace

void AddDoctorCommand(CLI::App* app, const Common* common, int* result) {
  CLI::App* command = app->add_subcommand(
      "doctor", "Look at this host, and say what is wrong and how to mend it; root sees all of it");
  command->fallthrough();
  const auto needs = std::make_shared<std::vector<std::string>>();
  command->add_option("--needs", *needs, "A service that must run here, besides those that are enabled")
      ->check(CLI::IsMember(std::vector<std::string>(kServices.begin(), kServices.end())));
  command->callback([=] { *result = Print(*common, Diagnose(*common, *needs), DoctorText); });
}

}  // namespace muster::cli
