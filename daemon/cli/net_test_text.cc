#include "daemon/cli/net_test_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "wire/wire.h"

namespace muster::cli {
namespace {

using nlohmann::json;

static_assert(kMaxVerdict < wire::kMaxLinksText);
constexpr size_t kMostNamed = 64;  // of each kind: where all is bad, nobody reads it all
constexpr int kIndent = 2;         // of Print

// Nothing where no measurement had a latency.
std::string LatencyText(const json& verdict) {
  const double usual = verdict.at("latency_us").get<double>();
  const json& pair = verdict.at("longest_pair");
  if (usual <= 0 || pair.size() != 2) return "";
  return fmt::format("Half of a round trip takes {:.1f} us; between {} and {}, the farthest, {:.1f} us.\n",
                     usual, pair.at(0).get<std::string>(), pair.at(1).get<std::string>(),
                     verdict.at("longest_latency_us").get<double>());
}

// Nothing where the links were the test's alone.
std::string SharedText(const json& verdict) {
  const auto names = verdict.at("shared").get<std::vector<std::string>>();
  if (names.empty()) return "";
  return fmt::format("Other traffic filled links, and a bad one may hide behind it: {}\n",
                     fmt::join(names, ", "));
}

// Empty where Shorten has left nothing out.
std::string LeftOutText(const json& verdict) {
  std::string text;
  const json left_out = verdict.value("left_out", json::object());
  for (const auto& [list, count] : left_out.items())
    text += fmt::format("Left out of {}: {} more.\n", list, count.get<size_t>());
  return text;
}

}  // namespace

void Shorten(json& verdict) {
  const auto leave_out = [&](const char* list) {
    json& all = verdict.at(list);
    all.erase(all.size() - 1);
    json& count = verdict["left_out"][list];
    count = (count.is_null() ? 0 : count.get<size_t>()) + 1;
  };
  constexpr std::array kLists{"passing", "shared", "over_tcp", "gone", "missing", "findings"};
  for (const char* list : kLists) {
    while (verdict.at(list).size() > kMostNamed) leave_out(list);
  }
  for (const char* list : kLists) {
    while (!verdict.at(list).empty() &&
           verdict.dump(kIndent, ' ', false, json::error_handler_t::replace).size() > kMaxVerdict)
      leave_out(list);
  }
}

std::string VerdictText(const json& verdict) {
  std::string text;
  for (const json& finding : verdict.at("findings")) {
    text += fmt::format("{}\n  look: {}\n", finding.at("text").get<std::string>(),
                        finding.at("fix").get<std::string>());
  }
  for (const json& told : verdict.at("over_tcp")) {
    text += fmt::format("{}\n  look: {}\n", told.at("text").get<std::string>(),
                        told.at("fix").get<std::string>());
  }
  for (const json& node : verdict.at("missing"))
    text += fmt::format("Node {} of the gang did not come.\n", node.get<uint32_t>());
  for (const json& name : verdict.at("gone"))
    text += fmt::format("{} ended in the middle of the test.\n", name.get<std::string>());
  text += LeftOutText(verdict) + SharedText(verdict) + LatencyText(verdict);
  return text +
         fmt::format("{} nodes, {} measurements of {} in {:.1f} s: a good link carries {:.0f} Mbit/s. {}\n",
                     verdict.at("nodes").get<size_t>(), verdict.at("measurements").get<size_t>(),
                     verdict.at("transport").get<std::string>(), verdict.at("seconds").get<double>(),
                     verdict.at("mbit_s").get<double>(),
                     verdict.at("ok").get<bool>() ? "No link is bad." : "The fabric is not good.");
}

}  // namespace muster::cli
