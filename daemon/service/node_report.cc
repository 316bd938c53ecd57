#include "daemon/service/node_report.h"

namespace muster {

using nlohmann::json;

json NodeReport(const std::string& node, const NodeView& view) {
  bool fit = !view.health || !view.health->sick();
  json findings = view.health ? json::array() : json();
  if (view.health) {
    for (const HealthFinding& finding : view.health->findings) {
      findings.push_back({{"subject", finding.subject},
                          {"what", finding.what},
                          {"sick", finding.severity == HealthSeverity::kSick}});
    }
  }
  json ports = json::array();
  for (const watch::PortView& port : view.ports) {
    fit = fit && port.sick.empty();
    ports.push_back({{"port", port.name},
                     {"up", port.up},
                     {"links_lost", port.links_lost},
                     {"sick", port.sick},
                     {"holding", port.holding}});
  }
  json gangs = json::array();
  for (const NodeView::Gang& gang : view.gangs) gangs.push_back({{"gang", gang.id}, {"uid", gang.uid}});
  json links = json::array();
  for (const NodeView::Links& test : view.links) {
    links.push_back(
        {{"uid", test.uid}, {"test", test.test}, {"full", test.full}, {"age_ms", test.age.count()}});
  }
  return {{"node", node},   {"fit", fit},     {"findings", findings},
          {"ports", ports}, {"gangs", gangs}, {"good_links", links}};
}

}  // namespace muster
