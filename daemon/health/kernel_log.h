// What the kernel had to say about a member's death: Xids, links, memory errors, OOM kills, I/O errors, read from
// /dev/kmsg as they come and kept in a bounded ring.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/unique_fd.h"
#include "daemon/health/kernel_fact.h"

namespace muster {

// Belongs to the loop's thread.
class KernelLog {
 public:
  struct Clock {
    std::function<int64_t()> realtime_ns;
    std::function<int64_t()> monotonic_ns;
  };
  static constexpr size_t kCapacity = 1'024;  // facts

  // `loop` must outlive this.
  explicit KernelLog(Loop& loop);
  KernelLog(Loop& loop, Clock clock);  // for tests
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  // Called with each fact that happens while this reads (not with what was in the log before). Set before Open.
  void OnFact(std::function<void(const KernelFact&)> heard) { heard_ = std::move(heard); }

  // Reads what the log holds, then what comes. A log that may not be read (a container, no CAP_SYSLOG) is logged
  // once; the ring stays empty. "" reads nothing. Call once.
  void Open(const std::string& path = "/dev/kmsg");
  [[nodiscard]] bool open() const { return fd_.valid(); }

  // The facts with realtime_ns - before_ns <= time <= realtime_ns + after_ns, oldest first. Times are nanoseconds of
  // CLOCK_REALTIME. Of facts from before Open they may be wrong by the drift of the kernel's log clock.
  [[nodiscard]] std::vector<KernelFact> Near(int64_t realtime_ns, int64_t before_ns, int64_t after_ns) const;

 private:
  void Ready();
  bool Read();
  void Take(std::string_view bytes);
  void Line(std::string_view line);
  int64_t TimeOf(int64_t log_us);

  Loop& loop_;
  Clock clock_;
  std::function<void(const KernelFact&)> heard_;
  UniqueFd fd_;
  bool watched_ = false;
  bool ended_ = false;
  std::string partial_;  // a line whose end has not been read
  KernelFactParser parser_;
  std::deque<KernelFact> facts_;
  bool live_ = false;          // what was in the log at Open has been read
  std::deque<int64_t> leads_;  // of the last live records: the time of reading minus the time by their stamps
  bool corrected_ = false;     // the facts from before have got the drift that the first live record showed
};

}  // namespace muster
