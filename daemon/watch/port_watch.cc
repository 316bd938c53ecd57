#include "daemon/watch/port_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::watch {
namespace {

struct Threshold {
  const char* label;
  double per_second;
  const char* what;  // "NAME WHAT, RATE a second for 20 s"
};

// By Count.
constexpr std::array<Threshold, kCounts> kThresholds = {{
    // Each timeout holds a connection up for seconds; a fabric that loses nothing has none.
    {"retransmit", 10, "sends packets again"},
    // One for each packet lost on the way here; adaptive routing makes some.
    {"out_of_sequence", 100, "gets packets out of sequence"},
    // A program that posts its buffers late; each costs a timer of the sender.
    {"receiver_not_ready", 100, "is told that receivers are not ready"},
    // What FEC did not mend. A good cable has fewer than one a day.
    {"link_error", 1, "counts errors of the link"},
    // One connection alone is slowed by about a thousand a second.
    {"cnp_sent", 10'000, "sends notifications of congestion"},
    {"cnp_received", 10'000, "is told of congestion"},
    // At 400 Gb/s a pause lasts 84 us at most: so many stop half of the time.
    {"pause_sent", 6'000, "pauses its switch"},
    {"pause_received", 6'000, "is paused by its switch"},
}};

constexpr uint64_t kMostPerSecond = 1'000'000'000;  // packets of 64 bytes at 400 Gb/s: 600 million
constexpr uint64_t k32Bits = 1ULL << 32;

bool Empty(const std::string& gid) {
  return gid.find_first_not_of("0:") == std::string::npos;
}

}  // namespace

const char* ToString(Count count) {
  return kThresholds[static_cast<size_t>(count)].label;
}

uint64_t Growth(uint64_t before, uint64_t now, int64_t took_ns) {
  uint64_t more = 0;
  if (now >= before) {
    more = now - before;
  } else if (before < k32Bits && before >= k32Bits / 4 * 3 && now < k32Bits / 4) {
    more = now + (k32Bits - before);
  }
  const auto seconds = static_cast<uint64_t>(std::max<int64_t>(took_ns / PortWatch::kSecond, 0)) + 1;
  return more / seconds > kMostPerSecond ? 0 : more;
}

std::vector<Finding> PortWatch::Take(const PortSample& sample, int64_t now) {
  std::vector<Finding> out;
  if (!sample.there) {
    if (std::exchange(there_, false)) {
      gone_since_ = now;
      out.push_back({name_ + " is gone: its driver shows it no more", true, true});
    }
    Pause();
    return out;
  }
  if (gone_since_) {
    out.push_back({fmt::format("{} is there again after {:.1f} s", name_,
                               static_cast<double>(now - *gone_since_) / kSecond),
                   false, true});
    gone_since_.reset();
  }
  there_ = true;
  Link(sample, now, out);
  Gid(sample, out);
  Counters(sample, now, out);
  return out;
}

void PortWatch::Pause() {
  carrier_changes_.reset();
  window_.clear();
  values_.clear();
  last_.reset();
  for (Rate& rate : rates_) rate = {};
}

void PortWatch::Lost(uint64_t times, const std::string& text, int64_t now, std::vector<Finding>& out) {
  links_lost_ += times;
  const bool quiet = told_lost_ && now - *told_lost_ < kQuiet;
  if (!quiet) told_lost_ = now;
  out.push_back({text, true, !quiet});
}

void PortWatch::Link(const PortSample& sample, int64_t now, std::vector<Finding>& out) {
  const auto before = std::exchange(carrier_changes_, sample.carrier_changes);
  const uint64_t changes = before && carrier_changes_ ? Growth(*before, *carrier_changes_, kSecond) : 0;
  if (!sample.up) return;
  state_ = sample.state;
  if (*sample.up) {
    if (down_since_) {
      const double away = static_cast<double>(now - *down_since_) / kSecond;
      out.push_back({fmt::format("{} has its link again after {:.1f} s", name_, away), false,
                     told_lost_ && *told_lost_ >= *down_since_});
    } else if (up_ && changes >= 2) {
      const std::string times = changes < 4 ? "" : fmt::format(", {} times", changes / 2);
      Lost(changes / 2, fmt::format("{} lost its link for a moment{}", name_, times), now, out);
    }
    down_since_.reset();
    up_ = true;
  } else if (std::exchange(up_, false)) {
    down_since_ = now;
    Lost(std::max<uint64_t>(1, (changes + 1) / 2), fmt::format("{} lost its link: {}", name_, state_), now,
         out);
  }
}

// A connection names its GID by the index: what it is told from elsewhere does not arrive under another (nccl PR#2183).
void PortWatch::Gid(const PortSample& sample, std::vector<Finding>& out) {
  if (sample.gid.empty()) return;
  if (gid_.empty()) {
    if (!Empty(sample.gid)) gid_ = sample.gid;
    return;
  }
  if (sample.gid == gid_) {
    gid_moved_to_.reset();
    return;
  }
  if (sample.gid_moved_to) {
    if (std::exchange(gid_moved_to_, sample.gid_moved_to) != sample.gid_moved_to) {
      out.push_back({fmt::format("{} has its GID {} at index {} now, not at {}", name_, gid_,
                                 *sample.gid_moved_to, sample.gid_index),
                     true, true});
    }
    return;
  }
  if (Empty(sample.gid)) return;  // its address is away; it may come back
  out.push_back({fmt::format("{} has another GID at index {}: {}, which was {}", name_, sample.gid_index,
                             sample.gid, gid_),
                 true, true});
  gid_ = sample.gid;
}

void PortWatch::Counters(const PortSample& sample, int64_t now, std::vector<Finding>& out) {
  Counted counted{now, {}};
  const int64_t took = last_ ? now - *last_ : 0;
  for (const CounterValue& counter : sample.counters) {
    const auto before = values_.find(counter.name);
    if (before != values_.end() && last_)
      counted.more[static_cast<size_t>(counter.count)] += Growth(before->second, counter.value, took);
    values_[counter.name] = counter.value;
  }
  for (size_t i = 0; i < kCounts; ++i) totals_[i] += counted.more[i];
  const bool first = !std::exchange(last_, now);
  if (first || took <= 0) return;
  window_.push_back(counted);
  while (now - window_.front().at >= kWindow) window_.pop_front();
  for (size_t i = 0; i < kCounts; ++i) {
    uint64_t more = 0;
    for (const Counted& one : window_) more += one.more[i];
    Judge(static_cast<Count>(i), static_cast<double>(more) * kSecond / kWindow, now, out);
  }
}

void PortWatch::Judge(Count count, double per_second, int64_t now, std::vector<Finding>& out) {
  const Threshold& threshold = kThresholds[static_cast<size_t>(count)];
  Rate& rate = rates_[static_cast<size_t>(count)];
  rate.per_second = per_second;
  const auto text = [&] {
    return fmt::format("{} {}: {:.0f} a second ({})", name_, threshold.what, per_second, threshold.label);
  };
  if (per_second >= threshold.per_second) {
    rate.below_since.reset();
    if (!rate.above_since) rate.above_since = now;
    if (!rate.raised && now - *rate.above_since >= kRaiseAfter) {
      rate.raised = true;
      out.push_back({text(), false, true});
    }
    return;
  }
  rate.above_since.reset();
  if (per_second >= threshold.per_second / 2) {
    rate.below_since.reset();
    return;
  }
  if (!rate.below_since) rate.below_since = now;
  if (now - *rate.below_since >= kClearAfter) rate.raised = false;
}

std::string PortWatch::Sick(int64_t now) const {
  const auto seconds = [&](int64_t since) { return (now - since) / kSecond; };
  if (gone_since_ && now - *gone_since_ >= kGoneIsSick)
    return fmt::format("{} has been gone for {} s", name_, seconds(*gone_since_));
  if (!gone_since_ && down_since_ && now - *down_since_ >= kDownIsSick)
    return fmt::format("{} has had no link for {} s: {}", name_, seconds(*down_since_), state_);
  return "";
}

std::vector<Finding> PortWatch::Holding() const {
  std::vector<Finding> holding;
  if (gone_since_) holding.push_back({name_ + " is gone", true, true});
  if (!gone_since_ && down_since_)
    holding.push_back({fmt::format("{} has no link: {}", name_, state_), true, true});
  for (size_t i = 0; i < kCounts; ++i) {
    if (!rates_[i].raised) continue;
    holding.push_back({fmt::format("{} {}: {:.0f} a second ({})", name_, kThresholds[i].what,
                                   rates_[i].per_second, kThresholds[i].label),
                       false, true});
  }
  return holding;
}

}  // namespace muster::watch
