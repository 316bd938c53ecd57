// Whether the interfaces of the RoCE fabric are as its settings say.
#include <fmt/format.h>

#include <string>

#include "daemon/cli/doctor_checks.h"
#include "net/roce/knobs.h"

namespace muster::cli {

void CheckFabric(const Host& host, DoctorNotes& notes) {
  const std::string path = host.config ? host.config->fabric_settings : roce::kSettingsPath;
  const auto settings = roce::LoadSettings(path);
  if (settings && settings->networks.empty()) return;
  notes.Check(settings.ok(), {"fabric", "settings", settings ? "" : settings.error().message,
                              "a file that is read", fmt::format("$EDITOR {}", path)});
  if (!settings) return;
  const roce::Host here = roce::ThisHost();
  const auto interfaces = roce::FabricInterfaces(here, *settings);
  notes.Check(!interfaces.empty(),
              {"fabric", "", fmt::format("no interface of {} has an address of the fabric", host.name),
               fmt::format("an address in {}", settings->networks_text),
               fmt::format("ip address; networks in {} says which addresses", path)});
  for (const roce::Knob& knob : roce::Check(here, *settings, interfaces)) {
    if (knob.state == roce::State::kUnknown) continue;  // `muster net check` says why
    notes.Check(knob.state == roce::State::kIs,
                {knob.name == "mtu" ? "mtu" : "fabric", knob.interface,
                 fmt::format("{} of {} is {}", knob.name, knob.interface, knob.is), knob.should,
                 knob.can_set ? "muster net set" : knob.fix});
  }
}

}  // namespace muster::cli
