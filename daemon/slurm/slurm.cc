#include "daemon/slurm/slurm.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/helper_program.h"
#include "daemon/slurm/comments.h"
#include "daemon/slurm/helper_process.h"
#include "daemon/slurm/messages.h"
#include "daemon/slurm/requeue.h"
#include "daemon/slurm/requeue_files.h"

namespace muster {

using nlohmann::json;

class Slurm::Impl {
 public:
  Impl(Loop& loop, SlurmOptions options)
      : loop_(loop),
        options_(std::move(options)),
        helper_(loop, options_.helper.empty() ? HelperProgram("muster-slurm") : options_.helper),
        files_(options_.requeue_dir),
        comments_(loop, options_.helper.empty() ? HelperProgram("muster-slurm") : options_.helper,
                  options_.timeout, options_.comment_pause) {}

  void Ask(json question, Done done) {
    helper_.Ask(std::move(question), options_.timeout, [done = std::move(done)](const Result<json>& answer) {
      done(answer ? Status() : Status(answer.error()));
    });
  }
  void Comment(const JobRun& run, const std::string& text, Done done) {
    comments_.Set(run, slurm::CleanText(text), std::move(done));
  }

  void JobInfo(const JobRun& run, Sharing sharing, JobDone done) {
    json question = slurm::About("job", run);
    question["sharing"] = sharing == Sharing::kAsk;
    helper_.Ask(std::move(question), options_.timeout, [done = std::move(done)](const Result<json>& answer) {
      done(answer ? slurm::JobFromJson(*answer) : Result<SlurmJob>(answer.error()));
    });
  }

  void ClusterName(std::function<void(Result<std::string>)> done) {
    helper_.Ask({{"do", "cluster"}}, options_.timeout, [done = std::move(done)](const Result<json>& answer) {
      if (!answer) return done(answer.error());
      const std::string name = answer->value("cluster", "");
      done(name.empty() ? Result<std::string>(Error{Errc::kInternal, "muster-slurm gives no cluster's name"})
                        : name);
    });
  }

  // What counts against the limit is what may have set a node DOWN.
  void NodeDown(const JobRun& run, const std::string& node, const std::string& reason, Done done) {
    const auto now = loop_.Now();
    while (!downs_.empty() && downs_.front() + std::chrono::minutes(1) <= now) downs_.pop_front();
    if (downs_.size() >= static_cast<size_t>(std::max<int64_t>(options_.node_downs_per_minute, 0))) {
      return loop_.Post(
          [done = std::move(done), alive = std::weak_ptr<void>(alive_),
           error = Error{Errc::kExhausted,
                         fmt::format("{} is not set DOWN: this daemon does that {} times a minute at most "
                                     "(slurm_node_downs_per_minute)",
                                     node, options_.node_downs_per_minute)}] {
            if (!alive.expired()) done(error);
          });
    }
    downs_.push_back(now);
    // A comment that is on its way is the last one that this run of the job may get (see SetComment).
    comments_.WhenAnswered(run.job_id, options_.comment_first,
                           [this, now, run, node, reason, done = std::move(done)]() mutable {
                             SetDown(now, run, node, reason, std::move(done));
                           });
  }

  void Requeue(slurm::RequeueRequest request, Done done) {
    files_.Save(request);
    Start(std::move(request), std::move(done));
  }

  void ResumeRequeues() {
    for (slurm::RequeueRequest& request : files_.Load()) {
      const uint32_t job = request.run.job_id;
      spdlog::info("job {}: its requeue was under way when musterd ended; going on", job);
      Start(std::move(request), [job](const Status& done) {
        if (!done) spdlog::warn("requeue of job {}: {}", job, done.error().message);
      });
    }
  }

  [[nodiscard]] int helper_pid() const { return helper_.pid(); }

 private:
  void Start(slurm::RequeueRequest request, Done done) {
    request.call_timeout = options_.timeout;
    request.deadline = options_.requeue_timeout;
    auto set_down = [this, run = request.run, reason = request.reason](const std::string& node, Done set) {
      NodeDown(run, node, reason, std::move(set));
    };
    auto over = [this, alive = std::weak_ptr<void>(alive_), request] {
      if (!alive.expired()) files_.Remove(request);
    };
    slurm::StartRequeue(loop_, helper_, alive_, std::move(request), std::move(set_down), std::move(done),
                        std::move(over));
  }

  void SetDown(Loop::Time now, const JobRun& run, const std::string& node, const std::string& reason,
               Done done) {
    json question = slurm::About("node_down", run);
    question.update({{"node", node}, {"reason", slurm::CleanText(reason)}});
    helper_.Ask(std::move(question), options_.timeout,
                [this, now, done = std::move(done)](const Result<json>& answer) {
                  const bool unknown = !answer && answer.error().code == Errc::kUnavailable;
                  const bool changed = answer && answer->value("changed", true);
                  if (!unknown && !changed) {
                    const auto it = std::find(downs_.begin(), downs_.end(), now);
                    if (it != downs_.end()) downs_.erase(it);
                  }
                  done(answer ? Status() : Status(answer.error()));
                });
  }

  Loop& loop_;
  const SlurmOptions options_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  std::deque<Loop::Time> downs_;
  slurm::HelperProcess helper_;
  const slurm::RequeueFiles files_;
  slurm::Comments comments_;
};

Slurm::Slurm(Loop& loop, SlurmOptions options) : impl_(std::make_unique<Impl>(loop, std::move(options))) {}
Slurm::~Slurm() = default;

void Slurm::ClusterName(std::function<void(Result<std::string>)> done) {
  impl_->ClusterName(std::move(done));
}

void Slurm::JobInfo(const JobRun& run, Sharing sharing, JobDone done) {
  impl_->JobInfo(run, sharing, std::move(done));
}

void Slurm::NodeDown(const JobRun& run, const std::string& node, const std::string& reason, Done done) {
  impl_->NodeDown(run, node, reason, std::move(done));
}

void Slurm::NodeDrain(const std::string& node, const std::string& reason, Done done) {
  impl_->Ask({{"do", "node_drain"}, {"node", node}, {"reason", slurm::CleanText(reason)}}, std::move(done));
}

void Slurm::NodeResume(const std::string& node, Done done) {
  impl_->Ask({{"do", "node_resume"}, {"node", node}}, std::move(done));
}

void Slurm::Requeue(const JobRun& run, std::vector<std::string> dead_nodes, const std::string& reason,
                    Script script, Done done) {
  slurm::RequeueRequest request;
  request.run = run;
  request.dead_nodes = std::move(dead_nodes);
  request.reason = reason;
  request.failed = script != Script::kRuns;
  request.all_down = script == Script::kMayHaveFailed;
  impl_->Requeue(std::move(request), std::move(done));
}

void Slurm::ResumeRequeues() {
  impl_->ResumeRequeues();
}

void Slurm::SetComment(const JobRun& run, const std::string& text, Done done) {
  impl_->Comment(run, text, std::move(done));
}

void Slurm::KillStep(uint32_t job_id, uint32_t step_id, Done done) {
  impl_->Ask({{"do", "kill_step"}, {"job", job_id}, {"step", step_id}}, std::move(done));
}

void Slurm::CancelJob(uint32_t job_id, Done done) {
  impl_->Ask({{"do", "cancel"}, {"job", job_id}}, std::move(done));
}

int Slurm::helper_pid() const {
  return impl_->helper_pid();
}

}  // namespace muster
