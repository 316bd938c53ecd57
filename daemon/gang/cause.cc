#include "daemon/gang/cause.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstring>

namespace muster::gang {
namespace {

constexpr size_t kMaxSignature = 256;
constexpr std::array kClasses = {CauseClass::kUser, CauseClass::kInfrastructure, CauseClass::kPreemption,
                                 CauseClass::kTimeLimit};

// As a shell has it.
int CodeOf(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Signals that a program does not bring upon itself: someone or something outside has sent them.
bool FromOutside(int status) {
  if (!WIFSIGNALED(status)) return false;
  const int signal = WTERMSIG(status);
  return signal == SIGKILL || signal == SIGTERM || signal == SIGPWR;
}

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsHex(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool IsWord(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// What a terminal shows of a line: a progress bar's last state, without colours.
std::string Visible(std::string_view line) {
  const size_t turn = line.rfind('\r');
  if (turn != std::string_view::npos) line.remove_prefix(turn + 1);
  std::string shown;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && (line[i] < 0x40 || line[i] > 0x7e)) ++i;
    } else if (c >= 0x20 && c != 0x7f) {
      shown += line[i];
    } else if (c == '\t') {
      shown += ' ';
    }
  }
  return std::string(Trim(shown));
}

std::string LastLine(std::string_view text) {
  while (!text.empty()) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    std::string line = Visible(text.substr(begin));
    if (!line.empty()) return line;
    text = text.substr(0, begin == 0 ? 0 : newline);
  }
  return "";
}

// Whether a line below a traceback's frames names an exception: "KeyError: 'a'", "torch.cuda.OutOfMemoryError".
bool IsException(std::string_view line) {
  const size_t end = line.find_first_of(": ");
  const std::string_view name = line.substr(0, end);
  const bool ends =
      end == std::string_view::npos || (line[end] == ':' && (end + 1 == line.size() || line[end + 1] == ' '));
  const bool is_word = std::all_of(name.begin(), name.end(), [](char c) { return IsWord(c) || c == '.'; });
  const bool is_class =
      std::any_of(name.begin(), name.end(), [](char c) { return c == '.' || (c >= 'A' && c <= 'Z'); });
  return ends && is_word && is_class && !name.empty() && !IsDigit(name[0]);
}

// The newest exception that a Python program has printed with its traceback; "" for none. An exception of a thread or of a child process
// counts only where the main thread has printed none, because it often follows from the main thread's. An exception that Python itself
// has caught while the program ended does not count.
std::string Raised(std::string_view text) {
  constexpr std::string_view kHeader = "Traceback (most recent call last):";
  std::string main;
  std::string other;
  std::string* into = nullptr;  // inside of a traceback
  std::string_view before;      // the line above
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.starts_with("[rank")) {  // as PyTorch prints a traceback
      const size_t rank_end = line.find("]: ");
      if (rank_end != std::string_view::npos) line.remove_prefix(rank_end + 3);
    }
    if (line.starts_with("  | ")) line.remove_prefix(4);  // as Python prints a group of exceptions
    const std::string_view said = Trim(line);
    if (said.empty()) continue;
    if (said.ends_with(kHeader)) {
      const bool ignored =
          before.starts_with("Exception ignored in") || before.starts_with("Error in atexit.");
      const bool apart = before.starts_with("Exception in thread") || before.starts_with("Process ");
      into = ignored ? nullptr : apart ? &other : &main;
    } else if (into != nullptr && line[0] != ' ' && IsException(said)) {
      *into = Visible(said);
      into = nullptr;
    }
    before = said;
  }
  return main.empty() ? other : main;
}

// Where a word ends that is an address, a digest or a UUID, or `at`: eight hexadecimal digits or more, a decimal one
// among them.
size_t HexWordEnd(std::string_view text, size_t at) {
  size_t end = at;
  size_t digits = 0;
  bool decimal = false;
  for (; end < text.size(); ++end) {
    const bool joins = text[end] == '-' && end + 1 < text.size() && IsHex(text[end + 1]);
    if (!IsHex(text[end]) && !joins) break;
    decimal |= IsDigit(text[end]);
    if (!joins) ++digits;
  }
  const bool whole = (at == 0 || !IsWord(text[at - 1])) && (end == text.size() || !IsWord(text[end]));
  return whole && decimal && digits >= 8 ? end : at;
}

// Where a number ends that begins at `at`: digits, and what joins them in fractions, times, IPv4 addresses.
size_t NumberEnd(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size()) {
    const bool joins = (text[end] == '.' || text[end] == ':' || text[end] == ',') && end + 1 < text.size() &&
                       IsDigit(text[end + 1]);
    if (!IsDigit(text[end]) && !joins) break;
    ++end;
  }
  return end;
}

std::string Masked(std::string_view line) {
  std::string masked;
  for (size_t i = 0; i < line.size();) {
    size_t end = i;
    if (line[i] == '0' && i + 2 < line.size() && (line[i + 1] == 'x' || line[i + 1] == 'X') &&
        IsHex(line[i + 2])) {
      end = i + 2;
      while (end < line.size() && IsHex(line[end])) ++end;
    } else if (IsHex(line[i])) {
      end = HexWordEnd(line, i);
    }
    if (end == i && IsDigit(line[i])) end = NumberEnd(line, i);
    if (end == i) {
      masked += line[i++];
    } else {
      if (!masked.ends_with('#')) masked += '#';
      i = end;
    }
  }
  return masked;
}

}  // namespace

