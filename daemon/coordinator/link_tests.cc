// A test of the links between the gang's nodes, before its first generation.
#include <utility>

#include "daemon/coordinator/coordinator.h"

namespace muster {

void Coordinator::Do(const gang::TestLinks& action) {
  const std::vector<uint32_t>& nodes = action.nodes;
  const gang::Gang::Node& leads = core_.gang().nodes()[nodes.front()];
  auto message = nodes_.NewMessage();
  v1::TestLinks* order = message.mutable_test_links();
  order->set_test(action.test);
  order->set_full(job_.options.preflight == wire::Preflight::kFull);
  order->set_nodes(static_cast<uint32_t>(nodes.size()));
  order->set_host(leads.name);
  order->set_port(leads.lease_port);
  links_ = {.nodes = nodes, .test = action.test};
  for (uint32_t place = 0; place < nodes.size(); ++place) {
    order->set_place(place);
    nodes_.Send(nodes[place], message);
  }
}

void Coordinator::LinksTested(uint32_t node, const v1::LinksTested& tested) {
  gang::LinksTested event{.node = node, .test = tested.test()};
  event.lease_port = static_cast<uint16_t>(tested.lease_port());
  auto verdict = ReadLinkVerdict(tested.status(), tested.text(), links_.nodes, job_.hosts);
  if (verdict) {
    links_.good = tested.status() == 0 && tested.test() == links_.test && verdict->bad.empty() &&
                  verdict->warnings.empty();
    event.verdict = *std::move(verdict);
  } else {
    event.error = verdict.error().message;
  }
  core_.Feed(event);
}

}  // namespace muster
