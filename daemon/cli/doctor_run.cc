// Checks in processes of their own, which say what they see in lines of JSON.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "base/unique_fd.h"
#include "daemon/cli/doctor_report.h"

namespace muster::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kDies = std::chrono::milliseconds(500);  // what SIGKILL ends at all
constexpr auto kPause = std::chrono::milliseconds(2);
constexpr char kDone[] = "done";

void Tell(int fd, const json& line) {
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  for (size_t at = 0; at < text.size();) {
    const ssize_t size = ::write(fd, text.data() + at, text.size() - at);
    if (size <= 0) ::_exit(1);
    at += static_cast<size_t>(size);
  }
}

DoctorFinding ToFinding(const json& fields) {
  return {fields.at("id"),     fields.at("about"), fields.at("is"),
          fields.at("should"), fields.at("fix"),   fields.at("warning")};
}

// One check that runs, and what it has said so far.
class Running {
 public:
  explicit Running(const DoctorCheck& check) : subject_(check.subject) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      report_.unchecked.push_back(fmt::format("{}: pipe: {}", subject_, std::strerror(errno)));
      return;
    }
    output_.reset(ends[0]);
    const UniqueFd input(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) report_.unchecked.push_back(fmt::format("{}: fork: {}", subject_, std::strerror(errno)));
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    DoctorNotes notes([fd = input.get()](const json& line) { Tell(fd, line); });
    check.run(notes);
    Tell(input.get(), {{kDone, true}});
    ::_exit(0);
  }

  [[nodiscard]] int fd() const { return output_.get(); }  // -1: it has said all
  [[nodiscard]] const DoctorReport& report() const { return report_; }

  void Read() {
    std::array<char, 4096> part{};
    const ssize_t size = ::read(output_.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) return;
    if (size <= 0) return End(false);
    text_.append(part.data(), static_cast<size_t>(size));
    for (size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      Take(json::parse(text_.substr(0, end)));
      text_.erase(0, end + 1);
    }
    // Not its end of file: what hangs in a process of its own may hold it open.
    if (done_) End(false);
  }

  // `late`: its time is up.
  void End(bool late) {
    output_.reset();
    if (late) ::kill(pid_, SIGKILL);
    int status = 0;
    for (const auto until = Clock::now() + kDies; ::waitpid(pid_, &status, WNOHANG) == 0;) {
      if (Clock::now() >= until) break;
      std::this_thread::sleep_for(kPause);
    }
    if (done_) return;
    if (late && silence_) {
      ++report_.checked;
      report_.findings.push_back(*silence_);
    } else {
      report_.unchecked.push_back(fmt::format(
          "{}: {}", subject_,
          late ? "it does not answer" : fmt::format("the check ended with status {:#x}", status)));
    }
  }

 private:
  void Take(const json& line) {
    if (line.contains("good")) ++report_.checked;
    if (line.contains("found")) {
      ++report_.checked;
      report_.findings.push_back(ToFinding(line["found"]));
    }
    if (line.contains("unchecked")) report_.unchecked.push_back(line["unchecked"]);
    silence_ = line.contains("next") ? std::optional(ToFinding(line["next"])) : std::nullopt;
    done_ |= line.contains(kDone);
  }

  const std::string subject_;
  UniqueFd output_;
  pid_t pid_ = -1;
  std::string text_;
  std::optional<DoctorFinding> silence_;
  bool done_ = false;
  DoctorReport report_;
};

}  // namespace

DoctorReport RunChecks(const std::vector<DoctorCheck>& checks, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::vector<std::unique_ptr<Running>> running;
  running.reserve(checks.size());
  for (const DoctorCheck& check : checks) running.push_back(std::make_unique<Running>(check));
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<Running*> owners;
    for (const auto& one : running) {
      if (one->fd() < 0) continue;
      waits.push_back({one->fd(), POLLIN, 0});
      owners.push_back(one.get());
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (waits.empty() || left <= 0) break;
    ::poll(waits.data(), waits.size(), static_cast<int>(left));
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents != 0) owners[i]->Read();
    }
  }
  DoctorReport all;
  for (const auto& one : running) {
    if (one->fd() >= 0) one->End(true);
    const DoctorReport& report = one->report();
    all.checked += report.checked;
    all.findings.insert(all.findings.end(), report.findings.begin(), report.findings.end());
    all.unchecked.insert(all.unchecked.end(), report.unchecked.begin(), report.unchecked.end());
  }
  return all;
}

}  // namespace muster::cli
