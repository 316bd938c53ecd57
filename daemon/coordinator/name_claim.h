// Whether a gang may take a name=KEY whose record is another gang's. That gang has the name until its record says that it has ended, or
// Slurm says that its job has. No clocks of two hosts are compared, and silence frees no name. Pure: no I/O, clock or thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "daemon/coordinator/record.h"
#include "daemon/slurm/slurm.h"

namespace muster {

class NameClaim {
 public:
  using Nanos = int64_t;
  // A gang whose step has just ended may still have to write so into its record.
  static constexpr Nanos kMayEnd = 5'000'000'000;

  // kLook: soon again, and nobody need know. kWait: the job's user is told what for.
  enum class Next { kTake, kLook, kWait, kRefuse };

  // Between looks at a name that is waited for; each is twice as long as the one before, up to the longest.
  static constexpr Nanos kFirstPause = 5'000'000'000;
  static constexpr Nanos kLongestPause = 60'000'000'000;

  // `job_id`: of the gang that wants the name. `wait`: name=KEY:wait. `refusal`: until when Slurm's answer is waited for without it.
  NameClaim(std::string name, uint32_t job_id, bool wait, Nanos refusal)
      : name_(std::move(name)), job_id_(job_id), wait_(wait), refusal_(refusal) {}

  // The name is `holder`'s, as its record says. `job`: what Slurm says of that gang's job.
  Next Heard(const GangRecord& holder, const Result<SlurmJob>& job, Nanos now);
  // Slurm has said that this gang's job has ended.
  [[nodiscard]] bool IsFree(const GangRecord& holder) const { return free_ == IdOf(holder); }
  // The swap of the name's record has failed. What Slurm said of the holder's job is forgotten, since the job may be requeued before the
  // next swap: Slurm is asked again.
  void NotTaken() { free_.reset(); }
  // A sentence: whose the name is.
  [[nodiscard]] const std::string& holder() const { return text_; }
  // The same, with what the user can do.
  [[nodiscard]] std::string Refusal() const;
  // The gang has waited for its name, and the job's user wants it to wait on however long that takes.
  [[nodiscard]] bool Patient() const { return patient_; }
  // The coordinator before this one has told the agents that the gang waits.
  void HasWaited() { patient_ = wait_; }
  // How long until the next look at a name that is waited for. `draw`: a random number, by which gangs that began at once part.
  Nanos Pause(uint64_t draw);

 private:
  // One launch of one gang.
  struct Id {
    std::string gang;
    uint64_t submission = 0;
    int64_t launched_ns = 0;
    bool operator==(const Id&) const = default;
  };
  static Id IdOf(const GangRecord& record) { return {record.gang, record.submission, record.launched_ns}; }

  std::string name_;
  uint32_t job_id_;
  bool wait_;
  bool patient_ = false;
  Nanos refusal_;
  std::optional<Id> seen_;  // the newest holder
  Nanos since_ = 0;         // it has been seen
  std::optional<Id> free_;
  Nanos pause_ = kFirstPause;  // the next one
  std::string text_;
};

}  // namespace muster
