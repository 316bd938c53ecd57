// The links of tests where gRPC is not built.
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/link_net.h"

namespace muster {

TestLinks LinksOf(const std::string& node, const std::string& /*address*/) {
  static LinkNet net;
  return {net.DialFrom(node), [node](AcceptLink accept) { return net.Listen(node, std::move(accept)); }};
}

std::string LinksProblem() {
  return "";
}

}  // namespace muster
