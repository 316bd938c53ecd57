// Lines of JSON over a connection: what the nodes of a test say to each other.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster::preflight {

using Deadline = std::chrono::steady_clock::time_point;

inline constexpr size_t kMaxLine = 64 * 1024;  // bytes

class LineStream {
 public:
  explicit LineStream(UniqueFd fd) : fd_(std::move(fd)) {}

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] Status Send(const nlohmann::json& message, Deadline deadline) const;
  // The next message, an object. kInvalid for what is none or is longer than kMaxLine; kUnavailable when the other side has ended,
  // or the deadline is over.
  [[nodiscard]] Result<nlohmann::json> Receive(Deadline deadline);
  // Whether the next message is here already: then the descriptor need not become readable.
  [[nodiscard]] bool HasMessage() const { return received_.find('\n') != std::string::npos; }

 private:
  UniqueFd fd_;
  std::string received_;
};

}  // namespace muster::preflight
