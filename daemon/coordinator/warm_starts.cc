#include "daemon/coordinator/warm_starts.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster {
namespace {

// Every reason once, with the first rank that has it.
template <typename Reason>
std::string Reasons(const Reason& of) {
  std::map<std::string, uint32_t> first;
  of([&](uint32_t rank, const std::string& reason) {
    if (!reason.empty()) first.emplace(reason, rank);
  });
  std::string text;
  for (const auto& [reason, rank] : first)
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", rank, reason);
  return text;
}

}  // namespace

std::string WarmStarts::Starts(size_t members) const {
  const auto warm = std::count_if(members_.begin(), members_.end(), [](const auto& item) {
    return item.second.started && item.second.cold.empty();
  });
  const std::string reasons = Reasons([this](const auto& take) {
    for (const auto& [rank, member] : members_) take(rank, member.cold);
  });
  return fmt::format("{} of {} members were started warm{}{}", warm, members,
                     reasons.empty() ? "" : "; cold: ", reasons);
}

std::string WarmStarts::Take(const News& news, size_t members) {
  if (news.generation < generation_) return "";
  if (news.generation > generation_) members_.clear();
  generation_ = news.generation;
  Member& member = members_[news.rank];
  switch (news.state) {
    case State::kReady:
      member.ready = true;
      return "";
    case State::kUnfit:
      member.ready = false;
      member.unfit = news.text;
      return "";
    case State::kWarm:
    case State::kCold:
      member.started = true;
      member.cold = news.state == State::kWarm ? "" : news.text;
      break;
    default:
      return "";
  }
  const auto started =
      std::count_if(members_.begin(), members_.end(), [](const auto& item) { return item.second.started; });
  if (static_cast<size_t>(started) != members) return "";
  std::string text = Starts(members);
  // A program that never fits says so once.
  if (text == reasons_ && text.starts_with("0 ")) return "";
  reasons_ = text;
  return text;
}

std::string WarmStarts::Text(size_t members) const {
  if (members_.empty()) return "";
  const auto any = [this](auto what) {
    return std::count_if(members_.begin(), members_.end(),
                         [&](const auto& item) { return what(item.second); });
  };
  std::string text =
      fmt::format("{} of {} standbys are ready", any([](const Member& m) { return m.ready; }), members);
  const std::string unfit = Reasons([this](const auto& take) {
    for (const auto& [rank, member] : members_) take(rank, member.unfit);
  });
  if (!unfit.empty()) text += "; none for " + unfit;
  if (any([](const Member& m) { return m.started; }) > 0)
    text += fmt::format("; generation {}: {}", generation_, Starts(members));
  return text;
}

}  // namespace muster
