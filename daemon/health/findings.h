// How the checks tell what they see, and how muster-health tells musterd: lines of text on its standard output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/health/check.h"

namespace muster {

// One line: KIND, subject and text between tabs.
struct HealthLine {
  enum class Kind {
    kChecking,  // `subject` is looked at next: what hangs from here on is that
    kFinding,
    kCounter,  // `subject` is its name, `text` its value
    kDone,
  };
  Kind kind = Kind::kDone;
  HealthSeverity severity = HealthSeverity::kWarning;
  std::string subject;
  std::string text;
};
std::string ToLine(const HealthLine& line);  // ends with a newline
std::optional<HealthLine> ParseHealthLine(std::string_view line);

// HealthOptions as muster-health's arguments, KEY=VALUE, and back. kInvalid names the bad argument.
std::vector<std::string> ToArguments(const HealthOptions& options);
Result<HealthOptions> ParseHealthArguments(const std::vector<std::string>& arguments);

// Where the checks put what they see.
class Findings {
 public:
  explicit Findings(std::function<void(const HealthLine&)> tell) : tell_(std::move(tell)) {}

  void Checking(const std::string& subject);
  void Sick(const std::string& what) { Add(HealthSeverity::kSick, what); }
  void Warn(const std::string& what) { Add(HealthSeverity::kWarning, what); }
  void Counter(const std::string& name, uint64_t value);
  void Done() { tell_({HealthLine::Kind::kDone}); }

 private:
  void Add(HealthSeverity severity, const std::string& what);

  std::function<void(const HealthLine&)> tell_;
  std::string subject_;
};

// The checks. Each may block for ever where a driver or a disk does: in muster-health that is nobody's harm.
void CheckGpus(const HealthOptions& options, Findings& findings);
void CheckMemory(const HealthOptions& options, Findings& findings);
void CheckDisks(const HealthOptions& options, Findings& findings);
void CheckNics(const HealthOptions& options, Findings& findings);
void CheckClock(Findings& findings);
// What adjtimex has said.
void JudgeClock(int state, int status, Findings& findings);

}  // namespace muster
