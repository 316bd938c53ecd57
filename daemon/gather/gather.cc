#include "daemon/gather/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::gather {
namespace {

constexpr uint32_t kMostNamed = 8;

std::string Used(const std::string& key) {
  return fmt::format("the key {} has been used in this generation: give each exchange another", key);
}

std::string Again(const std::vector<uint32_t>& ranks, const std::string& key) {
  return fmt::format("rank {} has given another value under the key {} already", fmt::join(ranks, ", "), key);
}

void Append32(std::string& to, uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>(number >> shift));
}

v1::Gather About(uint64_t generation, const NodeSide::World& world, const std::string& key) {
  v1::Gather gather;
  gather.set_generation(generation);
  gather.set_world(world.name);
  gather.set_members(world.members);
  gather.set_key(key);
  return gather;
}

v1::Gathered AnswerTo(const v1::Gather& gather) {
  v1::Gathered answer;
  answer.set_generation(gather.generation());
  answer.set_world(gather.world());
  answer.set_key(gather.key());
  return answer;
}

}  // namespace

uint32_t LargestValue(uint32_t members) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(wire::kMaxExchangeValue, kMaxValues / std::max(members, 1U)));
}

bool IsKey(std::string_view key) {
  return !key.empty() && key.size() <= wire::kMaxExchangeKey &&
         std::ranges::all_of(key, [](char c) { return c > ' ' && c < 0x7f; });
}

std::string Pack(const std::vector<std::string>& values) {
  std::string packed;
  uint32_t end = 0;
  for (const std::string& value : values) Append32(packed, end += static_cast<uint32_t>(value.size()));
  packed.reserve(packed.size() + end);
  for (const std::string& value : values) packed += value;
  return packed;
}

// ---- of a node

NodeSide::NodeSide(uint64_t generation, World world, std::function<void(const Answer&)> answer,
                   std::function<void(v1::Gather)> up)
    : generation_(generation), world_(std::move(world)), answer_(std::move(answer)), up_(std::move(up)) {}

void NodeSide::Refuse(uint32_t rank, uint64_t number, wire::StatusCode status, std::string text) const {
  answer_({.rank = rank, .number = number, .values = nullptr, .status = status, .text = std::move(text)});
}

void NodeSide::Send(const std::string& key, const Values& given, bool again) const {
  v1::Gather gather = About(generation_, world_, key);
  gather.set_again(again);
  for (const auto& [rank, one] : given) {
    gather.add_ranks(rank);
    gather.add_values(one.value);
    if (one.answered) gather.add_answered(rank);
  }
  up_(std::move(gather));
}

void NodeSide::Give(uint32_t rank, uint64_t number, const std::string& key, std::string value,
                    wire::Heard heard) {
  const bool again = heard != wire::Heard::kNew;
  if (!IsKey(key)) return Refuse(rank, number, wire::kStatusInvalid, "that is no key of an exchange");
  if (!world_.ranks.contains(rank))
    return Refuse(rank, number, wire::kStatusInvalid, "this rank is not on this node");
  if (const uint32_t most = LargestValue(world_.members); value.size() > most) {
    return Refuse(rank, number, wire::kStatusTooLarge,
                  fmt::format("a value of {} bytes; in an exchange of {} members each may give {}",
                              value.size(), world_.members, most));
  }
  if (key == last_) {
    const auto before = last_given_.find(rank);
    if (!again || (before != last_given_.end() && before->second.value != value))
      return Refuse(rank, number, wire::kStatusInvalid, Used(key));
    // One that musterd has not heard of before gave it to another musterd; a new coordinator has nothing of it yet.
    if (last_given_.try_emplace(rank, Given{std::move(value), number, true}).second)
      Send(last_, last_given_, true);
    if (heard == wire::Heard::kAnswered) return;
    return answer_({.rank = rank, .number = number, .values = last_values_, .text = {}});
  }
  if (heard == wire::Heard::kAnswered && !last_.empty()) return;  // that key is older
  // Said here too: a coordinator that has taken over knows only the newest keys.
  if (!again && used_.contains(key)) return Refuse(rank, number, wire::kStatusInvalid, Used(key));
  const auto found = open_.find(key);
  if (found == open_.end() && open_.size() >= kMaxOpen) {
    return Refuse(rank, number, wire::kStatusBusy,
                  fmt::format("{} exchanges wait for other members already, as under the key {}", kMaxOpen,
                              open_.begin()->first));
  }
  Values& given = open_[key];
  const auto [place, first] = given.try_emplace(rank, Given{value, number});
  if (!first) {
    if (!again || place->second.value != value)
      return Refuse(rank, number, wire::kStatusInvalid,
                    fmt::format("rank {} has given a value under the key {} already", rank, key));
    place->second.number = number;
  }
  place->second.answered = heard == wire::Heard::kAnswered;
  // Another member of this node may have had its answer of a musterd that is gone: it does not come again.
  if (again || given.size() == world_.ranks.size()) Send(key, given, again);
}

