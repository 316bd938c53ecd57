#include "daemon/cli/doctor_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace muster::cli {
namespace {

using nlohmann::json;

// A kind of finding: its id, and how its `about` begins.
struct Kind {
  const char* id;
  const char* about;
};
struct Follows {
  Kind effect;
  Kind cause;
};
// On one host; over hosts, provisioning/plugins/filter/findings.py has the like. No circles: of each chain the beginning is said.
constexpr std::array kFollows = {
    Follows{{"unit-down", "musterd.service"}, {"unit-down", "munge.service"}},  // musterd's unit requires it
    Follows{{"unit-down", "slurmd.service failed"}, {"unit-down", "munge.service"}},
    Follows{{"unit-down", "slurmctld.service failed"}, {"unit-down", "munge.service"}},
    Follows{{"munge-not-working", ""}, {"unit-down", "munge.service"}},
    Follows{{"unit-down", "musterd.service failed"}, {"munge-not-working", ""}},
    Follows{{"unit-down", "slurmd.service failed"}, {"munge-not-working", ""}},
    Follows{{"unit-down", "slurmctld.service failed"}, {"munge-not-working", ""}},
    Follows{{"musterd-not-answering", ""}, {"munge-not-working", ""}},
    Follows{{"slurmctld-unreachable", ""}, {"munge-not-working", ""}},
    Follows{{"node-down", "down"}, {"munge-not-working", ""}},
    Follows{{"unit-down", "musterd.service failed"}, {"config-bad", ""}},
    Follows{{"unit-down", "musterd.service failed"}, {"store-unreachable", ""}},
    Follows{{"unit-down", "musterd.service failed"}, {"disk-full", ""}},
    Follows{{"unit-down", "slurmd.service failed"}, {"disk-full", ""}},
    Follows{{"unit-down", "slurmctld.service failed"}, {"disk-full", ""}},
    Follows{{"unit-down", "slurmd.service failed"}, {"hosts-entry", ""}},
    Follows{{"unit-down", "slurmd.service failed"}, {"gres", ""}},
    Follows{{"unit-down", "slurmd.service failed"}, {"plugin-not-loading", ""}},
    Follows{{"musterd-not-answering", ""}, {"unit-down", "musterd.service"}},
    Follows{{"musterd-not-answering", ""}, {"store-unreachable", ""}},
    Follows{{"store-unreachable", "as musterd sees it"}, {"store-unreachable", "itself"}},
    Follows{{"slurmctld-unreachable", ""}, {"unit-down", "slurmctld.service"}},
    Follows{{"slurmctld-unreachable", ""}, {"hosts-entry", ""}},
    Follows{{"node-down", "down"}, {"unit-down", "slurmd.service"}},
    Follows{{"node-down", "down"}, {"hosts-entry", ""}},
    Follows{{"node-down", ""}, {"gres", ""}},  // Slurm drains it
    Follows{{"node-down", "drained: SlurmdSpoolDir is full"}, {"disk-full", ""}},
};

bool Is(const DoctorFinding& finding, const Kind& kind) {
  return finding.id == kind.id && finding.about.starts_with(kind.about);
}

json Fields(const DoctorFinding& finding) {
  return {{"id", finding.id},         {"is", finding.is},   {"about", finding.about},
          {"should", finding.should}, {"fix", finding.fix}, {"warning", finding.warning}};
}

}  // namespace

bool DoctorReport::ok() const {
  return std::ranges::all_of(findings, [](const DoctorFinding& one) { return one.warning; });
}

DoctorReport CausesOnly(DoctorReport report) {
  std::vector<DoctorFinding>& findings = report.findings;
  // What one follows from; itself, if from nothing.
  const auto cause_of = [&](size_t effect) {
    for (const Follows& row : kFollows) {
      if (!Is(findings[effect], row.effect)) continue;
      for (size_t cause = 0; cause < findings.size(); ++cause) {
        if (Is(findings[cause], row.cause)) return cause;
      }
    }
    return effect;
  };
  std::vector<DoctorFinding> causes;
  for (size_t i = 0; i < findings.size(); ++i) {
    size_t begin = i;
    for (size_t next = cause_of(begin); next != begin; next = cause_of(begin)) begin = next;
    // When it is mended, a service that has failed for it does not start by itself, nor does Slurm take back a drain.
    if (begin != i && (findings[i].id == "unit-down" || findings[i].about.starts_with("drained")))
      findings[begin].fix += "; " + findings[i].fix;
  }
  for (size_t i = 0; i < findings.size(); ++i) {
    if (cause_of(i) == i) causes.push_back(findings[i]);
  }
  findings = std::move(causes);
  return report;
}

json DoctorJson(const DoctorReport& report, const std::string& host) {
  json findings = json::array();
  for (const DoctorFinding& one : report.findings) {
    findings.push_back({{"id", one.id},
                        {"host", host},
                        {"is", one.is},
                        {"should", one.should},
                        {"fix", one.fix},
                        {"severity", one.warning ? "warning" : "error"}});
  }
  return {{"ok", report.ok()},
          {"checked", report.checked},
          {"findings", findings},
          {"unchecked", report.unchecked}};
}

std::string DoctorText(const json& document) {
  std::string text;
  const json& findings = document.at("findings");
  for (const json& one : findings) {
    text += fmt::format("{}{}: {}; should be: {}; to mend it: {}\n",
                        one.at("severity") == "warning" ? "warning: " : "", one.at("id").get<std::string>(),
                        one.at("is").get<std::string>(), one.at("should").get<std::string>(),
                        one.at("fix").get<std::string>());
  }
  for (const json& why : document.at("unchecked"))
    text += fmt::format("not checked: {}\n", why.get<std::string>());
  const auto checked = document.at("checked").get<size_t>();
  if (findings.empty()) return text + fmt::format("{} checks: all is well\n", checked);
  return text +
         fmt::format("{} checks, {} finding{}\n", checked, findings.size(), findings.size() == 1 ? "" : "s");
}

void DoctorNotes::Next(const DoctorFinding& silence) {
  tell_({{"next", Fields(silence)}});
}

void DoctorNotes::Check(bool good, const DoctorFinding& finding) {
  tell_(good ? json{{"good", true}} : json{{"found", Fields(finding)}});
}

void DoctorNotes::Unchecked(const std::string& why) {
  tell_({{"unchecked", why}});
}

void DoctorNotes::Add(const DoctorReport& report) {
  for (size_t good = report.findings.size(); good < report.checked; ++good) Check(true, {});
  for (const DoctorFinding& one : report.findings) Check(false, one);
  for (const std::string& why : report.unchecked) Unchecked(why);
}

}  // namespace muster::cli
