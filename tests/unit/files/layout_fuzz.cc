// Whatever a shard's names and metadata are, nothing is written outside of the step's directory. Input: lines of
// NAME TAB META.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "client/files/directory_layout.h"

namespace {

struct Base {
  Base() {
    std::string name = std::filesystem::temp_directory_path() / "muster-layout-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Base() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Base base;
  const std::filesystem::path top = base.path / "top";
  std::filesystem::create_directory(top);
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<muster::files::ShardEntry> entries;
  for (size_t at = 0; at < text.size() && entries.size() < 16;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const size_t tab = std::min(line.find('\t'), line.size());
    entries.push_back({line.substr(0, tab), line.substr(std::min(tab + 1, line.size())), text.data(), tab});
    at = end + 1;
  }
  const muster::UniqueFd fd(open(top.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto name = muster::files::LayOut(fd.get(), 7, entries);
  size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(base.path))
    beside += entry.path() == top ? 0 : 1;
  if (beside != 0 || (!name && !std::filesystem::is_empty(top))) std::abort();
  std::filesystem::permissions(top, std::filesystem::perms::owner_all);
  std::filesystem::remove_all(top);
  return 0;
}