const char* ToString(CauseClass cause) {
  switch (cause) {
    case CauseClass::kUser:
      return "user";
    case CauseClass::kInfrastructure:
      return "infrastructure";
    case CauseClass::kPreemption:
      return "preemption";
    case CauseClass::kTimeLimit:
      return "time_limit";
  }
  return "user";
}

Result<ExitCodes> ParseExitCodes(std::string_view text) {
  ExitCodes codes;
  if (Trim(text).empty()) return codes;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view pair = Trim(text.substr(0, comma));
    const auto refuse = [&](const char* why) {
      return Error{Errc::kInvalid, fmt::format("'{}': {}", pair, why)};
    };
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return refuse("give CODE=CLASS, as in 75=infrastructure");
    const std::string_view number = Trim(pair.substr(0, equals));
    int code = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), code);
    if (error != std::errc() || end != number.data() + number.size() || code < 1 || code > 255) {
      return refuse("the code is a number from 1 to 255 (128 + N for a death by signal N)");
    }
    const std::string_view name = Trim(pair.substr(equals + 1));
    const auto* const found =
        std::find_if(kClasses.begin(), kClasses.end(), [&](CauseClass one) { return name == ToString(one); });
    if (found == kClasses.end()) return refuse("the class is user, infrastructure, preemption or time_limit");
    if (!codes.emplace(code, *found).second) return refuse("this code is given twice");
    if (comma == std::string_view::npos) return codes;
    text.remove_prefix(comma + 1);
  }
}

Cause Classify(const Ending& ending, const ExitCodes& exit_codes) {
  // What Slurm has said explains every end that follows: it is the reason for the SIGTERM, and for what a program
  // does about that.
  if (ending.announced == Announced::kPreemption) {
    return {CauseClass::kPreemption, "Slurm had announced a preemption"};
  }
  if (ending.announced == Announced::kTimeLimit) {
    return {CauseClass::kTimeLimit, "Slurm had announced the job's end"};
  }
  if (ending.node_lost) return {CauseClass::kInfrastructure, "its node was lost"};
  if (ending.oom_killed) return {CauseClass::kUser, "it was killed for using too much memory"};

  const int code = CodeOf(ending.status);
  if (const auto mapped = exit_codes.find(code); mapped != exit_codes.end()) {
    return {mapped->second, fmt::format("exit code {} means so (exit_codes)", code)};
  }
  // Hardware first: what it breaks makes programs, and drivers on their behalf, fail in ways that look like bugs.
  for (const auto points : {KernelEvidence::Points::kHardware, KernelEvidence::Points::kUser}) {
    for (const KernelEvidence& fact : ending.kernel) {
      if (fact.points != points) continue;
      const bool hardware = points == KernelEvidence::Points::kHardware;
      return {hardware ? CauseClass::kInfrastructure : CauseClass::kUser,
              "the kernel reported: " + fact.text};
    }
  }
  if (FromOutside(ending.status)) {
    return {CauseClass::kInfrastructure, fmt::format("{} came from outside, and nobody has said why",
                                                     SignalName(WTERMSIG(ending.status)))};
  }
  if (!ending.waited_for.empty())
    return {CauseClass::kInfrastructure, "it waited in vain: " + ending.waited_for};
  if (WIFSIGNALED(ending.status)) {
    return {CauseClass::kUser, fmt::format("{} is the program's own", SignalName(WTERMSIG(ending.status)))};
  }
  return {CauseClass::kUser, fmt::format("it exited by itself with code {}", code)};
}

bool WaitedInVain(std::string_view stderr_tail) {
  constexpr std::array<std::string_view, 3> kSaid = {
      "Watchdog caught collective operation timeout",   // PyTorch's ProcessGroupNCCL
      "Some NCCL operations have failed or timed out",  // the same
      "JAX distributed service detected fatal errors",  // XLA
  };
  const bool said = std::any_of(kSaid.begin(), kSaid.end(), [&](std::string_view text) {
    return stderr_tail.find(text) != std::string_view::npos;
  });
  if (said) return true;
  // Gloo prints "[...gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for recv operation to complete".
  const size_t waited = stderr_tail.find("] Timed out waiting ");
  if (waited == std::string_view::npos) return false;
  const size_t line = stderr_tail.rfind('\n', waited);
  return stderr_tail.substr(0, waited).find("gloo/transport", line == std::string_view::npos ? 0 : line) !=
         std::string_view::npos;
}

std::string FaultSignature(const Ending& ending) {
  if (ending.node_lost || ending.announced != Announced::kNothing) return "";
  if (ending.oom_killed) return "out of memory";
  if (FromOutside(ending.status)) return "";
  // An exit hook's last line is the same for all bugs; an exception that was caught and logged is the same for all ends. Both tell.
  std::string line = Masked(LastLine(ending.stderr_tail));
  if (const std::string raised = Masked(Raised(ending.stderr_tail)); !raised.empty() && raised != line)
    line = raised.substr(0, kMaxSignature / 2) + "; " + line;
  if (line.empty() && !WIFSIGNALED(ending.status)) return "";
  const std::string how = WIFSIGNALED(ending.status) ? SignalName(WTERMSIG(ending.status))
                                                     : fmt::format("exit {}", WEXITSTATUS(ending.status));
  std::string signature = line.empty() ? how : fmt::format("{}: {}", how, line);
  if (signature.size() > kMaxSignature) signature.resize(kMaxSignature);
  return signature;
}

}  // namespace muster::gang
