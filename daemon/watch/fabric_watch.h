// Watches the ports of the fabric while gangs run. Where roce.yaml names no networks nothing is opened or read.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/unique_fd.h"
#include "base/worker.h"
#include "daemon/watch/port_reader.h"
#include "daemon/watch/port_watch.h"
#include "net/roce/fabric_interfaces.h"
#include "net/roce/settings.h"

namespace muster::watch {

// All ports together.
struct FabricFigures {
  size_t up = 0;
  size_t down = 0;
  uint64_t links_lost = 0;
  Totals totals{};
};

struct PortView {
  std::string name;
  bool up = false;
  uint64_t links_lost = 0;
  std::string sick;                  // why no gang may run here, or ""
  std::vector<std::string> holding;  // what holds now and may break a program
};

// On the loop's thread; what reads the ports is a thread of its own, which a driver may hang.
class FabricWatch {
 public:
  struct Options {
    std::string settings = roce::kSettingsPath;
    roce::Host host = roce::ThisHost();
    std::chrono::milliseconds every{2'000};
  };
  // After each sample: sentences that are events, and why no gang may run here ("": nothing says so).
  using Heard = std::function<void(const std::vector<std::string>& news, const std::string& sick)>;

  // `wanted`: whether gangs are here. Both are called on the loop.
  FabricWatch(Loop& loop, Options options, std::function<bool()> wanted, Heard heard);
  ~FabricWatch();
  FabricWatch(const FabricWatch&) = delete;
  FabricWatch& operator=(const FabricWatch&) = delete;

  struct Fact {
    bool hardware = false;
    std::string text;  // "roce0 lost its link: operstate down, 3.2 s before"
  };
  // What the ports did in the seconds before a member ended, newest first. CLOCK_REALTIME.
  [[nodiscard]] std::vector<Fact> Before(int64_t realtime_ns) const;
  // Nothing where no port is watched.
  [[nodiscard]] std::optional<FabricFigures> figures() const;
  // At the last sample, which is old where no gang is here. By name.
  [[nodiscard]] std::vector<PortView> ports() const;

 private:
  struct Readers;
  struct Seen {
    std::string port;
    PortSample sample;
  };
  struct Event {
    int64_t realtime_ns = 0;
    Finding finding;
  };

  void Tick();
  void Sample();
  void Take(const std::vector<Seen>& seen);
  void ListenForLinks();
  void LinkChanged();

  Loop& loop_;
  Options options_;
  std::function<bool()> wanted_;
  Heard heard_;
  Loop::TimerId timer_ = 0;
  Loop::TimerId soon_ = 0;
  UniqueFd links_;
  bool watching_ = false;  // gangs were here at the last tick
  bool sampling_ = false;
  Loop::Time sampling_since_;
  bool said_stuck_ = false;
  std::map<std::string, PortWatch> ports_;
  std::vector<Event> events_;         // of the last minute, oldest first
  std::shared_ptr<Readers> readers_;  // the worker's
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
  Worker worker_;
};

}  // namespace muster::watch
