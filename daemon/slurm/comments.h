// Sets jobs' comments, apart from all that is urgent: in a helper process of its own, because slurmctld may keep one
// waiting for seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "daemon/slurm/helper_process.h"
#include "daemon/slurm/slurm.h"

namespace muster::slurm {

// On the loop's thread. After the destructor nothing is called any more.
class Comments {
 public:
  using Done = std::function<void(Status)>;

  // `pause`: before the second attempt; before the third it is six times as long. There is no fourth.
  Comments(Loop& loop, std::string helper, std::chrono::milliseconds timeout,
           std::chrono::milliseconds pause);
  ~Comments();
  Comments(const Comments&) = delete;
  Comments& operator=(const Comments&) = delete;

  // A text that is replaced by a newer one before it could be set counts as set.
  void Set(const JobRun& run, std::string text, Done done);
  // When an attempt for that job that is under way has been answered, at the latest after `limit`.
  void WhenAnswered(uint32_t job_id, std::chrono::milliseconds limit, std::function<void()> then);

 private:
  struct Job {
    JobRun run;
    std::string text;
    Done done;
    uint64_t number = 0;  // of the text
    int attempts = 0;
    Loop::TimerId timer = 0;  // of the next attempt
    std::vector<uint64_t> waiting;
  };
  struct Waiter {
    Loop::TimerId timer = 0;
    std::function<void()> then;
  };

  void Try(uint32_t job_id);
  void OnAnswer(uint32_t job_id, uint64_t number, const Status& status);
  void Wake(uint64_t waiter);

  Loop& loop_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds pause_;
  std::map<uint32_t, Job> jobs_;  // with a text that is not set yet
  std::map<uint64_t, Waiter> waiters_;
  uint64_t next_number_ = 1;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  HelperProcess helper_;
};

}  // namespace muster::slurm
