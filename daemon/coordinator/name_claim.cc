#include "daemon/coordinator/name_claim.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <string_view>

#include "base/planted.h"
#include "daemon/coordinator/record_of_gang.h"

namespace muster {
namespace {

enum class Hold { kLives, kEnds, kUnknown, kGone };

// States in which a job is over for good, and those out of which Muster has jobs requeued (operations.cc, Requeue).
constexpr std::array<std::string_view, 5> kOver = {"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE",
                                                   "OUT_OF_MEMORY"};
constexpr std::array<std::string_view, 4> kRequeued = {"FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"};

bool IsOneOf(const auto& states, std::string_view state) {
  return std::find(states.begin(), states.end(), state) != states.end();
}

// A pending job is one that was requeued: it comes back to its name. A job in a state that is not known here keeps its name, too.
Hold HoldOf(const GangRecord& holder, const Result<SlurmJob>& job) {
  if (!job && job.error().code == Errc::kNotFound) return Hold::kGone;
  if (!job) return MUSTER_PLANTED(name_taken_in_silence) ? Hold::kGone : Hold::kUnknown;
  if (MUSTER_PLANTED(name_taken_from_requeued) && job->state == "PENDING") return Hold::kGone;
  const bool requeued = IsOneOf(kRequeued, job->state);
  const bool there = !requeued && !IsOneOf(kOver, job->state);
  if (Is(holder, gang::State::kFinished))
    return there && job->restart_count > holder.restart_count ? Hold::kLives : Hold::kGone;
  if (there) return Hold::kLives;
  // Slurm forgets a job some minutes after its end: then no requeue is under way any more.
  const bool comes_back = requeued && Is(holder, gang::State::kRequeueing);
  return job->completing || comes_back ? Hold::kEnds : Hold::kGone;
}

std::string InSlurm(const Result<SlurmJob>& job) {
  if (!job) return "Slurm does not say whether it lives: " + job.error().message;
  return job->completing ? job->state + ", completing" : job->state;
}

}  // namespace

NameClaim::Next NameClaim::Heard(const GangRecord& holder, const Result<SlurmJob>& job, Nanos now) {
  if (seen_ != IdOf(holder)) {
    since_ = now;
    pause_ = kFirstPause;
  }
  seen_ = IdOf(holder);
  free_.reset();
  const bool own = holder.job_id == job_id_;
  patient_ = wait_ && !own;
  text_ =
      fmt::format("name={} is that of gang {}, job {} ({}), coordinator {}, since {:%Y-%m-%d %H:%M:%S} UTC",
                  name_, holder.gang, holder.job_id, InSlurm(job), holder.coordinator,
                  fmt::gmtime(static_cast<std::time_t>(holder.created_ns / 1'000'000'000)));
  const Hold hold = HoldOf(holder, job);
  if (hold == Hold::kGone) {
    free_ = seen_;
    return Next::kTake;
  }
  // What Slurm says of the job tells nothing of another step of it. A job does not wait for itself without an end.
  if (patient_) return Next::kWait;
  const bool lives = hold == Hold::kLives && !own;
  if ((lives || own) && now - since_ < kMayEnd) return Next::kLook;
  return !lives && now <= refusal_ ? Next::kWait : Next::kRefuse;
}

NameClaim::Nanos NameClaim::Pause(uint64_t draw) {
  const Nanos pause = pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  return pause - static_cast<Nanos>(draw % static_cast<uint64_t>(pause / 4));
}

std::string NameClaim::Refusal() const {
  return fmt::format(
      "{}; sbatch --dependency=singleton, with one --job-name for both, waits for that job in the queue, and "
      "--gang=name={}:wait on the nodes",
      text_, name_);
}

}  // namespace muster
