// A gang whose reports a test writes: keeps the time and what each rank would say.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/hang/detector.h"

namespace muster::hang {

class Gang {
 public:
  static constexpr int64_t kSecond = kSecondNs;

  explicit Gang(uint32_t size, Settings settings = {}) : detector(settings) {
    for (uint32_t rank = 0; rank < size; ++rank) {
      members.push_back({rank, "worker", "n" + std::to_string(rank / 4), true});
    }
    Restart();
  }

  void Restart(bool whole = true) {
    reports.clear();
    last_call.clear();
    for (const Member& member : members) reports[member.rank].rank = member.rank;
    detector.GenerationStarted(members, now, whole);
  }

  void OpenAll() {
    for (auto& [rank, report] : reports) report.opened = true;
  }

  // That rank calls progress(step) now, or did so `age` ago.
  void Step(uint32_t rank, uint64_t step, int64_t age = 0) {
    reports[rank].step = step;
    ++reports[rank].calls;
    last_call[rank] = now - age;
  }
  void StepAll(uint64_t step) {
    for (const Member& member : members) Step(member.rank, step);
  }
  // What its processes use from now on: a share of a core, bytes a second.
  struct Load {
    double cores = 0;
    double bytes = 0;
    std::optional<bool> gpu{};
    uint32_t blocked = 0;
  };
  void Works(uint32_t rank, Load load) { loads[rank] = load; }

  // Every rank's agent reports, and the detector judges.
  std::optional<Verdict> Say() {
    for (auto& [rank, report] : reports) {
      if (silent.contains(rank)) continue;
      report.age_ns = report.step ? now - last_call[rank] : 0;
      report.activity.reset();
      if (const auto load = loads.find(rank); load != loads.end()) {
        used[rank].gpu_busy = load->second.gpu;
        used[rank].blocked_threads = load->second.blocked;
        report.activity = used[rank];
      }
      detector.Report(report, now);
    }
    return detector.Tick();
  }
  // Time goes on, with a report each second; stops at a verdict.
  std::optional<Verdict> Pass(int64_t ns) {
    for (const int64_t end = now + ns; now < end;) {
      const int64_t tick = std::min(kSecond, end - now);
      now += tick;
      for (const auto& [rank, load] : loads) {
        used[rank].cpu_ns += static_cast<uint64_t>(load.cores * static_cast<double>(tick));
        used[rank].io_bytes += static_cast<uint64_t>(load.bytes * static_cast<double>(tick) / kSecond);
      }
      if (auto verdict = Say()) return verdict;
    }
    return std::nullopt;
  }
  // All ranks make steps that take `ns` each.
  std::optional<Verdict> Train(uint64_t steps, int64_t ns) {
    for (uint64_t i = 0; i < steps; ++i) {
      if (auto verdict = Pass(ns)) return verdict;
      StepAll(++step);
    }
    return Say();
  }

  int64_t now = 1000 * kSecond;
  uint64_t step = 0;
  Detector detector;
  std::vector<Member> members;
  std::map<uint32_t, MemberReport> reports;
  std::map<uint32_t, int64_t> last_call;
  std::map<uint32_t, Load> loads;
  std::map<uint32_t, Activity> used;
  std::map<uint32_t, bool> silent;
};

}  // namespace muster::hang
