// A bar on stderr for what takes long; nothing when that is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace muster::cli {

class Progress {
 public:
  // `total` bytes are to be done.
  Progress(std::string label, uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(uint64_t bytes);
  // Removes the bar.
  void Finish();

 private:
  void Draw();

  const std::string label_;
  const uint64_t total_;
  const bool shown_;
  uint64_t done_ = 0;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_{};
};

// One line: "export  [######......]  52 %  1.2 GB of 2.3 GB  310.0 MB/s  4 s left".
std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, double seconds);

}  // namespace muster::cli
