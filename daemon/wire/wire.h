// The local protocol: what supervisors (in the SPANK plugin) and libmuster say to musterd over its
// SOCK_SEQPACKET socket, and back. One message is one packet: a Header, a fixed body, and for some types a
// tail of bytes whose lengths the body states. Host byte order (both ends are on one host). docs/formats.md
// specifies it byte by byte.
//
// This header is all that the plugin and libmuster share with the daemon: it needs libc only, allocates
// nothing and throws nothing. Messages are append-only: a newer version may add types, or fields at the end
// of a body; it never changes one. A reader takes any body that is at least as long as the one it knows.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace muster::wire {

inline constexpr uint32_t kMagic = 0x3152534d;  // "MSR1" in memory on a little-endian machine
inline constexpr uint16_t kVersion = 1;
inline constexpr uint16_t kOldestVersion = 1;
inline constexpr size_t kMaxMessage = 64 * 1024;  // bytes, header included; a longer packet is refused
inline constexpr char kDefaultSocket[] = "/run/muster/musterd.sock";
inline constexpr char kUnit[] = "musterd.service";
inline constexpr size_t kTokenBytes = 16;

enum class Type : uint16_t {
  // supervisor -> musterd
  kSupervisorHello = 1,
  kExecuted = 2,   // the member's program has been exec'd
  kExited = 3,     // the member's program has ended (its descendants may still run)
  kStopped = 4,    // nothing of the generation runs any more in this member
  kSignalled = 5,  // Slurm sent this task a signal that the gang must know of
  // musterd -> supervisor
  kWelcome = 32,
  kStart = 33,  // carries a memfd: the environment
  kStop = 34,
  kFinish = 35,   // the gang is over: exit
  kReport = 36,   // text for the job's stderr
  kRefused = 37,  // to either kind of peer: why the last message was not accepted; musterd then closes
  // libmuster -> musterd
  kClientHello = 64,
  kSave = 65,  // carries a memfd: the shard
  kRestore = 66,
  kProgress = 67,
  // musterd -> libmuster
  kClientWelcome = 96,
  kShardDurable = 97,  // the staging memory of that save may be used again
  kCommitted = 98,     // the checkpoint of that step is committed, or has failed
  kRestored = 99,      // carries a memfd: the shard
  kNotify = 100,
};

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t size;  // bytes of the whole packet, header included
  uint32_t reserved;
};
static_assert(sizeof(Header) == 16);

enum class MemberState : uint32_t {
  kWaiting = 0,  // no generation has been started in this supervisor
  kRunning = 1,  // the program of `generation` was forked
  kExited = 2,   // the program of `generation` has ended; descendants may be there
  kStopped = 3,  // nothing of `generation` runs any more
};

// First message of a supervisor. Tail: node_list, node_name, options (no terminators), in this order.
struct SupervisorHello {
  Header header;
  uint32_t job_id;
  uint32_t step_id;
  uint32_t restart_count;  // SLURM_RESTART_COUNT, 0 when unset
  uint32_t uid;
  uint32_t gid;
  uint32_t node_id;  // index of this node in the step, from 0
  uint32_t node_count;
  uint32_t task_count;        // tasks of the whole step
  uint32_t local_task_count;  // tasks on this node
  uint32_t task_id;           // SLURM_PROCID
  uint32_t local_id;          // SLURM_LOCALID
  uint32_t supervisor_pid;
  uint32_t reconnecting;  // 1: `state`, `generation`, `token` say where this member is
  uint32_t state;         // MemberState
  uint64_t generation;
  int32_t child_pid;
  int32_t wait_status;         // as waitpid gives it; valid in kExited and kStopped
  uint8_t token[kTokenBytes];  // as Welcome gave it
  uint32_t node_list_bytes;    // Slurm's hostlist expression of the step's nodes
  uint32_t node_name_bytes;    // this node's NodeName
  uint32_t options_bytes;      // the value of --gang, "" for none
  uint32_t reserved;
};

struct Executed {
  Header header;
  uint64_t generation;
  int64_t realtime_ns;  // CLOCK_REALTIME when the exec was seen
  int32_t pid;
  uint32_t reserved;
};

// Tail: program (the member's comm name), stderr_tail (its last bytes of stderr, at most kMaxStderrTail).
inline constexpr uint32_t kMaxStderrTail = 8192;
struct Exited {
  Header header;
  uint64_t generation;
  int64_t realtime_ns;  // when waitpid returned
  int32_t pid;
  int32_t wait_status;
  uint32_t oom_killed;  // 1: the kernel's OOM killer did it
  uint32_t program_bytes;
  uint32_t stderr_bytes;
  uint32_t reserved;
};

struct Stopped {
  Header header;
  uint64_t generation;
  int64_t realtime_ns;
  uint32_t unkillable;  // processes that SIGKILL has not removed within 10 s; 0: all are gone
  uint32_t reserved;
};

struct Signalled {
  Header header;
  uint32_t signal;
  uint32_t reserved;
};

struct Welcome {
  Header header;
  uint8_t token[kTokenBytes];  // shown again when reconnecting, and by libmuster
  uint32_t
      lease_ms;  // a supervisor that hears nothing on an open socket for so long kills its child; 0: never
  uint32_t reconnect_ms;  // how long a member runs on after musterd has gone
};

