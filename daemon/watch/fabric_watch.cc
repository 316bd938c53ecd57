#include "daemon/watch/fabric_watch.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

namespace muster::watch {
namespace {

// NCCL's queue pairs give up after 4.3 s x 8.
constexpr int64_t kBeforeNs = 40 * PortWatch::kSecond;
constexpr int64_t kAfterNs = 1 * PortWatch::kSecond;
constexpr size_t kMostEvents = 256;
// A link that changes is looked at without waiting for the next sample; one that flaps is not looked at for every change.
constexpr std::chrono::milliseconds kSoon{200};

constexpr std::chrono::seconds kStuck{30};

int64_t Now(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * PortWatch::kSecond + now.tv_nsec;
}

}  // namespace

struct FabricWatch::Readers {
  std::string said;  // the newest error of roce.yaml
  std::vector<PortReader> readers;

  void Find(const Options& options) {
    readers.clear();
    const auto settings = roce::LoadSettings(options.settings);
    const std::string error = settings ? "" : settings.error().message;
    if (!error.empty() && error != said) spdlog::warn("the fabric is not watched: {}", error);
    said = error;
    if (!settings || settings->networks.empty()) return;
    for (const roce::Interface& one : roce::FabricInterfaces(options.host, *settings)) {
      const auto add = [&](std::optional<roce::RdmaPort> rdma) {
        readers.emplace_back(options.host.root, settings->networks, one.name, std::move(rdma));
      };
      if (one.rdma.empty()) add(std::nullopt);
      for (const roce::RdmaPort& port : one.rdma) add(port);
    }
  }
};

FabricWatch::FabricWatch(Loop& loop, Options options, std::function<bool()> wanted, Heard heard)
    : loop_(loop),
      options_(std::move(options)),
      wanted_(std::move(wanted)),
      heard_(std::move(heard)),
      readers_(std::make_shared<Readers>()) {
  Tick();
}

FabricWatch::~FabricWatch() {
  loop_.Cancel(timer_);
  loop_.Cancel(soon_);
  if (links_.valid()) loop_.Unwatch(links_.get());
}

void FabricWatch::Tick() {
  timer_ = loop_.AfterPeriod(options_.every, [this] { Tick(); });
  if (wanted_()) return Sample();
  if (!std::exchange(watching_, false)) return;
  if (links_.valid()) loop_.Unwatch(links_.get());
  links_.reset();
  for (auto& [name, port] : ports_) port.Pause();
  worker_.Do([readers = readers_] { readers->readers.clear(); });
}

void FabricWatch::Sample() {
  const bool begin = !std::exchange(watching_, true);
  if (std::exchange(sampling_, true)) {
    if (begin) watching_ = false;  // the sample under way is of the time before: begin with the next
    if (loop_.Now() - sampling_since_ > kStuck && !std::exchange(said_stuck_, true))
      spdlog::warn("the fabric: reading its ports has taken {} s so far: a driver hangs", kStuck.count());
    return;
  }
  sampling_since_ = loop_.Now();
  worker_.Do([this, begin, options = options_, readers = readers_, alive = std::weak_ptr<int>(alive_),
              mailbox = loop_.mailbox()] {
    if (begin) readers->Find(options);
    std::vector<Seen> seen;
    for (PortReader& reader : readers->readers) seen.push_back({reader.name(), reader.Read()});
    mailbox->Post([this, alive, seen = std::move(seen)] {
      if (!alive.expired()) Take(seen);
    });
  });
}

void FabricWatch::Take(const std::vector<Seen>& seen) {
  sampling_ = false;
  said_stuck_ = false;
  if (!watching_) return;
  const int64_t now = Now(CLOCK_BOOTTIME);
  const int64_t realtime = Now(CLOCK_REALTIME);
  std::erase_if(ports_, [&](const auto& port) {
    return std::ranges::none_of(seen, [&](const Seen& one) { return one.port == port.first; });
  });
  if (seen.empty()) return;
  ListenForLinks();
  std::erase_if(events_, [&](const Event& event) { return realtime - event.realtime_ns > 2 * kBeforeNs; });
  std::vector<std::string> news;
  std::string sick;
  for (const auto& [name, sample] : seen) {
    PortWatch& port = ports_.try_emplace(name, name).first->second;
    for (Finding& finding : port.Take(sample, now)) {
      if (finding.tell) {
        spdlog::warn("the fabric: {}", finding.text);
        news.push_back(finding.text);
      }
      if (events_.size() >= kMostEvents) events_.erase(events_.begin());
      events_.push_back({realtime, std::move(finding)});
    }
    const std::string one = port.Sick(now);
    if (!one.empty()) sick += (sick.empty() ? "" : "; ") + one;
  }
  heard_(news, sick);
}

// What the kernel says of a link is only a reason to look.
void FabricWatch::ListenForLinks() {
  if (links_.valid()) return;
  links_.reset(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (!links_.valid() ||
      ::bind(links_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    links_.reset();
    return;  // the next sample sees it as well
  }
  loop_.Watch(links_.get(), EPOLLIN, [this](uint32_t) { LinkChanged(); });
}

void FabricWatch::LinkChanged() {
  std::array<char, 16 << 10> unread{};
  while (::recv(links_.get(), unread.data(), unread.size(), 0) > 0) {
  }
  if (soon_ != 0) return;
  soon_ = loop_.After(kSoon, [this] {
    soon_ = 0;
    if (watching_) Sample();
  });
}

std::vector<FabricWatch::Fact> FabricWatch::Before(int64_t realtime_ns) const {
  std::vector<Fact> facts;
  for (const auto& [name, port] : ports_) {
    for (const Finding& finding : port.Holding()) facts.push_back({finding.hardware, finding.text});
  }
  for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
    const int64_t age = realtime_ns - event->realtime_ns;
    if (age > kBeforeNs || age < -kAfterNs) continue;
    facts.push_back(
        {event->finding.hardware, fmt::format("{}, {:.1f} s {}", event->finding.text,
                                              static_cast<double>(age < 0 ? -age : age) / PortWatch::kSecond,
                                              age < 0 ? "after" : "before")});
  }
  return facts;
}

std::optional<FabricFigures> FabricWatch::figures() const {
  if (ports_.empty()) return std::nullopt;
  FabricFigures figures;
  for (const auto& [name, port] : ports_) {
    ++(port.up() ? figures.up : figures.down);
    figures.links_lost += port.links_lost();
    for (size_t i = 0; i < kCounts; ++i) figures.totals[i] += port.totals()[i];
  }
  return figures;
}

std::vector<PortView> FabricWatch::ports() const {
  std::vector<PortView> views;
  const int64_t now = Now(CLOCK_BOOTTIME);
  for (const auto& [name, port] : ports_) {
    PortView view{name, port.up(), port.links_lost(), watching_ ? port.Sick(now) : "", {}};
    for (const Finding& finding : port.Holding()) view.holding.push_back(finding.text);
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace muster::watch
