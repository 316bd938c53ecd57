// daemon/slurm on a loop of its own, for tests: a line of words on stdin is a request, a line of JSON on stdout its
// outcome. usage: slurm_client [timeout=MS] [downs=N] [helper=PATH]; requests: job ID [sharing], down JOB NODE REASON...,
// drain NODE REASON..., resume NODE, requeue JOB RESTARTS [DEAD_NODE...], comment JOB TEXT..., step JOB STEP, cancel JOB, end-here JOB.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/loop.h"
#include "daemon/slurm/local_job.h"
#include "daemon/slurm/messages.h"
#include "daemon/slurm/slurm.h"

namespace muster {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{2};

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

class Client {
 public:
  explicit Client(SlurmOptions options) : slurm_(loop_, std::move(options)) {}

  void Run() {
    loop_.Watch(STDIN_FILENO, EPOLLIN, [this](uint32_t) { Read(); });
    Tick(Clock::now());
    loop_.Run();
  }

 private:
  // A loop that is blocked misses its ticks.
  void Tick(Clock::time_point last) {
    const auto now = Clock::now();
    stall_ = std::max(stall_, now - last);
    loop_.After(kTick, [this, now] { Tick(now); });
  }

  void Read() {
    std::array<char, 4096> block{};
    const ssize_t size = ::read(STDIN_FILENO, block.data(), block.size());
    if (size <= 0) return loop_.Stop();
    input_.append(block.data(), static_cast<size_t>(size));
    for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
      std::istringstream words(input_.substr(0, end));
      input_.erase(0, end + 1);
      Request({std::istream_iterator<std::string>(words), {}});
    }
  }

  void Request(const std::vector<std::string>& words) {
    const std::string what = words.empty() ? "" : words[0];
    const auto word = [&](size_t i) { return i < words.size() ? words[i] : ""; };
    const auto number = [&](size_t i) {
      return static_cast<uint32_t>(std::strtoul(word(i).c_str(), nullptr, 10));
    };
    const auto rest = [&](size_t i) {
      std::string text;
      for (; i < words.size(); ++i) text += (text.empty() ? "" : " ") + words[i];
      return text;
    };
    const auto began = Clock::now();
    stall_ = {};
    const auto done = [this, what, began](const Status& status) {
      json out = {{"request", what}, {"ok", status.ok()}};
      if (!status) out["error"] = status.error().message;
      if (!status) out["code"] = static_cast<int>(status.error().code);
      Print(std::move(out), began);
    };
    if (what == "job") {
      slurm_.JobInfo({number(1)}, word(2) == "sharing" ? Slurm::Sharing::kAsk : Slurm::Sharing::kSkip,
                     [this, done, began](const Result<SlurmJob>& job) {
                       if (!job) return done(job.error());
                       Print({{"request", "job"}, {"ok", true}, {"job", slurm::ToJson(*job)}}, began);
                     });
    } else if (what == "down") {
      slurm_.NodeDown({number(1)}, word(2), rest(3), done);
    } else if (what == "drain") {
      slurm_.NodeDrain(word(1), rest(2), done);
    } else if (what == "resume") {
      slurm_.NodeResume(word(1), done);
    } else if (what == "requeue") {
      std::vector<std::string> dead(words.begin() + static_cast<long>(std::min<size_t>(3, words.size())),
                                    words.end());
      slurm_.Requeue({number(1), number(2)}, std::move(dead), "its host is silent", Slurm::Script::kRuns,
                     done);
    } else if (what == "comment") {
      slurm_.SetComment({number(1)}, rest(2), done);
    } else if (what == "step") {
      slurm_.KillStep(number(1), number(2), done);
    } else if (what == "cancel") {
      slurm_.CancelJob(number(1), done);
    } else if (what == "end-here") {
      done(EndJobHere(number(1), std::chrono::seconds(5)));
    } else {
      done(Error{Errc::kInvalid, "no such request"});
    }
  }

  void Print(json out, Clock::time_point began) {
    out["ms"] = Milliseconds(Clock::now() - began);
    out["longest_stall_ms"] = Milliseconds(stall_);
    out["helper"] = slurm_.helper_pid();
    std::cout << out.dump() << std::endl;
  }

  Loop loop_;
  Slurm slurm_;
  std::string input_;
  Clock::duration stall_{};
};

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("slurm_client"));
  muster::SlurmOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string value = word.substr(word.find('=') + 1);
    if (word.starts_with("timeout=")) options.timeout = std::chrono::milliseconds(std::stoi(value));
    if (word.starts_with("downs=")) options.node_downs_per_minute = std::stoi(value);
    if (word.starts_with("helper=")) options.helper = value;
  }
  muster::Client(std::move(options)).Run();
}
