// A node's part in a test of the links between the gang's nodes: a process of the job's user measures, in the place of one of its
// tasks, before anything runs there.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/helper_program.h"
#include "daemon/agent/environment_memory.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/packets.h"
#include "daemon/agent/send.h"
#include "daemon/link/link.h"
#include "net/roce/settings.h"

namespace muster {

void LocalGang::OnTestLinks(const v1::TestLinks& order) {
  context_.loop.Cancel(std::exchange(join_timer_, 0));
  if (finish_ || start_) return;
  test_ = order;
  context_.good_links.erase(job_.uid);
  const auto first = std::ranges::find_if(members_, [](const auto& item) {
    return item.second.connection != nullptr && item.second.local_id == 0;
  });
  if (first == members_.end()) return TellLinksTested(-1, "a task has ended");
  wire::TestLinks body{};
  body.test = order.test();
  body.full = order.full() ? 1 : 0;
  // As in a gang (MemberEnvironment): what `muster net test` needs of it.
  std::vector<std::string> environment{
      fmt::format("{}={}", wire::kLinksVariable, HelperProgram("muster", "bin")),
      fmt::format("MUSTER_GANG={}", job_.Id()),
      fmt::format("MUSTER_GENERATION=test {}.{}", core_.orders().term(), order.test()),
      fmt::format("GROUP_RANK={}", order.place()),
      fmt::format("GROUP_WORLD_SIZE={}", order.nodes()),
      fmt::format("MASTER_ADDR={}", order.host()),
      fmt::format("MASTER_PORT={}", order.port()),
      fmt::format("SLURMD_NODENAME={}", job_.hosts[node_]),
      fmt::format("{}={}", wire::kLinksSettings, roce::SettingsFile(context_.config.fabric_settings))};
  const UniqueFd memory = EnvironmentMemory(environment, &body.environment_bytes);
  if (!SendBody(*first->second.connection, wire::Type::kTestLinks, body, {}, memory.get()))
    TellLinksTested(-1, "the task does not take the order");
}

void LocalGang::LinksTested(const LinksTestedPacket& tested) {
  if (!test_ || tested.body.test != test_->test()) return;
  if (test_->place() > 0) {
    // 1: the fabric is not good.
    if (tested.body.wait_status != 0 && tested.body.wait_status != 1 << 8)
      spdlog::info("gang {}: the test of the links has ended here with {}", job_.Id(),
                   tested.body.wait_status);
    return test_.reset();
  }
  TellLinksTested(tested.body.wait_status, tested.text);
}

// Only the node that leads is listened to.
void LocalGang::TellLinksTested(int status, std::string_view text) {
  const v1::TestLinks test = *std::exchange(test_, std::nullopt);
  if (test.place() > 0) return;
  // Connections to the port that the test has listened at may be remembered there for a minute.
  std::optional<PortLease> used = std::exchange(next_ports_, std::nullopt);
  TakePorts();
  if (!next_ports_) next_ports_ = std::move(used);
  auto message = Message();
  v1::LinksTested* told = message.mutable_links_tested();
  told->set_test(test.test());
  told->set_lease_port(next_ports_ ? next_ports_->port() : 0);
  told->set_status(status);
  told->set_text(text.data(), text.size());
  Up(std::move(message));
}

}  // namespace muster