void NodeSide::AskMissing(uint32_t rank, uint64_t number, const std::string& key) {
  const auto found = open_.find(key);
  if (found == open_.end() || !found->second.contains(rank)) return;
  // What this node's members have given may wait here for one of them.
  Send(key, found->second, true);
  asking_[key][rank] = number;
  Send(key, {}, false);
}

void NodeSide::Take(const v1::Gathered& gathered) {
  if (gathered.generation() != generation_ || gathered.world() != world_.name) return;
  const auto asking = asking_.extract(gathered.key());
  if (!gathered.missing().empty() && asking) {
    for (const auto& [rank, number] : asking.mapped())
      answer_({.rank = rank, .number = number, .values = nullptr, .text = gathered.missing()});
  }
  if (!gathered.missing().empty()) return;
  if (gathered.error().empty()) {
    v1::Gather taken = About(generation_, world_, gathered.key());
    taken.set_taken(true);
    up_(std::move(taken));
  }
  const auto found = open_.find(gathered.key());
  if (found == open_.end()) return;
  if (!gathered.error().empty()) {
    for (const uint32_t rank : gathered.ranks()) {
      const auto given = found->second.extract(rank);
      if (given) Refuse(rank, given.mapped().number, wire::kStatusInvalid, gathered.error());
    }
    if (found->second.empty()) open_.erase(found);
    return;
  }
  last_ = gathered.key();
  used_.insert(last_);
  last_given_ = std::move(found->second);
  last_values_ = std::make_shared<const std::string>(gathered.values());
  open_.erase(found);
  for (auto& [key, given] : open_) std::erase_if(given, [](const auto& one) { return one.second.answered; });
  std::erase_if(open_, [](const auto& one) { return one.second.empty(); });
  for (auto& [rank, given] : last_given_) {
    if (!std::exchange(given.answered, true))
      answer_({.rank = rank, .number = given.number, .values = last_values_, .text = {}});
  }
}

void NodeSide::Again() {
  if (!last_.empty()) Send(last_, last_given_, true);
  for (const auto& [key, given] : open_) Send(key, given, true);
  for (const auto& [key, asking] : asking_) Send(key, {}, false);
}

// ---- of the gang

void GangSide::Refuse(uint32_t node, const v1::Gather& gather, const std::vector<uint32_t>& ranks,
                      std::string text) const {
  v1::Gathered answer = AnswerTo(gather);
  answer.set_error(std::move(text));
  for (const uint32_t rank : ranks) answer.add_ranks(rank);
  send_(node, answer);
}

