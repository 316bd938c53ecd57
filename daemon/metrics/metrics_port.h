// Figures for Prometheus over HTTP/1.1: GET /metrics on a port of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/loop.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// 200, or why a request is refused: 400, 404, 405. `request` is its first line and all its fields; there is no body.
int StatusOfRequest(std::string_view request);

// The connections are a thread's of their own: whoever connects, with whatever, holds up nothing else. A connection has one answer
// and a deadline. When there are too many, the oldest that is not about to be answered gives way, so that those who only sit there
// keep nobody out.
class MetricsPort {
 public:
  struct Options {
    std::string address = "127.0.0.1";  // this host's, IPv4 or IPv6
    uint16_t port = 0;                  // 0: a free one
    std::chrono::milliseconds patience{5'000};
    std::chrono::milliseconds fresh{1'000};  // so long one text answers all
  };
  static constexpr size_t kMostConnections = 16;
  static constexpr size_t kMostRequest = 4096;

  // `gather` gives the text, on `loop`, on whose thread this is made and destroyed. A loop that stands still answers nobody.
  static Result<std::unique_ptr<MetricsPort>> Start(Loop& loop, Options options,
                                                    std::function<std::string()> gather);
  ~MetricsPort();
  MetricsPort(const MetricsPort&) = delete;
  MetricsPort& operator=(const MetricsPort&) = delete;

  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  enum class Step { kReads, kWaits, kWrites, kLeaves };
  struct Connection {
    UniqueFd fd;
    Step step = Step::kReads;
    std::string request;
    std::string answer;
    size_t sent = 0;
    Loop::TimerId deadline = 0;
  };
  using Id = uint64_t;  // in the order in which they came

  MetricsPort(Loop& loop, Options options, std::function<std::string()> gather, UniqueFd listener,
              uint16_t port);
  void Listen();
  void Accept();
  void Ready(Id id);
  void Read(Id id, Connection& connection);
  void Answer(Id id, Connection& connection, int status, std::string_view body);
  void Write(Id id, Connection& connection);
  void Leave(Id id, Connection& connection);
  void Close(Id id);
  void Ask();
  void Gathered(std::string text);

  const std::shared_ptr<Mailbox> asked_loop_;
  const Options options_;
  const std::function<std::string()> gather_;
  const uint16_t port_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // of the asked loop's thread

  // Of the thread.
  Loop loop_;
  UniqueFd listener_;
  std::map<Id, Connection> connections_;
  Id next_ = 1;
  bool asked_ = false;
  std::string text_;
  Loop::Time text_at_;

  std::thread thread_;
};

}  // namespace muster
