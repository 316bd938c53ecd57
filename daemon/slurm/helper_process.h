// muster-slurm as musterd sees it: a process that is started when it is needed, asked one thing at a time, killed when it
// does not answer in time and when it is not needed for a while.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace muster::slurm {

// Belongs to the loop's thread. The destructor kills the helper; answers are not given any more then.
class HelperProcess {
 public:
  using Done = std::function<void(Result<nlohmann::json>)>;

  HelperProcess(Loop& loop, std::string path, std::chrono::milliseconds idle = std::chrono::minutes(1));
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  // Asks {"do": ..., ...}; `done` gets the answer's "ok", its error, or kUnavailable, kExhausted, kInternal as
  // in slurm.h; from the loop, after this has returned. `timeout` runs from this call.
  void Ask(nlohmann::json question, std::chrono::milliseconds timeout, Done done);

  [[nodiscard]] int pid() const;

 private:
  struct Process;
  struct Question {
    uint64_t id;
    std::string name;  // for messages
    std::string line;
    Done done;
    Loop::TimerId timer;
    std::chrono::milliseconds timeout;
  };

  void Next();
  Status Start();
  void OnOutput();
  void OnLine(std::string_view line);
  void OnStderr(Process* process);
  void OnExit(Process* process);
  void OnDeadline(uint64_t id);
  void Fail(Error error);
  void Finish(Result<nlohmann::json> answer);
  void Kill();

  Loop& loop_;
  const std::string path_;
  const std::chrono::milliseconds idle_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<Process> process_;
  std::vector<std::unique_ptr<Process>> dying_;  // killed, not yet collected
  std::deque<Question> questions_;
  bool asked_ = false;  // the first of them is with the helper
  bool next_posted_ = false;
  uint64_t next_id_ = 1;
  Loop::TimerId idle_timer_ = 0;
};

}  // namespace muster::slurm
