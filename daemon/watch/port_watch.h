// What a port of the fabric does while gangs run: samples in, findings out. Pure. Thresholds and their reasons are in
// docs/network.md, "While gangs run".
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster::watch {

// What drivers count under many names (port_reader.cc has the table).
enum class Count {
  kRetransmit,  // by this port: timeouts of acknowledgements, sequence errors that the other end has reported
  kOutOfSequence,     // packets that came to this port
  kReceiverNotReady,  // RNR NAKs that came to this port
  kLinkErrors,        // of the cable: symbols, checksums
  kCnpSent,           // notifications of congestion
  kCnpReceived,
  kPauseSent,  // frames of PFC or of the global pause
  kPauseReceived,
};
inline constexpr size_t kCounts = 8;
using Totals = std::array<uint64_t, kCounts>;
// The label of its metric.
const char* ToString(Count count);

struct CounterValue {
  Count count = Count::kRetransmit;
  std::string name;  // the driver's
  uint64_t value = 0;
};

struct PortSample {
  bool there = true;
  std::optional<bool> up;  // nothing: the kernel does not say
  std::string state;       // as the kernel has it, for people
  std::optional<uint64_t> carrier_changes;
  std::vector<CounterValue> counters;  // those that could be read
  // The GID that was chosen when the port was first read; "" where none is watched, or it cannot be read.
  std::string gid;
  uint32_t gid_index = 0;
  std::optional<uint32_t> gid_moved_to;  // it is at this index now
};

struct Finding {
  std::string text;       // "mlx5_0 port 1 (roce0) lost its link: operstate down"
  bool hardware = false;  // it may have broken a program
  bool tell = true;       // an event; else one like it was told a moment ago
};

// One port. Times are nanoseconds of one monotonic clock.
class PortWatch {
 public:
  static constexpr int64_t kSecond = 1'000'000'000;
  // A link that trains again takes up to 6 s; NCCL gives a connection up after half a minute.
  static constexpr int64_t kDownIsSick = 10 * kSecond;
  // A driver that is loaded again takes up to 20 s.
  static constexpr int64_t kGoneIsSick = 30 * kSecond;
  static constexpr int64_t kWindow = 10 * kSecond;
  // Longer than the window: one burst is no finding.
  static constexpr int64_t kRaiseAfter = 20 * kSecond;
  static constexpr int64_t kClearAfter = 30 * kSecond;
  static constexpr int64_t kQuiet = 60 * kSecond;  // between two events of links lost

  explicit PortWatch(std::string name) : name_(std::move(name)) {}

  std::vector<Finding> Take(const PortSample& sample, int64_t now);
  // Nobody looks until the next sample: rates and changes of the link begin anew there.
  void Pause();

  // Why no gang may run here; "" while nothing says so. A port that was never seen up says nothing.
  [[nodiscard]] std::string Sick(int64_t now) const;
  // What holds now and may have broken a program.
  [[nodiscard]] std::vector<Finding> Holding() const;
  // Since the first sample.
  [[nodiscard]] const Totals& totals() const { return totals_; }
  [[nodiscard]] uint64_t links_lost() const { return links_lost_; }
  [[nodiscard]] bool up() const { return there_ && up_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Rate {
    std::optional<int64_t> above_since;
    std::optional<int64_t> below_since;
    bool raised = false;
    double per_second = 0;
  };
  struct Counted {
    int64_t at = 0;
    Totals more{};
  };

  void Link(const PortSample& sample, int64_t now, std::vector<Finding>& out);
  void Lost(uint64_t times, const std::string& text, int64_t now, std::vector<Finding>& out);
  void Gid(const PortSample& sample, std::vector<Finding>& out);
  void Counters(const PortSample& sample, int64_t now, std::vector<Finding>& out);
  void Judge(Count count, double per_second, int64_t now, std::vector<Finding>& out);

  std::string name_;
  bool there_ = false;
  bool up_ = false;
  std::optional<int64_t> gone_since_;  // it was there before
  std::optional<int64_t> down_since_;  // it was up before
  std::optional<int64_t> told_lost_;
  std::string state_;
  std::optional<uint64_t> carrier_changes_;
  uint64_t links_lost_ = 0;
  std::string gid_;
  std::optional<uint32_t> gid_moved_to_;
  std::map<std::string, uint64_t> values_;  // by the driver's names
  std::optional<int64_t> last_;
  std::deque<Counted> window_;
  std::array<Rate, kCounts> rates_;
  Totals totals_{};
};

// How much a counter has grown. One that is smaller than before has wrapped at 32 bits, or begun anew: then nothing is said of
// what came before. More than any port can count is rubbish: nothing.
uint64_t Growth(uint64_t before, uint64_t now, int64_t took_ns);

}  // namespace muster::watch
