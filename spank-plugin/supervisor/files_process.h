// The process beside a member's program that makes checkpoints of the directories which that writes: muster-files
// (client/files/main.cc, wire/files_protocol.h), for gangs with files=yes. It belongs to its generation: a sweep kills it as
// all that descends from the supervisor.
#pragma once

#include <sys/types.h>

#include "base/unique_fd.h"
#include "spank-plugin/supervisor/host.h"
#include "spank-plugin/supervisor/member.h"

namespace muster::supervisor {

struct Identity;
class StderrRelay;

class Files {
 public:
  // Starts it for a new generation, if the environment says so. False: it does, and errno says why not.
  bool Start(const EnvironmentBlock& environment, const Host& host, const Identity& identity, int root_fd);
  // In the child that is to become the program: waits until the directory is ready and tells the program of it. Ends
  // this process when it cannot be.
  void AwaitDirectory(const Host& host);
  // In the supervisor, after that child was forked.
  void Forked() { ready_.reset(); }

  // Of this generation's; 0: there is none.
  [[nodiscard]] pid_t pid() const { return pid_; }
  // What poll is to wait for, -1: nothing.
  [[nodiscard]] int fd() const { return control_.get(); }
  // Puts what it says into the job's stderr.
  void Read(StderrRelay* to);
  // The program has ended: it is to end when what was closed is a checkpoint.
  void Drain();
  // It was reaped.
  void Gone();
  // Removes the directory, when nothing is started any more; for `limit_ms` at most.
  void Remove(int root_fd, int64_t limit_ms);

 private:
  bool ChoosePlace(const Host& host, const Identity& identity);

  pid_t pid_ = 0;
  UniqueFd control_;
  UniqueFd ready_;
  char program_[1024] = "";
  // The directory, the same in all generations: BASE/PREFIX SUFFIX.
  char base_[1024] = "";
  char prefix_[384] = "";
  char suffix_[96] = "";
};

}  // namespace muster::supervisor
