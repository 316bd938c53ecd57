// What `muster doctor` finds, and what of it is said: causes, and not what follows from them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace muster::cli {

struct DoctorFinding {
  std::string id;     // docs/operations.md, "The doctor", has all of them
  std::string about;  // the unit or the state, for what follows from what; ""
  std::string is;
  std::string should;
  std::string fix;
  bool warning = false;  // for people; the host can be used
};

struct DoctorReport {
  size_t checked = 0;
  std::vector<DoctorFinding> findings;
  std::vector<std::string> unchecked;  // what could not be looked at, and why

  // Whether there are but warnings.
  [[nodiscard]] bool ok() const;
};

// Without the findings that follow from another one, whose fix then mends them too.
DoctorReport CausesOnly(DoctorReport report);

// {ok, checked, findings: [{id, host, is, should, fix, severity}], unchecked: [...]}
nlohmann::json DoctorJson(const DoctorReport& report, const std::string& host);
std::string DoctorText(const nlohmann::json& document);

// Where a check puts what it sees.
class DoctorNotes {
 public:
  explicit DoctorNotes(std::function<void(const nlohmann::json&)> tell) : tell_(std::move(tell)) {}

  // What is asked next may never answer: this is found then.
  void Next(const DoctorFinding& silence);
  void Check(bool good, const DoctorFinding& finding);
  void Unchecked(const std::string& why);
  // All of what others have put elsewhere.
  void Add(const DoctorReport& report);

 private:
  std::function<void(const nlohmann::json&)> tell_;
};

struct DoctorCheck {
  std::string subject;
  std::function<void(DoctorNotes&)> run;
};
// Runs all at once, each in a process of its own, for `limit` at most: a disk or a server that hangs leaves its caller in an
// uninterruptible sleep. To be called while this process has one thread.
DoctorReport RunChecks(const std::vector<DoctorCheck>& checks, std::chrono::milliseconds limit);

}  // namespace muster::cli
