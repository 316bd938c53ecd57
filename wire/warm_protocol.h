// Between a supervisor and the Pythons of its member, for gangs with warm=yes (spank-plugin/supervisor/warm_start.h,
// client/python/muster_warm.py). libc only.
//
// A Python finds the name of an abstract SOCK_SEQPACKET socket in its environment, " standby" behind it when it is to wait, and
// " run DEVICE:INODE" (decimal) when muster-run has executed it from that file. The supervisor knows who has connected by the
// kernel's word. All packets begin with a WarmKind.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace muster::wire {

inline constexpr char kWarmVariable[] = "MUSTER_WARM";
inline constexpr char kWarmStandby[] = " standby";
inline constexpr char kWarmRun[] = " run ";

enum class WarmKind : uint32_t {
  // to the supervisor
  kHello = 1,  // a WarmHello
  kReady = 3,  // everything is imported
  kUnfit =
      4,  // a sentence of at most wire::kMaxWarmText bytes: why this process can become no program; it ends
  kStarted = 6,  // it is the program now
  // to a standby
  kLearned = 2,  // with the two memfds of the program's hello; a number: where its world begins
  kGo = 5,       // with a memfd, the program's environment, and its stderr unless it keeps its own
};

// With two memfds. In the first one after another: the interpreter's path and the working directory with their NULs, the
// arguments and the environment of the exec, and its world: what an exec inherits, as lines for a standby to compare with its own.
// In the second what is imported, until that is sealed.
struct WarmHello {
  uint32_t kind;
  uint32_t interpreter_bytes;
  uint32_t directory_bytes;
  uint32_t argument_bytes;
  uint32_t environment_bytes;
  uint32_t world_bytes;
};

}  // namespace muster::wire