// Carries a memfd with `environment_bytes` of NUL-terminated strings: KEY=VALUE sets, KEY alone unsets.
struct Start {
  Header header;
  uint64_t generation;
  uint32_t environment_bytes;
  uint32_t rank;
};

struct Stop {
  Header header;
  uint64_t generation;
};

enum class FinishAs : uint32_t {
  kOwnStatus = 0,  // exit as the program did (the same status, or the same signal)
  kZero = 1,       // exit 0: another member's failure is the step's exit code
  kCode = 2,       // exit with `code`
};
struct Finish {
  Header header;
  uint32_t as;  // FinishAs
  uint32_t code;
};

// Tail: text, which goes to the task's stderr as it is.
struct Report {
  Header header;
  uint32_t text_bytes;
  uint32_t reserved;
};

enum class Refusal : uint32_t {
  kVersion = 1,
  kMalformed = 2,
  kDenied = 3,
  kNoGang = 4,
  kStaleGeneration = 5,
  kDisabled = 6,
  kInvalid = 7,
};
// Tail: text.
struct Refused {
  Header header;
  uint32_t reason;  // Refusal
  uint32_t text_bytes;
};

// First message of libmuster. Tail: gang (MUSTER_GANG).
struct ClientHello {
  Header header;
  uint8_t token[kTokenBytes];
  uint64_t generation;
  uint32_t rank;
  uint32_t gang_bytes;
};

inline constexpr uint64_t kNoStep = UINT64_MAX;

struct ClientWelcome {
  Header header;
  uint64_t generation;
  uint64_t restore_step;  // the checkpoint this generation starts from, kNoStep: from nothing
  uint32_t rank;
  uint32_t world_size;
  uint64_t max_shard_bytes;  // the largest shard musterd stages for this member
};

// Carries a memfd (sealed against shrinking) with the shard in its first `bytes` bytes.
struct Save {
  Header header;
  uint64_t step;
  uint64_t bytes;
};

struct Restore {
  Header header;
  uint64_t step;  // kNoStep: the generation's restore_step
};

struct Progress {
  Header header;
  uint64_t step;
};

// status: 0, or a muster_error of muster.h. Tail: text of the error.
struct ShardDurable {
  Header header;
  uint64_t step;
  int32_t status;
  uint32_t text_bytes;
};

struct Committed {
  Header header;
  uint64_t step;
  int32_t status;
  uint32_t text_bytes;
};

// Carries a sealed memfd with the verified shard when status is 0.
struct Restored {
  Header header;
  uint64_t step;
  uint64_t bytes;
  int32_t status;
  uint32_t text_bytes;
};

inline constexpr uint32_t kShouldCheckpoint = 1;
inline constexpr uint32_t kShouldExit = 2;
struct Notify {
  Header header;
  uint32_t flags;
  uint32_t reserved;
};

// ---- building and checking packets
// ------------------------------------------------------------------------------

// Fills the header of a body of type Body; `tail` bytes follow it.
template <typename Body>
void SetHeader(Body* body, Type type, size_t tail = 0) {
  body->header = {kMagic, kVersion, static_cast<uint16_t>(type), static_cast<uint32_t>(sizeof(Body) + tail),
                  0};
}

enum class Check { kOk, kTruncated, kNotMuster, kVersion, kSize };

// Checks what every packet must be before its type is looked at. `size` is what recvmsg returned; a packet
// that the kernel truncated (MSG_TRUNC) is to be given with its real size.
inline Check CheckHeader(const void* packet, size_t size, Header* out) {
  if (size < sizeof(Header)) return Check::kTruncated;
  if (size > kMaxMessage) return Check::kSize;
  memcpy(out, packet, sizeof(Header));
  if (out->magic != kMagic) return Check::kNotMuster;
  if (out->version < kOldestVersion || out->version > kVersion) return Check::kVersion;
  return out->size == size ? Check::kOk : Check::kSize;
}

// The sentence for a Check that failed; for messages to people.
inline const char* CheckText(Check check) {
  switch (check) {
    case Check::kOk:
      return "ok";
    case Check::kTruncated:
      return "message is shorter than a header";
    case Check::kNotMuster:
      return "message does not begin with Muster's magic number";
    case Check::kVersion:
      return "protocol version is not supported (this side speaks version 1)";
    case Check::kSize:
      return "message size does not match its header, or is above 64 KiB";
  }
  return "unknown";
}

// Copies the body out of a packet that CheckHeader has passed; false when it is too short for Body.
template <typename Body>
bool ReadBody(const void* packet, size_t size, Body* out) {
  if (size < sizeof(Body)) return false;
  memcpy(out, packet, sizeof(Body));
  return true;
}

// The tail of `count` lengths: checks that they fit what is left of the packet, and gives the start of each
// piece.
template <typename Body, size_t N>
bool ReadTail(const void* packet, size_t size, const uint32_t (&lengths)[N], const char* (&pieces)[N]) {
  size_t at = sizeof(Body);
  for (size_t i = 0; i < N; ++i) {
    if (size < at || lengths[i] > size - at) return false;
    pieces[i] = static_cast<const char*>(packet) + at;
    at += lengths[i];
  }
  return true;
}

}  // namespace muster::wire
