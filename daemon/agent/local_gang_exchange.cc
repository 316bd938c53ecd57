// A node's part in the exchanges of values between members (muster_exchange).
#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "ceph/engine/shard_memory.h"
#include "daemon/agent/client_answers.h"
#include "daemon/agent/local_gang.h"
#include "daemon/agent/packets.h"
#include "daemon/gather/gather.h"

namespace muster {
namespace {

Result<UniqueFd> Memory(const std::string& values) {
  auto memory = MakeShardMemory(values.size());
  if (!memory) return memory;
  Status written = WriteShardMemory(*memory, 0, std::as_bytes(std::span(values)));
  if (written) written = SealShardMemory(*memory);
  if (!written) return written.error();
  return memory;
}

}  // namespace

void LocalGang::BeginExchanges() {
  const ClusterSpec::Node& here = spec_.nodes[*place_];
  const std::string world =
      world_.spec.nodes.size() == spec_.nodes.size() || here.Trains() ? "" : std::string(spec_.RoleOf(here));
  const std::vector<uint32_t>& ranks = world_.spec.nodes[world_.node].ranks;
  exchanges_ = std::make_unique<gather::NodeSide>(
      start_->generation(),
      gather::NodeSide::World{world, world_.spec.MemberCount(), {ranks.begin(), ranks.end()}},
      [this](const gather::NodeSide::Answer& answer) { AnswerExchange(answer); },
      [this](v1::Gather gather) {
        auto message = Message();
        *message.mutable_gather() = std::move(gather);
        Up(std::move(message));
      });
}

void LocalGang::OnExchange(const Client& client, const ExchangePacket& exchange) {
  const uint32_t rank = world_.RankOf(spec_, client.rank);
  exchanges_->Give(rank, exchange.body.number, std::string(exchange.key), std::string(exchange.value),
                   exchange.body.heard);
}

// Members of a node get the same memory.
void LocalGang::AnswerExchange(const gather::NodeSide::Answer& answer) {
  const auto found = std::ranges::find_if(clients_, [&](const auto& item) {
    return item.second.generation == start_->generation() &&
           world_.RankOf(spec_, item.second.rank) == answer.rank;
  });
  if (found == clients_.end()) return;
  LocalConnection& connection = *found->first;
  if (!answer.values && answer.status == wire::kStatusOk) {
    wire::Missing missing{};
    missing.number = answer.number;
    missing.text_bytes = static_cast<uint32_t>(answer.text.size());
    SendBody(connection, wire::Type::kMissing, missing, answer.text);
    return;
  }
  wire::Exchanged exchanged{};
  exchanged.number = answer.number;
  if (!answer.values)
    return SendResult(connection, wire::Type::kExchanged, exchanged, answer.status, answer.text);
  if (exchanged_values_ != answer.values) {
    auto memory = Memory(*answer.values);
    if (!memory) {
      return SendResult(connection, wire::Type::kExchanged, exchanged, wire::kStatusNoMemory,
                        memory.error().message);
    }
    exchanged_memory_ = *std::move(memory);
    exchanged_values_ = answer.values;
  }
  exchanged.bytes = answer.values->size();
  exchanged.members = world_.spec.MemberCount();
  SendResult(connection, wire::Type::kExchanged, exchanged, wire::kStatusOk, "", exchanged_memory_.get());
}

}  // namespace muster
