#include "spank-plugin/supervisor/stderr_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "spank-plugin/supervisor/supervisor_clock.h"

namespace muster::supervisor {

bool StderrRelay::Open(int out) {
  buffer_ = static_cast<char*>(malloc(kBuffer + kTail));
  if (buffer_ == nullptr) return false;
  out_ = out;
  terminal_ = isatty(out) != 0;
  struct stat info {};
  file_ = fstat(out, &info) == 0 && S_ISREG(info.st_mode);
  return true;
}

StderrRelay::~StderrRelay() {
  free(buffer_);
}

UniqueFd StderrRelay::NewPipe() {
  in_.reset();
  tail_end_ = 0;
  int ends[2];
  if (terminal_ || pipe2(ends, O_CLOEXEC) != 0) return UniqueFd();
  in_.reset(ends[0]);
  fcntl(in_.get(), F_SETFL, O_NONBLOCK);
  return UniqueFd(ends[1]);
}

void StderrRelay::Fill(size_t up_to) {
  while (in_.valid() && size_ < up_to) {
    const size_t end = (begin_ + size_) % kBuffer;
    size_t room = up_to - size_;
    if (room > kBuffer - end) room = kBuffer - end;
    const ssize_t got = read(in_.get(), buffer_ + end, room);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      in_.reset();  // all writers are gone
      return;
    }
    const auto size = static_cast<size_t>(got);
    // The tail keeps the last kTail bytes, wherever the ring's contents go.
    const size_t kept = size < kTail ? size : kTail;
    const char* from = buffer_ + end + size - kept;
    tail_end_ += size - kept;
    for (size_t i = 0; i < kept; ++i) buffer_[kBuffer + tail_end_++ % kTail] = from[i];
    size_ += size;
  }
}

void StderrRelay::Write() {
  if (size_ == 0) return;
  size_t piece = kBuffer - begin_ < size_ ? kBuffer - begin_ : size_;
  // A pipe that poll calls writable takes PIPE_BUF bytes without blocking, no more is promised.
  if (!file_ && piece > PIPE_BUF) piece = PIPE_BUF;
  const ssize_t put = write(out_, buffer_ + begin_, piece);
  if (put < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
  // Nobody will ever read it (or the disk is full): the program would have had the error, and gone on.
  const size_t done = put < 0 ? piece : static_cast<size_t>(put);
  begin_ = (begin_ + done) % kBuffer;
  size_ -= done;
}

void StderrRelay::Flush(int limit_ms) {
  const int64_t end = MonotonicMs() + limit_ms;
  while (size_ > 0) {
    const int64_t left = end - MonotonicMs();
    pollfd waiting = {out_, POLLOUT, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    Write();
  }
}

void StderrRelay::Append(const char* text, size_t size) {
  constexpr int kLimitMs = 5000;
  if (kBuffer - size_ < size) Flush(kLimitMs);
  if (size > kBuffer - size_) size = kBuffer - size_;
  for (size_t i = 0; i < size; ++i) buffer_[(begin_ + size_++) % kBuffer] = text[i];
}

size_t StderrRelay::Tail(char* to) const {
  const size_t size = tail_end_ < kTail ? tail_end_ : kTail;
  for (size_t i = 0; i < size; ++i) to[i] = buffer_[kBuffer + (tail_end_ - size + i) % kTail];
  return size;
}

}  // namespace muster::supervisor
