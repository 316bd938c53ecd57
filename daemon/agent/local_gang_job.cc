// The part of LocalGang that does not take a user's word for whose gang it is. Slurm itself says which job a task is of,
// but that this job is a component of another one stands in the task's environment, which the user can write.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "daemon/agent/local_gang.h"
#include "daemon/slurm/slurm.h"

namespace muster {
namespace {

constexpr auto kRetry = std::chrono::seconds(1);

}  // namespace

// Then registers. Asks slurmctld, unless the gang is named after the very job.
void LocalGang::ConfirmJob() {
  const uint32_t own = job_.JobOf(node_);
  if (own == job_.job_id || context_.slurm == nullptr || finish_) return Confirmed();
  context_.slurm->JobInfo(
      {own}, Slurm::Sharing::kSkip, [weak = weak_from_this(), own](const Result<SlurmJob>& facts) {
        const auto self = weak.lock();
        if (!self) return;
        if (!facts && facts.error().code != Errc::kNotFound) {
          spdlog::warn("gang {}: {}; asking again", self->job_.Id(), facts.error().message);
          self->context_.loop.After(kRetry, [weak] {
            if (const auto waiting = weak.lock()) waiting->ConfirmJob();
          });
          return;
        }
        if (!self->finish_ && (!facts || facts->het_leader != self->job_.job_id)) {
          self->Dismiss(fmt::format("gang {}: job {} is no component of job {}, says Slurm", self->job_.Id(),
                                    own, self->job_.job_id));
        }
        self->Confirmed();
      });
}

void LocalGang::Confirmed() {
  checking_ = false;
  confirmed_ = !finish_;
  core_.Connect();
  MaybeOver();  // its supervisors may all have gone meanwhile: the registration says so
}

}  // namespace muster
