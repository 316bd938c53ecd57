#include "daemon/cli/net_test_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace muster::cli {
namespace {

using nlohmann::json;

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

}  // namespace

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
  text += SharedText(verdict) + LatencyText(verdict);
  return text +
         fmt::format("{} nodes, {} measurements of {} in {:.1f} s: a good link carries {:.0f} Mbit/s. {}\n",
                     verdict.at("nodes").get<size_t>(), verdict.at("measurements").get<size_t>(),
                     verdict.at("transport").get<std::string>(), verdict.at("seconds").get<double>(),
                     verdict.at("mbit_s").get<double>(),
                     verdict.at("ok").get<bool>() ? "No link is bad." : "The fabric is not good.");
}

}  // namespace muster::cli
