// The process that measures the links of this node before the first generation (wire::TestLinks): `muster net test` as the job's
// user, in the task, with what musterd says as its environment. What it prints, musterd gets.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/host.h"
#include "spank-plugin/supervisor/member.h"
#include "spank-plugin/supervisor/supervisor_connection.h"
#include "wire/wire.h"

namespace muster::supervisor {

class LinksProcess {
 public:
  // What is left of an older test ends. When it cannot be started, there is an answer at once.
  void Start(const wire::TestLinks& order, int environment, const Host& host, int root_fd);
  // Ends it without an answer: nobody waits for one any more.
  void End();
  // 0: there is none.
  [[nodiscard]] pid_t pid() const { return pid_; }
  // It was reaped.
  void Ended(int wait_status);

  [[nodiscard]] bool answer_due() const { return answer_due_; }
  // The answer.
  Sent Answer(int socket);

 private:
  void Forget();

  pid_t pid_ = 0;
  uint64_t test_ = 0;
  UniqueFd said_;         // a pipe, with what it has said
  char* text_ = nullptr;  // the same, read
  size_t size_ = 0;
  int wait_status_ = 0;
  bool answer_due_ = false;
};

}  // namespace muster::supervisor
