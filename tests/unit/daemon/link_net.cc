#include "tests/unit/daemon/link_net.h"

#include <fmt/format.h>

#include <array>
#include <deque>
#include <utility>

#include "daemon/beat/key.h"

namespace muster {

struct LinkNet::Listener {
  AcceptLink accept;
};

// End 0 has dialled, end 1 has been dialled.
struct LinkNet::Pair {
  struct Word {
    std::string payload;
    bool end = false;  // the last one: the other end has closed
  };
  std::array<std::string, 2> hosts;
  std::string address;  // as it was dialled
  std::array<std::shared_ptr<End>, 2> ends;
  std::array<LinkEvents, 2> events;
  std::array<bool, 2> over{};              // has been told that it is closed
  std::array<bool, 2> closed{};            // sends nothing more
  std::array<std::deque<Word>, 2> on_way;  // by sender
  bool connected = false;
  std::string key = MakeBeatKey();
};

class LinkNet::End final : public Link {
 public:
  End(LinkNet& net, const std::shared_ptr<Pair>& pair, size_t side)
      : net_(net), pair_(pair), side_(side), key_(pair->key) {}
  void Send(std::string payload) override {
    if (const auto pair = pair_.lock()) net_.Send(*pair, side_, std::move(payload));
  }
  void Close(const std::string& why) override {
    if (const auto pair = pair_.lock()) net_.Close(*pair, side_, why, false);
  }
  void CloseWhenSent(const std::string& why) override {
    if (const auto pair = pair_.lock()) net_.Close(*pair, side_, why, true);
  }
  [[nodiscard]] std::string key() const override { return key_; }

 private:
  LinkNet& net_;
  const std::weak_ptr<Pair> pair_;
  const size_t side_;
  const std::string key_;
};

LinkNet::~LinkNet() = default;

DialLink LinkNet::DialFrom(const std::string& host) {
  return [this, host](const std::string& node, const std::string& address, LinkEvents events,
                      const RunElsewhere& /*elsewhere*/) -> std::shared_ptr<Link> {
    auto pair = std::make_shared<Pair>();
    pair->hosts = {host, node};
    pair->address = address;
    pair->events[0] = std::move(events);
    for (const size_t side : {0, 1}) pair->ends[side] = std::make_shared<End>(*this, pair, side);
    std::shared_ptr<Link> mine = pair->ends[0];
    const std::lock_guard lock(mutex_);
    Forget();
    pairs_.push_back(pair);
    Flush(*pair);
    return mine;
  };
}

std::shared_ptr<void> LinkNet::Listen(const std::string& host, AcceptLink accept) {
  auto listener = std::make_shared<Listener>(Listener{std::move(accept)});
  const std::lock_guard lock(mutex_);
  listeners_[host] = listener;
  return {listener.get(), [this, host](void*) {
            const std::lock_guard inner(mutex_);
            listeners_.erase(host);
            for (const auto& pair : pairs_) {
              if (pair->hosts[1] != host || !pair->connected) continue;
              pair->events[1] = {};  // its daemon is no more
              pair->over[1] = true;
              pair->ends[1].reset();
              if (!std::exchange(pair->closed[1], true)) pair->on_way[1].push_back({"", true});
              Flush(*pair);
            }
          }};
}

bool LinkNet::Held(const Pair& pair) const {
  return pair.hosts[0] != pair.hosts[1] && held_.contains(Between(pair.hosts[0], pair.hosts[1]));
}

void LinkNet::Send(Pair& pair, size_t from, std::string payload) {
  const std::lock_guard lock(mutex_);
  if (pair.closed[from]) return;
  pair.on_way[from].push_back({std::move(payload)});
  Flush(pair);
}

void LinkNet::Close(Pair& pair, size_t from, const std::string& why, bool sent_first) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(pair.closed[from], true)) return;
  if (!sent_first) pair.on_way[from].clear();
  pair.on_way[from].push_back({"", true});
  if (!std::exchange(pair.over[from], true) && pair.events[from].closed) pair.events[from].closed(why);
  Flush(pair);
}

void LinkNet::Connect(Pair& pair) {
  const auto listener = listeners_.find(pair.hosts[1]);
  if (pair.closed[0]) {
    pair.closed[1] = pair.over[1] = true;
  } else if (listener == listeners_.end()) {
    pair.closed[0] = pair.closed[1] = pair.over[1] = true;
    if (!std::exchange(pair.over[0], true))
      pair.events[0].closed(fmt::format("{} at {}: nobody listens", pair.hosts[1], pair.address));
  } else {
    pair.connected = true;
    pair.events[1] = listener->second->accept(pair.ends[1]);
  }
}

void LinkNet::Flush(Pair& pair) {
  if (Held(pair)) return;
  if (!pair.connected && !pair.closed[1]) Connect(pair);
  if (!pair.connected) return;
  for (const size_t from : {0, 1}) {
    const size_t to = 1 - from;
    while (!pair.on_way[from].empty()) {
      const Pair::Word word = std::move(pair.on_way[from].front());
      pair.on_way[from].pop_front();
      ++activity_;
      if (pair.over[to]) continue;
      if (!word.end) {
        pair.events[to].message(word.payload);
      } else {
        pair.over[to] = pair.closed[to] = true;
        pair.events[to].closed("the other end has closed");
      }
    }
  }
}

// Those that nobody is to be told anything of any more.
void LinkNet::Forget() {
  std::erase_if(pairs_, [](const std::shared_ptr<Pair>& pair) {
    return pair->over[0] && pair->over[1] && pair->on_way[0].empty() && pair->on_way[1].empty();
  });
}

void LinkNet::Hold(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  ++held_[Between(a, b)];
}

void LinkNet::Release(const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  if (--held_[Between(a, b)] == 0) held_.erase(Between(a, b));
  for (const auto& pair : pairs_) Flush(*pair);
}

bool LinkNet::SayFor(const std::string& listener, const std::string& dialler, std::string payload) {
  const std::lock_guard lock(mutex_);
  for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {
    Pair& p = **pair;
    if (p.hosts[0] != dialler || p.hosts[1] != listener || !p.connected || p.over[0]) continue;
    p.on_way[1].push_back({std::move(payload)});
    Flush(p);
    return true;
  }
  return false;
}

}  // namespace muster
