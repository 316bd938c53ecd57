// The part of LocalGang that waits for its supervisors after musterd has been restarted.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/agent/gang_state.h"
#include "daemon/agent/local_gang.h"
#include "daemon/hang/suspended.h"
#include "daemon/link/link.h"

namespace muster {
namespace {

// How often those that are not back are looked at. They come at once, unless they are suspended or gone.
constexpr std::chrono::milliseconds kLook{1000};

}  // namespace

void LocalGang::ExpectReconnects(const GangState& state) {
  const auto until = context_.loop.Now() + std::chrono::milliseconds(context_.config.reconnect_ms);
  for (const uint32_t task : state.tasks) {
    Member& member = members_[task];
    const auto supervisor = state.supervisors.find(task);
    member.supervisor = supervisor != state.supervisors.end() ? supervisor->second : 0;
    member.awaited = Awaited{until};
  }
  core_.Restore(state.coordinator, state.term, state.started_generation, state.started_restore);
  beat_key_ = state.beat_key;
  generation_before_ = state.started_generation;
  told_again_.failed_saves = state.failed;
  told_again_.bad_checkpoint = state.checkpoint_bad;
  steps_.Restore(state.steps);
  // Its supervisors let their programs run on for so long after this node's musterd was there the last time.
  if (context_.beat != nullptr && core_.orders().term() > 0)
    grace_until_ = context_.beat->last_alive() + context_.config.reconnect_ms * 1'000'000;
  AwaitSupervisors();
}

// Their time stands still while they are suspended. The coordinator's does not: it is told meanwhile that they are where
// they were, for this node would be lost to it else.
void LocalGang::AwaitSupervisors() {
  reconnect_timer_ = 0;
  const auto now = context_.loop.Now();
  auto next = Loop::Time::max();
  for (auto& [task, member] : members_) {
    if (!member.awaited) continue;
    if (member.supervisor > 0 && hang::IsSuspended(member.supervisor)) {
      member.awaited->until = now + std::chrono::milliseconds(context_.config.reconnect_ms);
      // Twice: each process seems to be stopped for a moment now and then.
      if (std::exchange(member.awaited->was_suspended, true)) PresumeRunning(task, member);
    } else {
      member.awaited->was_suspended = false;
    }
    if (now >= member.awaited->until) {
      SupervisorLost(task, member);
    } else {
      next = std::min({next, now + kLook, member.awaited->until});
    }
  }
  if (next != Loop::Time::max()) {
    reconnect_timer_ = context_.loop.After(std::chrono::ceil<std::chrono::milliseconds>(next - now),
                                           [this] { AwaitSupervisors(); });
  }
  MaybeAllBack();
  MaybeRegister();
  MaybeOver();
}

void LocalGang::PresumeRunning(uint32_t task, Member& member) {
  if (std::exchange(member.awaited->presumed, true)) return;
  spdlog::info("gang {}: task {} is suspended, as it seems; its supervisor is waited for", job_.Id(), task);
  member.known = true;
  if (core_.orders().started() > 0) {
    member.state = wire::MemberState::kRunning;
    member.generation = core_.orders().started();
  }
  MembersWereSuspended();
  BeginAttendance();
}

void LocalGang::SupervisorLost(uint32_t task, Member& member) {
  spdlog::warn("gang {}: the supervisor of task {} did not come back after musterd's restart", job_.Id(),
               task);
  presumed_ |= member.awaited->presumed;
  member.awaited.reset();
  member.known = true;
  SupervisorDied(task, member);
}

// What was presumed of members is put right, in one registration for all.
void LocalGang::MaybeAllBack() {
  const bool awaits = std::any_of(members_.begin(), members_.end(),
                                  [](const auto& item) { return item.second.awaited.has_value(); });
  if (awaits) return;
  context_.loop.Cancel(std::exchange(reconnect_timer_, 0));
  if (!std::exchange(presumed_, false)) return;
  if (start_ && core_.orders().MayRun(start_->generation())) WatchMembers();
  core_.Anew();
}

// Slurm has suspended the job while this node's musterd was away: the time of its supervisors begins again when it goes on.
void LocalGang::MembersWereSuspended() {
  if (grace_until_ == 0) return;
  grace_until_ = std::max(grace_until_, context_.beat->Now() + context_.config.reconnect_ms * 1'000'000);
}

}  // namespace muster
