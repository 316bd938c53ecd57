#include "daemon/slurm/requeue.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "daemon/slurm/messages.h"

namespace muster::slurm {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kSettle{1'050};
constexpr milliseconds kRetry{1'000};    // while slurmctld does not answer
constexpr milliseconds kFirstPause{50};  // between looks at a job that is completing
constexpr milliseconds kLongestPause{1'000};
constexpr milliseconds kWatch{90'000};  // from the release
constexpr milliseconds kWatchPause{1'000};
constexpr int kLaunched = 5;  // looks in a row at a job that does not wait
constexpr int kMostFreed = 5;

class Requeue : public std::enable_shared_from_this<Requeue> {
 public:
  Requeue(Loop& loop, HelperProcess& helper, std::weak_ptr<void> alive, RequeueRequest request,
          std::function<void(const std::string&, std::function<void(Status)>)> set_down,
          std::function<void(Status)> done, std::function<void()> over)
      : loop_(loop),
        helper_(helper),
        alive_(std::move(alive)),
        request_(std::move(request)),
        set_down_(std::move(set_down)),
        done_(std::move(done)),
        over_(std::move(over)),
        end_(loop_.Now() + request_.deadline) {}

  // DOWN comes before the requeue: slurmctld sends the job's end to all its nodes at once and looks at no answer before
  // the last one, which of a dead node comes after MessageTimeout. But first it is asked whether the job may be
  // requeued at all, for the batch host's DOWN leaves it without its script. A heterogeneous job's component that has a
  // node DOWN would be requeued alone, or ended: all of it is requeued first.
  void Begin() {
    if (request_.dead_nodes.empty()) return Requeued();
    Ask("requeue", true, [](Requeue& self, const json& ok) {
      if (ok.value("requeued", false)) return self.Release();
      self.requeue_first_ = ok.value("heterogeneous", false);
      if (self.requeue_first_) return self.Requeued();
      self.SetDown();
    });
  }

 private:
  void SetDown() {
    if (request_.dead_nodes.empty()) return requeue_first_ ? Release() : Requeued();
    const std::string node = std::move(request_.dead_nodes.front());
    request_.dead_nodes.erase(request_.dead_nodes.begin());
    set_down_(node, [self = shared_from_this(), node](const Status& set) {
      // Slurm would launch it there again, and again.
      if (!set && self->request_.all_down) return self->End(set.error());
      if (!set) spdlog::warn("requeue of job {}: {}", self->request_.run.job_id, set.error().message);
      self->SetDown();
    });
  }

  void Requeued() {
    Ask("requeue", false, [](Requeue& self, const json& /*ok*/) {
      if (self.requeue_first_) return self.SetDown();
      self.Release();
    });
  }

  // slurmd refuses a script whose credential was made in the second in which it was told of the end of the job's last
  // run, and slurmctld then calls the job failed. So the run may begin a second after it has been seen in the queue.
  void Release() {
    Ask("release", settled_, [](Requeue& self, const json& ok) {
      if (ok.value("released", false)) return self.Released();
      self.state_ = ok.value("state", "");
      milliseconds pause =
          std::clamp(std::chrono::duration_cast<milliseconds>(self.loop_.Now() - self.asked_) / 4,
                     kFirstPause, kLongestPause);
      if (ok.value("pending", false)) {
        self.settled_ = true;
        pause = kSettle;
      }
      self.Later(pause, [](Requeue& again) { again.Release(); });
    });
  }

  void End(const Status& status) {
    std::exchange(done_, [](const Status&) {})(status);
    over_();
  }

  void Released() {
    std::exchange(done_, [](const Status&) {})({});
    end_ = loop_.Now() + kWatch;
    Watch(false);
  }

  // A host that is alive after all, and whose last run of the job is not cleaned up yet, refuses the job's script, and
  // Slurm holds the job for good.
  void Watch(bool free) {
    Later(kWatchPause, [free](Requeue& again) {
      again.Ask("launched", free, [free](Requeue& self, const json& ok) {
        const bool held = ok.value("held", false);
        if (held && free) {
          spdlog::info("job {}: a node would not start its script, and Slurm held it or put it off; released",
                       self.request_.run.job_id);
          ++self.freed_;
        }
        self.launched_ = ok.value("waits", false) ? 0 : self.launched_ + 1;
        if (self.launched_ < kLaunched && self.freed_ < kMostFreed) return self.Watch(held && !free);
        self.End({});
      });
    });
  }

  // `flag`: of a requeue, whether it is only looked at; of a release, whether it has been pending for a while; of a look
  // at its launch, whether it is released if it is held.
  void Ask(const char* what, bool flag, std::function<void(Requeue&, const json&)> then) {
    if (alive_.expired()) return;
    json question = About(what, request_.run);
    question["failed"] = request_.failed;
    question[FlagOf(what)] = flag;
    helper_.Ask(std::move(question), request_.call_timeout,
                [self = shared_from_this(), what, flag, then = std::move(then)](const Result<json>& answer) {
                  if (answer) return then(*self, *answer);
                  const Errc code = answer.error().code;
                  if (code != Errc::kUnavailable && code != Errc::kExhausted)
                    return self->End(answer.error());
                  self->state_ = answer.error().message;
                  self->Later(kRetry, [what, flag, then](Requeue& again) { again.Ask(what, flag, then); });
                });
  }

  static const char* FlagOf(std::string_view what) {
    return what == "release" ? "settled" : what == "launched" ? "free" : "check";
  }

  void Later(milliseconds pause, std::function<void(Requeue&)> then) {
    if (loop_.Now() + pause > end_) {
      return End(
          Error{Errc::kUnavailable, fmt::format("job {} has not come back into the queue within {} ms: {}",
                                                request_.run.job_id, request_.deadline.count(), state_)});
    }
    loop_.After(pause, [self = shared_from_this(), then = std::move(then)] {
      if (!self->alive_.expired()) then(*self);
    });
  }

  Loop& loop_;
  HelperProcess& helper_;
  const std::weak_ptr<void> alive_;
  RequeueRequest request_;
  std::function<void(const std::string&, std::function<void(Status)>)> set_down_;
  std::function<void(Status)> done_;
  std::function<void()> over_;
  Loop::Time end_;
  const Loop::Time asked_ = loop_.Now();
  bool settled_ = false;
  int launched_ = 0;
  int freed_ = 0;
  bool requeue_first_ = false;
  std::string state_;  // why it is not done yet
};

}  // namespace

void StartRequeue(Loop& loop, HelperProcess& helper, std::weak_ptr<void> alive, RequeueRequest request,
                  std::function<void(const std::string&, std::function<void(Status)>)> set_down,
                  std::function<void(Status)> done, std::function<void()> over) {
  std::make_shared<Requeue>(loop, helper, std::move(alive), std::move(request), std::move(set_down),
                            std::move(done), std::move(over))
      ->Begin();
}

}  // namespace muster::slurm