Status GangSide::Take(uint32_t node, const v1::Gather& gather) {
  const Error malformed{Errc::kInvalid, "malformed values of an exchange"};
  const auto members = gather.members();
  if (gather.generation() != generation_ || !IsKey(gather.key()) ||
      gather.ranks_size() != gather.values_size() || members == 0 || members > members_ ||
      (!worlds_.contains(gather.world()) && worlds_.size() >= members_) ||
      std::ranges::any_of(gather.ranks(), [&](uint32_t rank) { return rank >= members; }) ||
      std::ranges::any_of(gather.answered(), [&](uint32_t rank) { return rank >= members; }) ||
      std::ranges::any_of(gather.values(),
                          [&](const std::string& value) { return value.size() > LargestValue(members); }))
    return malformed;
  World& world = worlds_[gather.world()];
  if (gather.taken()) {
    if (gather.key() == world.last.key() && world.on_the_way.erase(node) > 0) SendDue(world);
    return {};
  }
  if (gather.ranks().empty()) {
    TellMissing(node, gather, world);
    return {};
  }
  const std::vector<uint32_t> ranks(gather.ranks().begin(), gather.ranks().end());
  const std::set<uint32_t> answered(gather.answered().begin(), gather.answered().end());
  const bool waits = std::ranges::any_of(ranks, [&](uint32_t rank) { return !answered.contains(rank); });
  if (world.used.contains(gather.key())) {
    // To one that has had it before, it is the same once more.
    if (gather.again() && world.last.key() == gather.key()) {
      if (waits && std::ranges::find(world.due, node) == world.due.end() && !world.on_the_way.contains(node))
        world.due.push_back(node);
      SendDue(world);
    } else {
      Refuse(node, gather, ranks, Used(gather.key()));
    }
    return {};
  }
  const auto found = world.open.find(gather.key());
  if (found == world.open.end() && (world.open.size() >= kMaxOpen || world.used.size() >= kMaxKeys)) {
    Refuse(node, gather, ranks,
           world.used.size() >= kMaxKeys
               ? fmt::format("this generation has had {} exchanges, which is all that it may have", kMaxKeys)
               : fmt::format("{} exchanges wait for other members already, as under the key {}", kMaxOpen,
                             world.open.begin()->first));
    return {};
  }
  if (found != world.open.end() && found->second.values.size() != members) return malformed;
  Key& key = world.open[gather.key()];
  key.values.resize(members);
  std::vector<uint32_t> other;  // values than before
  for (int i = 0; i < gather.ranks_size(); ++i) {
    const uint32_t rank = ranks[static_cast<size_t>(i)];
    if (answered.contains(rank)) {
      key.answered.insert(rank);
    } else {
      key.answered.erase(rank);
    }
    auto& value = key.values[rank];
    if (!value) {
      value = gather.values(i);
      ++key.given;
    } else if (*value != gather.values(i)) {
      other.push_back(rank);
    }
  }
  if (waits) {
    key.nodes.insert(node);
  } else {
    key.nodes.erase(node);
  }
  if (!other.empty()) Refuse(node, gather, other, Again(other, gather.key()));
  // Where all have been answered nobody waits, unless one says otherwise: that answer did not reach it.
  if (key.given == members && key.answered.size() < members) Complete(world, gather);
  return {};
}

void GangSide::Complete(World& world, const v1::Gather& gather) {
  const auto done = world.open.extract(gather.key());
  std::vector<std::string> values;
  values.reserve(done.mapped().values.size());
  for (const auto& value : done.mapped().values) values.push_back(*value);
  world.used.insert(gather.key());
  world.last = AnswerTo(gather);
  world.last.set_values(Pack(values));
  world.due.assign(done.mapped().nodes.begin(), done.mapped().nodes.end());
  world.on_the_way.clear();
  // All have come further than a key that one had been answered under.
  std::erase_if(world.open, [](const auto& one) { return !one.second.answered.empty(); });
  SendDue(world);
}

void GangSide::SendDue(World& world) const {
  const size_t most = std::max<size_t>(1, kMaxOnTheWay / std::max<size_t>(1, world.last.values().size()));
  while (!world.due.empty() && world.on_the_way.size() < most) {
    const uint32_t node = world.due.front();
    world.due.pop_front();
    world.on_the_way.insert(node);
    send_(node, world.last);
  }
}

void GangSide::Left(uint32_t node) {
  for (auto& [name, world] : worlds_) {
    for (auto& [key, given] : world.open) given.nodes.erase(node);
    std::erase(world.due, node);
    if (world.on_the_way.erase(node) > 0) SendDue(world);
  }
}

void GangSide::TellMissing(uint32_t node, const v1::Gather& gather, World& world) const {
  const auto found = world.open.find(gather.key());
  if (found == world.open.end()) return;
  Key& key = found->second;
  if (key.missing.empty() || key.missing_of != key.given) {
    std::vector<uint32_t> first;
    for (uint32_t rank = 0; rank < key.values.size() && first.size() < kMostNamed; ++rank) {
      if (!key.values[rank]) first.push_back(rank);
    }
    const auto count = key.values.size() - key.given;
    key.missing = fmt::format("{} of {} members have given nothing yet: rank {}{}", count, key.values.size(),
                              fmt::join(first, ", "), count > first.size() ? " and others" : "");
    key.missing_of = key.given;
  }
  v1::Gathered answer = AnswerTo(gather);
  answer.set_missing(key.missing);
  send_(node, answer);
}

}  // namespace muster::gather
