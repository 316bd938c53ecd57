// The part of LocalGang that ends what supervisors leave behind that were killed: until then their members are not stopped.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "daemon/agent/local_gang.h"
#include "daemon/auth/auth_session.h"
#include "daemon/slurm/left_behind.h"

namespace muster {
namespace {

constexpr std::chrono::milliseconds kPause(10);
constexpr std::chrono::milliseconds kLongestPause(320);
constexpr int kClean = 2;  // see KillLeftBehind
constexpr int64_t kExitingMs = 2'000;

int64_t Ms(Loop::Time time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

}  // namespace

void LocalGang::SupervisorDied(uint32_t task, Member& member) {
  if (!member.SupervisorDied(core_.orders())) return;
  if (!left_) left_.emplace();
  left_->tasks.insert(task);
  left_->seen_ns = BoottimeNs();
  left_->last.clear();
  left_->watch.Begin(Ms(context_.loop.Now()), context_.config.unkillable_after_ms);
  left_->exiting_at = Ms(context_.loop.Now()) + kExitingMs;
  left_->pause = kPause;
  left_->clean = 0;
  if (left_timer_ == 0)
    left_timer_ = context_.loop.After(std::chrono::milliseconds(0), [this] { KillLeft(); });
}

void LocalGang::KillLeft() {
  DeadSupervisors supervisors;
  supervisors.job_id = job_.JobOf(node_);
  supervisors.step = fmt::format("{}", job_.step_id);
  supervisors.variable = "MUSTER_TOKEN=" + HexEncode(token_);
  supervisors.seen_ns = left_->seen_ns;
  supervisors.known = left_->known;
  for (const auto& [task, member] : members_) {
    if (member.supervisor > 0)
      (left_->tasks.contains(task) ? supervisors.dead : supervisors.alive).insert(member.supervisor);
  }
  context_.sampler.Do(
      [weak = weak_from_this(), mailbox = context_.loop.mailbox(), supervisors = std::move(supervisors)] {
        mailbox->Post([weak, found = KillLeftBehind(supervisors)]() mutable {
          if (const auto self = weak.lock()) self->LeftKilled(std::move(found));
        });
      });
}

void LocalGang::LeftKilled(StillThere found) {
  const int count = found.exiting.count;
  left_->clean = count == 0 ? left_->clean + 1 : 0;
  left_->known.insert(found.known.begin(), found.known.end());
  const bool all = left_->clean >= kClean;
  const int64_t now = Ms(context_.loop.Now());
  if (left_->watch.LookDue(now)) left_->watch.Look(found.exiting, now);
  if (!all && (count == 0 || now < left_->watch.stuck_at())) {
    // A list is no snapshot: two that are equal have missed nothing.
    if (count > 0 && found.all_exit && found.known == left_->last && now >= left_->exiting_at) {
      for (const uint32_t task : left_->tasks) members_[task].stop.exiting = true;
      MaybeNodeStopped();
    }
    left_->last = found.known;
    left_timer_ = context_.loop.After(left_->pause, [this] { KillLeft(); });
    left_->pause = count == 0 ? kPause : std::min(2 * left_->pause, kLongestPause);
    return;
  }
  left_timer_ = 0;
  if (!all) {
    spdlog::error("gang {}: {} processes of a program whose supervisor has died survive SIGKILL", job_.Id(),
                  count);
  }
  const std::set<uint32_t> tasks = std::move(left_->tasks);
  left_.reset();
  for (const uint32_t task : tasks) {
    members_[task].LeftKilled(task == *tasks.begin() ? static_cast<uint32_t>(count) : 0);
  }
  MaybeNodeStopped();
  MaybeOver();
}

}  // namespace muster
