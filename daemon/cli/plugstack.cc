#include "daemon/cli/plugstack.h"

#include <glob.h>
#include <strings.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace muster::cli {
namespace {

constexpr char kAbout[] =
    "# Muster is the last plugin. `muster node disable-plugin` takes these two lines away.";

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr char kBlank[] = " \t\r";
  for (size_t at = line.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return words;
}

bool IsPluginLine(std::string_view line) {
  const auto words = Words(line);
  return words.size() >= 2 && !words[0].starts_with('#') &&
         words[1].substr(words[1].rfind('/') + 1) == kPlugin;
}

std::vector<std::string> Included(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

}  // namespace

std::optional<std::string> ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  if (!text) return std::nullopt;
  return std::move(text).str();
}

std::string WithPluginLine(std::string_view text) {
  std::vector<std::string> lines = Lines(text);
  const auto own = std::find_if(lines.begin(), lines.end(), IsPluginLine);
  const std::string line = own == lines.end() ? kPluginLine : *own;
  lines = Lines(WithoutPluginLine(text));
  lines.insert(lines.end(), {kAbout, line});
  return Joined(lines);
}

std::string WithoutPluginLine(std::string_view text) {
  std::vector<std::string> lines = Lines(text);
  std::erase_if(lines, [](const std::string& line) { return line == kAbout || IsPluginLine(line); });
  return Joined(lines);
}

std::string IncludedPluginLine(std::string_view text, const std::string& directory) {
  for (const std::string& line : Lines(text)) {
    const auto words = Words(line);
    if (words.size() < 2 || words[0] != "include") continue;
    for (const std::string& path : Included(std::filesystem::path(directory) / words[1])) {
      if (std::ranges::any_of(Lines(ReadText(path).value_or("")), IsPluginLine)) return path;
    }
  }
  return "";
}

std::string PluginIn(std::string_view text) {
  for (const std::string& line : Lines(text)) {
    if (IsPluginLine(line)) return std::string(Words(line)[1]);
  }
  return "";
}

std::string SlurmSetting(std::string_view text, std::string_view key) {
  std::string value;
  for (const std::string& line : Lines(text)) {
    for (const std::string_view word : Words(std::string_view(line).substr(0, line.find('#')))) {
      const size_t equals = word.find('=');
      if (equals == key.size() && ::strncasecmp(word.data(), key.data(), equals) == 0)
        value = word.substr(equals + 1);
    }
  }
  return value;
}

}  // namespace muster::cli
