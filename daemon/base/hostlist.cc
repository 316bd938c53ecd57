#include "daemon/base/hostlist.h"

#include <fmt/format.h>

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

bool ExpandRange(std::string_view prefix, std::string_view range, std::string_view suffix,
                 std::vector<std::string>* out) {
  const size_t dash = range.find('-');
  const std::string_view low_text = range.substr(0, dash);
  const std::string_view high_text = dash == std::string_view::npos ? low_text : range.substr(dash + 1);
  const auto low = Number(low_text);
  const auto high = Number(high_text);
  if (!low || !high || *high < *low || *high - *low >= kMaxHosts) return false;
  for (uint64_t n = *low; n <= *high; ++n) {
    if (out->size() >= kMaxHosts) return false;
    out->push_back(fmt::format("{}{:0{}}{}", prefix, n, low_text.size(), suffix));
    if (out->back().size() > kMaxHostName) return false;
  }
  return true;
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
    const size_t open = item.find('[');
    const size_t close = item.find(']');
    if (open == std::string_view::npos) {
      if (!IsHostPart(item) || item.size() > kMaxHostName || hosts.size() >= kMaxHosts)
        return Malformed(expression);
      hosts.emplace_back(item);
      continue;
    }
    const std::string_view prefix = item.substr(0, open);
    const std::string_view suffix = item.substr(close + 1);
    if (!IsHostPart(prefix) || !IsHostPart(suffix)) return Malformed(expression);
    std::string_view ranges = item.substr(open + 1, close - open - 1);
    while (true) {
      const size_t comma = ranges.find(',');
      if (!ExpandRange(prefix, ranges.substr(0, comma), suffix, &hosts)) return Malformed(expression);
      if (comma == std::string_view::npos) break;
      ranges.remove_prefix(comma + 1);
    }
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
