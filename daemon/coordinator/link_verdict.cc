#include "daemon/coordinator/link_verdict.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace muster {
namespace {

using nlohmann::json;

constexpr size_t kMaxTexts = 16;  // of each kind
constexpr size_t kMaxText = 300;  // bytes
constexpr char kWithoutText[] = "the test of the links does not say what is wrong";

// One line that is fit for a terminal, without its full stop.
std::string Line(std::string_view text) {
  std::string line(text.substr(0, kMaxText));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  while (!line.empty() && (line.back() == ' ' || line.back() == '.')) line.pop_back();
  return line;
}

std::string Text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? Line(found->get_ref<const std::string&>()) : "";
}

// Its elements; none when it is no array.
const json& Array(const json& object, const char* key) {
  static const json none = json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : none;
}

// What is wrong, and where to look.
std::string Told(const json& finding) {
  const std::string text = Text(finding, "text");
  const std::string fix = Text(finding, "fix");
  return text.empty() || fix.empty() ? text : fmt::format("{}; look: {}", text, fix);
}

double Number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// From the first line that begins as a JSON object does: the program's libraries may have printed warnings before.
std::string_view Document(std::string_view text) {
  const size_t before = text.starts_with('{') ? 0 : text.find("\n{");
  return text.substr(std::min(before, text.size()));
}

// How many entries of a list the program has left out, because the verdict would have been too long.
double LeftOut(const json& said, const char* list) {
  const auto found = said.find("left_out");
  return found != said.end() && found->is_object() ? std::max(0.0, Number(*found, list)) : 0;
}

// "" where nothing is left out of the lists that a verdict is read from.
std::string LeftOutText(const json& said) {
  constexpr std::array<std::pair<const char*, const char*>, 4> kLists{
      {{"findings", "findings"},
       {"over_tcp", "nodes that measured over TCP"},
       {"missing", "nodes that took no part"},
       {"gone", "nodes that ended in the middle"}}};
  std::string text;
  for (const auto& [list, entries] : kLists) {
    if (const double count = LeftOut(said, list); count > 0)
      text += fmt::format("{}{:.0f} {}", text.empty() ? "" : ", ", count, entries);
  }
  return text.empty() ? "" : "the test of the links has more than it names: " + text;
}

std::string WhyNone(int status, std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  std::string said = Line(text.substr(text.rfind('\n') + 1));
  if (status == -1) return said.empty() ? "the program that measures was not started" : said;
  if (!said.empty()) return said;
  return WIFSIGNALED(status)
             ? fmt::format("the program that measures was killed by signal {}", WTERMSIG(status))
             : fmt::format("the program that measures ended with {}", WEXITSTATUS(status));
}

}  // namespace

Result<gang::LinkVerdict> ReadLinkVerdict(int status, std::string_view text,
                                          const std::vector<uint32_t>& nodes,
                                          const std::vector<std::string>& names) {
  const auto none = [&] { return Error{Errc::kInvalid, WhyNone(status, text)}; };
  // 1: the fabric is not good.
  if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) > 1) return none();
  const json said = json::parse(Document(text), nullptr, false);
  if (!said.is_object() || !said.contains("findings")) return none();
  gang::LinkVerdict verdict;
  const auto node_of = [&](const std::string& name) -> std::optional<uint32_t> {
    const auto found = std::ranges::find_if(nodes, [&](uint32_t node) { return names[node] == name; });
    return found == nodes.end() ? std::nullopt : std::optional(*found);
  };
  const auto warn = [&](std::string warning) {
    if (verdict.warnings.size() < kMaxTexts && !warning.empty())
      verdict.warnings.push_back(std::move(warning));
  };
  warn(LeftOutText(said));
  const json& findings = Array(said, "findings");
  for (const json& finding : findings) {
    if (!finding.is_object()) continue;
    std::string what = Told(finding);
    const auto node = node_of(Text(finding, "node"));
    if (!node) {
      warn(what);
      continue;
    }
    // Whoever is left out for it is told something.
    if (what.empty()) what = kWithoutText;
    const auto known = std::ranges::find(verdict.bad, *node, &gang::LinkVerdict::Bad::node);
    if (known != verdict.bad.end()) {
      if (known->why.size() < kMaxText) known->why += "; " + what;
    } else if (verdict.bad.size() < kMaxTexts) {
      verdict.bad.push_back({*node, what});
    }
  }
  for (const json& told : Array(said, "over_tcp")) {
    if (told.is_object()) warn(Told(told));
  }
  for (const json& place : Array(said, "missing")) {
    if (place.is_number_unsigned() && place.get<size_t>() < nodes.size())
      warn(names[nodes[place.get<size_t>()]] + " took no part in the test of the links");
  }
  for (const json& name : Array(said, "gone")) {
    if (name.is_string())
      warn(Line(name.get_ref<const std::string&>()) + " ended in the middle of the test of the links");
  }
  const double found = static_cast<double>(findings.size()) + LeftOut(said, "findings");
  verdict.summary = fmt::format(
      "{} measurements by {} between {} nodes in {:.1f} s: a good link carries {:.0f} Mbit/s; {}",
      Number(said, "measurements"), Text(said, "transport"), Number(said, "nodes"), Number(said, "seconds"),
      Number(said, "mbit_s"), found > 0 ? fmt::format("{:.0f} findings", found) : "no link is bad");
  return verdict;
}

}  // namespace muster
