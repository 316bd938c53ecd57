// The links of tests where gRPC is built.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "daemon/rpc/grpc_link.h"
#include "tests/unit/daemon/daemon_fixture.h"
#include "tests/unit/daemon/private_munge.h"

namespace muster {
namespace {

// Gives the process names for its nodes: n1 is 127.0.0.1, n2 127.0.0.2. After PrivateMunge, in its namespace.
bool NameNodes() {
  static const bool named = [] {
    std::ofstream("/run/hosts") << "127.0.0.1 localhost n1\n127.0.0.2 n2\n";
    return ::mount("/run/hosts", "/etc/hosts", nullptr, MS_BIND, nullptr) == 0;
  }();
  return named;
}

}  // namespace

TestLinks LinksOf(const std::string& node, const std::string& address) {
  return {OpenLink, [node, address](AcceptLink accept) -> std::shared_ptr<void> {
            auto server = Server::Start({address, node, ::geteuid()}, std::move(accept), {});
            EXPECT_TRUE(server) << server.error().message;
            return std::shared_ptr<Server>(*std::move(server));
          }};
}

std::string LinksProblem() {
  if (const std::string& problem = PrivateMunge::Get().problem(); !problem.empty()) return problem;
  return NameNodes() ? "" : "the nodes have no names";
}

}  // namespace muster
