// Warm starts: what supervisors say of them goes to the coordinator, and they are told when a program gets on.
#include "daemon/agent/local_gang.h"
#include "daemon/agent/send.h"

namespace muster {
namespace {

// With the second call a whole step has been made, and what a first step imports is there.
constexpr uint64_t kCalls = 2;

}  // namespace

void LocalGang::WarmSaid(const Member& member, const WarmPacket& said) {
  if (said.body.generation != member.generation) return;
  auto message = Message();
  message.mutable_warm()->set_rank(member.rank);
  message.mutable_warm()->set_generation(said.body.generation);
  message.mutable_warm()->set_state(said.body.state);
  message.mutable_warm()->set_text(said.text);
  Up(std::move(message));
}

void LocalGang::SayWhoGetsOn(const std::vector<hang::MemberReport>& reports) {
  if (!job_.OptionsOf(node_).warm) return;
  for (const hang::MemberReport& report : reports) {
    if (report.calls < kCalls) continue;
    for (auto& [task, member] : members_) {
      if (member.rank != report.rank || member.generation != start_->generation() ||
          member.gets_on == member.generation || member.connection == nullptr)
        continue;
      wire::GetsOn body{};
      body.generation = member.gets_on = member.generation;
      SendBody(*member.connection, wire::Type::kGetsOn, body);
    }
  }
}

}  // namespace muster
