// A file for node exporter's textfile collector, written every 15 s.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/worker.h"

namespace muster {

// On the loop's thread. The file is there while this is; a reader sees all of it or none. Where its directory is missing,
// nothing reads it: nothing is written, and nothing said.
class MetricsFile {
 public:
  // `path` "": no file. `gather` gives the text, on the loop.
  MetricsFile(Loop& loop, std::string path, std::function<std::string()> gather);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

 private:
  void Write();

  Loop& loop_;
  std::string path_;
  std::function<std::string()> gather_;
  Loop::TimerId timer_ = 0;
  // Of the worker's thread, but for `writing`.
  struct Shared {
    std::atomic<bool> writing{false};
    std::string said;  // the newest error
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  Worker worker_;  // a disk may hang: nothing more is given to it meanwhile
};

}  // namespace muster
