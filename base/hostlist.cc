#include "base/hostlist.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace muster {
namespace {

bool IsHostPart(std::string_view text) {
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u >= 0x80 || (std::isalnum(u) == 0 && c != '.' && c != '_' && c != '-')) return false;
  }
  return true;
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.size() > 18 || error != std::errc() || end != text.data() + text.size())
    return std::nullopt;
  return value;
}

Error Malformed(std::string_view expression) {
  return {Errc::kInvalid, fmt::format("malformed node list '{}'", expression.substr(0, 200))};
}

// Splits at commas outside brackets.
std::optional<std::vector<std::string_view>> Items(std::string_view expression) {
  std::vector<std::string_view> items;
  bool inside = false;
  size_t from = 0;
  for (size_t i = 0; i <= expression.size(); ++i) {
    if (i < expression.size() && expression[i] == '[') {
      if (inside) return std::nullopt;
      inside = true;
    } else if (i < expression.size() && expression[i] == ']') {
      if (!inside) return std::nullopt;
      inside = false;
    } else if (i == expression.size() || (expression[i] == ',' && !inside)) {
      if (i == from) return std::nullopt;
      items.push_back(expression.substr(from, i - from));
      from = i + 1;
    }
  }
  if (inside) return std::nullopt;
  return items;
}

// Of `prefix`, which has no brackets any more, and what follows it. Each level has a longer prefix, and each name that is
// made counts, so a hostile expression ends soon.
bool ExpandItem(const std::string& prefix, std::string_view rest, std::vector<std::string>* out) {
  const size_t open = std::min(rest.find('['), rest.size());
  const std::string_view plain = rest.substr(0, open);
  if (!IsHostPart(plain) || prefix.size() + plain.size() > kMaxHostName) return false;
  const std::string begin = prefix + std::string(plain);
  if (open == rest.size()) {
    if (begin.empty() || out->size() >= kMaxHosts) return false;
    out->push_back(begin);
    return true;
  }
  const size_t close = rest.find(']');
  std::string_view ranges = rest.substr(open + 1, close - open - 1);
  const std::string_view behind = rest.substr(close + 1);
  while (true) {
    const size_t comma = std::min(ranges.find(','), ranges.size());
    const std::string_view range = ranges.substr(0, comma);
    const size_t dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const auto low = Number(low_text);
    const auto high = dash == std::string_view::npos ? low : Number(range.substr(dash + 1));
    if (!low || !high || *high < *low || *high - *low >= kMaxHosts) return false;
    if (begin.size() + low_text.size() > kMaxHostName) return false;
    for (uint64_t n = *low; n <= *high; ++n) {
      if (!ExpandItem(fmt::format("{}{:0{}}", begin, n, low_text.size()), behind, out)) return false;
    }
    if (comma == ranges.size()) return true;
    ranges.remove_prefix(comma + 1);
  }
}

// A name and the number at its end, if it has one.
struct Numbered {
  std::string_view prefix;
  std::string_view digits;
  std::optional<uint64_t> number;
};

Numbered Split(std::string_view host) {
  size_t at = host.size();
  while (at > 0 && host[at - 1] >= '0' && host[at - 1] <= '9') --at;
  return {host.substr(0, at), host.substr(at), Number(host.substr(at))};
}

// Whether a range that begins at `low` and has reached `last` goes on with `next`, written as ExpandRange would.
bool Continues(const Numbered& low, const Numbered& last, const Numbered& next) {
  return *next.number == *last.number + 1 &&
         next.digits == fmt::format("{:0{}}", *next.number, low.digits.size());
}

}  // namespace

Result<std::vector<std::string>> ExpandHostlist(std::string_view expression) {
  const auto items = Items(expression);
  if (!items) return Malformed(expression);
  std::vector<std::string> hosts;
  for (const std::string_view item : *items) {
    if (!ExpandItem("", item, &hosts)) return Malformed(expression);
  }
  return hosts;
}

std::string CompressHostlist(const std::vector<std::string>& hosts) {
  std::string list;
  for (size_t i = 0; i < hosts.size();) {
    if (i > 0) list += ',';
    const Numbered first = Split(hosts[i]);
    if (!first.number) {
      list += hosts[i++];
      continue;
    }
    std::string ranges;
    size_t count = 0;  // hosts in the bracket
    while (i < hosts.size()) {
      const Numbered low = Split(hosts[i]);
      if (!low.number || low.prefix != first.prefix) break;
      Numbered last = low;
      for (++i, ++count; i < hosts.size(); ++i, ++count) {
        const Numbered next = Split(hosts[i]);
        if (!next.number || next.prefix != first.prefix || !Continues(low, last, next)) break;
        last = next;
      }
      if (!ranges.empty()) ranges += ',';
      ranges += low.digits;
      if (last.number != low.number) (ranges += '-') += last.digits;
    }
    list += first.prefix;
    list += count == 1 ? ranges : '[' + ranges + ']';
  }
  return list;
}

}  // namespace muster
