// A shell script in the place of muster-slurm.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace muster {

// In a directory of its own, which goes with it.
class HelperScript {
 public:
  HelperScript() {
    std::string pattern = std::filesystem::temp_directory_path() / "muster-slurm-test.XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~HelperScript() { std::filesystem::remove_all(directory_); }
  HelperScript(const HelperScript&) = delete;
  HelperScript& operator=(const HelperScript&) = delete;

  // `body` runs in the directory. There `ask` reads a question into $line, its number into $id and what it is into $do; `ok` and `no`
  // answer it.
  void Write(const std::string& body) const {
    constexpr char kRead[] = R"sh(#!/bin/bash
ask() {
  read -r line || exit 0
  id=$(sed 's/.*"id":\([0-9]*\).*/\1/' <<<"$line")
  do=$(sed 's/.*"do":"\([a-z_]*\)".*/\1/' <<<"$line")
}
ok() { echo "{\"id\":$id,\"ok\":$1}"; }
no() { echo "{\"id\":$id,\"error\":{\"code\":\"$1\",\"message\":\"$2\"}}"; }
)sh";
    std::ofstream(path()) << kRead << "cd " << directory_ << "\n" << body << "\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
  }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] std::string path() const { return directory_ / "helper"; }
  // What is in this file of the directory; "" where there is none.
  [[nodiscard]] std::string Text(const char* name) const {
    std::ostringstream text;
    text << std::ifstream(directory_ / name).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path directory_;
};

}  // namespace muster
