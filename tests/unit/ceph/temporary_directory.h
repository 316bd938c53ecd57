// A directory of the test's own, removed when it ends.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace muster {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* base = ::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/muster-test-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) ::abort();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster
