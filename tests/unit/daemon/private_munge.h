// A munged of the test's own. libmunge asks the one socket that it was built for, so the process moves to a mount
// namespace where that path holds a new daemon with a new key: the host's munged is neither needed nor touched.
#pragma once

#include <sys/types.h>

#include <string>

#include "tests/unit/ceph/temporary_directory.h"

namespace muster {

// Make it before other threads: a namespace is a thread's, and is inherited by those that it starts.
class PrivateMunge {
 public:
  PrivateMunge();
  ~PrivateMunge();
  PrivateMunge(const PrivateMunge&) = delete;
  PrivateMunge& operator=(const PrivateMunge&) = delete;

  // Why there is none: "" when it runs.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  void Start();
  void Stop();

  // The process's one, made at the first call.
  static PrivateMunge& Get();

 private:
  TemporaryDirectory directory_;
  pid_t daemon_ = -1;
  std::string problem_;
};

}  // namespace muster
