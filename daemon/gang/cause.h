// Why a member ended, and who must answer for it: it decides whether the restart counts against `restarts`, whether
// its node is looked at, and when the same bug has been seen often enough. Pure. The rules are a table in
// docs/architecture.md, "Causes".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace muster::gang {

enum class CauseClass { kUser, kInfrastructure, kPreemption, kTimeLimit };
// "user", "infrastructure", "preemption", "time_limit".
const char* ToString(CauseClass cause);

// What exit codes mean by agreement at this site: "75=infrastructure, 143=preemption". A death by signal N has the
// code 128 + N, as in a shell.
using ExitCodes = std::map<int, CauseClass>;
// kInvalid with a sentence that names the bad part. "" is no map. Codes are 1 to 255.
Result<ExitCodes> ParseExitCodes(std::string_view text);

// What the kernel said on the member's node about the time it died.
struct KernelEvidence {
  enum class Points { kNowhere, kHardware, kUser };
  Points points = Points::kNowhere;
  std::string text;
};

// What Slurm has told the job about its end.
enum class Announced { kNothing, kPreemption, kTimeLimit };

struct Ending {
  int status = 0;  // waitpid's
  bool oom_killed = false;
  bool node_lost = false;  // the node or the supervisor is gone; `status` then means nothing
  Announced announced = Announced::kNothing;
  std::vector<KernelEvidence> kernel;
  std::string stderr_tail;
  std::string waited_for;  // the ranks that the member waited for, if WaitedInVain and some stand out
};

struct Cause {
  CauseClass cause = CauseClass::kUser;
  std::string
      because;  // what decided: "the kernel reported: NVRM: Xid ...", "exit code 75 means so (exit_codes)"
};

Cause Classify(const Ending& ending, const ExitCodes& exit_codes);

// Whether the last lines of a member's stderr say that a collective of NCCL, Gloo or XLA has waited for others in vain.
bool WaitedInVain(std::string_view stderr_tail);

// A text that is the same for two endings that very likely have the same cause: the status, Python's exception if there is one, and the
// last line of stderr, with numbers and addresses masked. Empty when that cannot be said: a node was lost, someone else killed
// the program, it said nothing and its exit code is all there is. At most 256 bytes.
std::string FaultSignature(const Ending& ending);

}  // namespace muster::gang
