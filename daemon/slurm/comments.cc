#include "daemon/slurm/comments.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/slurm/messages.h"

namespace muster::slurm {
namespace {

constexpr int kAttempts = 3;
constexpr int kLongerPause = 6;

}  // namespace

Comments::Comments(Loop& loop, std::string helper, std::chrono::milliseconds timeout,
                   std::chrono::milliseconds pause)
    : loop_(loop), timeout_(timeout), pause_(pause), helper_(loop, std::move(helper)) {}

Comments::~Comments() {
  for (const auto& [id, job] : jobs_) loop_.Cancel(job.timer);
  for (const auto& [number, waiter] : waiters_) loop_.Cancel(waiter.timer);
}

void Comments::Set(const JobRun& run, std::string text, Done done) {
  const uint32_t job_id = run.job_id;
  const auto found = jobs_.find(job_id);
  const bool busy = found != jobs_.end();
  Job& job = busy ? found->second : jobs_[job_id];
  Done replaced = std::exchange(job.done, std::move(done));
  job.run = run;
  job.text = std::move(text);
  job.number = next_number_++;
  // One that waits for its next attempt goes on waiting, with the new text: slurmctld's reason is most likely the same.
  if (!busy) Try(job_id);
  if (!replaced) return;
  loop_.Post([replaced = std::move(replaced), alive = std::weak_ptr<int>(alive_)] {
    if (!alive.expired()) replaced({});
  });
}

void Comments::WhenAnswered(uint32_t job_id, std::chrono::milliseconds limit, std::function<void()> then) {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end() || found->second.timer != 0) return then();
  const uint64_t waiter = next_number_++;
  found->second.waiting.push_back(waiter);
  waiters_[waiter] = {loop_.After(limit, [this, waiter] { Wake(waiter); }), std::move(then)};
}

void Comments::Wake(uint64_t waiter) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return;
  const Waiter woken = std::move(found->second);
  waiters_.erase(found);
  loop_.Cancel(woken.timer);
  woken.then();
}

void Comments::Try(uint32_t job_id) {
  Job& job = jobs_.at(job_id);
  job.timer = 0;
  ++job.attempts;
  nlohmann::json question = About("comment", job.run);
  question["text"] = job.text;
  helper_.Ask(std::move(question), timeout_,
              [this, job_id, number = job.number](const Result<nlohmann::json>& answer) {
                OnAnswer(job_id, number, answer ? Status() : Status(answer.error()));
              });
}

void Comments::OnAnswer(uint32_t job_id, uint64_t number, const Status& status) {
  Job& job = jobs_.at(job_id);
  const std::vector<uint64_t> waiting = std::exchange(job.waiting, {});
  const bool again = !status && status.error().code == Errc::kUnavailable && job.attempts < kAttempts;
  if (again) {
    const auto pause = job.attempts == 1 ? pause_ : kLongerPause * pause_;
    job.timer = loop_.After(pause, [this, job_id] { Try(job_id); });
  } else if (status && job.number != number) {
    job.attempts = 0;  // a newer text has come meanwhile
    Try(job_id);
  } else {
    const Done done = std::move(job.done);
    jobs_.erase(job_id);
    if (done) done(status);
  }
  for (const uint64_t waiter : waiting) Wake(waiter);
}

}  // namespace muster::slurm
