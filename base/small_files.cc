#include "base/small_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "base/unique_fd.h"

namespace muster {

std::optional<std::string> ReadSmallFile(const std::string& path) {
  constexpr size_t kMaxBytes = 256 << 10;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return std::nullopt;
  std::string text;
  std::array<char, 4096> block{};
  while (text.size() < kMaxBytes) {
    const ssize_t size = ::read(file.get(), block.data(), block.size());
    if (size < 0) return std::nullopt;
    if (size == 0) break;
    text.append(block.data(), static_cast<size_t>(size));
  }
  return text;
}

std::string ReadLine(const std::string& path) {
  const std::string text = ReadSmallFile(path).value_or("");
  const std::string line = text.substr(0, text.find('\n'));
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

std::optional<uint64_t> ParseDecimal(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  return ParseDecimal(ReadLine(path));
}

std::optional<uint64_t> ReadMemInfo(const std::string& proc_root, std::string_view name) {
  const std::vector<std::string> words = Words(ReadSmallFile(proc_root + "/meminfo").value_or(""));
  const auto found = std::find(words.begin(), words.end(), name);
  if (found == words.end() || found + 1 == words.end()) return std::nullopt;
  const auto kib = ParseDecimal(found[1]);
  return kib ? std::optional(*kib * 1024) : std::nullopt;
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return names;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Words(std::string_view text, std::string_view separators) {
  std::vector<std::string> words;
  for (size_t at = text.find_first_not_of(separators); at != std::string_view::npos;
       at = text.find_first_not_of(separators, at)) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

}  // namespace muster
