// Stands between the member's stderr and the task's, so that the last lines are known when it dies. Bytes and
// their order are unchanged, nothing is dropped, and the supervisor never blocks: when the task's stderr is
// not taken, this stops reading and the program waits in its write, as it would without a relay. Only fd 2 is
// relayed.
#pragma once

#include <stddef.h>

#include "base/unique_fd.h"

namespace muster::supervisor {

class StderrRelay {
 public:
  static constexpr size_t kTail = 8192;
  // Reading stops at kFill. The rest is room for what is in the pipe when a program dies, and for reports.
  static constexpr size_t kFill = 64 * 1024;
  static constexpr size_t kBuffer = 4 * kFill;

  // `out` is the task's stderr and stays the caller's. On a terminal there is no relay: programs would no
  // longer know it as one. False: no memory.
  bool Open(int out);
  StderrRelay() = default;
  StderrRelay(const StderrRelay&) = delete;
  StderrRelay& operator=(const StderrRelay&) = delete;
  ~StderrRelay();

  // A new pipe for a new generation; the end that becomes the child's stderr, not valid for a terminal (or
  // when there is no descriptor left): then the child keeps the task's own.
  UniqueFd NewPipe();

  // Which events poll is to wait for.
  [[nodiscard]] int in() const { return size_ < kFill ? in_.get() : -1; }
  [[nodiscard]] int out() const { return size_ > 0 ? out_ : -1; }

  // Takes what is in the pipe (after poll: at most kFill).
  void Read() { Fill(kFill); }
  // Takes everything that is in the pipe now, as far as there is room.
  void Drain() { Fill(kBuffer); }
  // Writes one piece; call when poll says that it will not block.
  void Write();
  // Writes until all is written or `limit_ms` are over.
  void Flush(int limit_ms);
  // Puts text of the supervisor's own behind what the program wrote; what has no room within the limit is
  // lost.
  void Append(const char* text, size_t size);

  // The last bytes that the present generation wrote; copies at most kTail to `to` and returns how many.
  size_t Tail(char* to) const;

 private:
  void Fill(size_t up_to);

  int out_ = -1;
  bool terminal_ = false;
  bool file_ = false;
  UniqueFd in_;
  char* buffer_ = nullptr;  // kBuffer, a ring; then kTail, another
  size_t begin_ = 0;
  size_t size_ = 0;
  size_t tail_end_ = 0;  // bytes of this generation so far
};

}  // namespace muster::supervisor
