// The local protocol: what supervisors (in the SPANK plugin) and libmuster say to musterd over its
// SOCK_SEQPACKET socket, and back. One message is one packet: a Header, a fixed body, and for some types a
// tail of bytes whose lengths the body states. Host byte order (both ends are on one host). docs/formats.md
// specifies it byte by byte.
//
// This header is all that the plugin and libmuster share with the daemon: it needs libc only, allocates
// nothing and throws nothing. Messages are append-only: a newer version may add types, or fields at the end
// of a body that no tail follows; it never changes one. A reader takes any body that is at least as long as the
// one it knows, and musterd and libmuster also the shorter ones of older versions (ReadGrownBody).
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
  kExecuted = 2,      // the member's program has been exec'd
  kExited = 3,        // the member's program has ended (its descendants may still run)
  kStopped = 4,       // nothing of the generation runs any more in this member
  kSignalled = 5,     // Slurm sent this task a signal that the gang must know of
  kBeatPageRead = 6,  // the answer to kBeatPage: no kBeat is needed any more
  kLinksTested = 7,   // the answer to kTestLinks
  kWarm = 8,          // of a gang with warm=yes: how the program was started, or what its standby is
  kExiting = 9,       // SIGKILL has ended all processes, and some have not gone yet; kStopped follows
  // musterd -> supervisor
  kWelcome = 32,
  kStart = 33,  // carries a memfd: the environment
  kStop = 34,
  kFinish = 35,     // the gang is over: exit
  kReport = 36,     // text for the job's stderr
  kRefused = 37,    // to either kind of peer: why the last message was not accepted; musterd then closes
  kBeat = 38,       // musterd lives, and this node's right to run the gang's members is fresh
  kBeatPage = 39,   // carries a memfd: a BeatPage, which says the same
  kTestLinks = 40,  // carries a memfd: the environment of the process that measures
  kGetsOn = 41,     // the program of a gang with warm=yes gets on: its standby may be made
  // libmuster -> musterd
  kClientHello = 64,
  kSave = 65,  // carries a memfd: the shard
  kRestore = 66,
  kStepPage = 68,  // right behind the welcome; carries a memfd: a StepPage (wire/step_page.h)
  kDescribe = 69,
  kReadRange = 70,
  kGiveUp = 71,      // a save that kShardDelayed or kCommitted was said of is not wanted any more
  kAskOutcome = 72,  // how did a save end that a musterd before this one had
  kAskMemory = 73,   // carries a memfd: may this staging memory grow
  kExchange = 74,
  kAskMissing = 75,  // who has not given a value yet
  // musterd -> libmuster
  kClientWelcome = 96,
  kShardDurable = 97,    // the staging memory of that save may be used again
  kCommitted = 98,       // the checkpoint of that step is committed, or has failed
  kRestored = 99,        // carries a memfd: the shard
  kStepPageTaken = 101,  // what is asked of the member, and will be, is on its page
  kDescribed = 102,
  kRangeRead = 103,  // carries a memfd: a part of a shard
  kShardDelayed =
      104,  // the store does not take that save now, or takes it again; it is tried until kShardDurable
  kMemoryAnswer = 105,
  kExchanged = 106,  // carries a memfd: all members' values
  kMissing = 107,    // the answer to kAskMissing
  // the muster command -> musterd: one question at a time, each has one kCommandAnswer
  kCommandHello = 128,
  kCommandOpen = 129,    // a committed checkpoint, for the two below
  kCommandRead = 130,    // a part of a shard of it
  kCommandVerify = 131,  // a shard of it: is it good
  kCommandBegin = 132,   // a new checkpoint
  kCommandWrite = 133,   // carries a memfd: a shard of it
  kCommandCommit = 134,
  // musterd -> the muster command
  kCommandAnswer = 160,  // carries a memfd when it answers kCommandRead
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

// What a supervisor's hello says of the time before. Of kResumed its own time without musterd has begun again, for Slurm
// had suspended it meanwhile: musterd lets its program run on for as long.
enum class Known : uint32_t { kNew = 0, kReconnecting = 1, kResumed = 2 };

// First message of a supervisor. Tail: node_list, node_name, options, components (no terminators), in this order. In a
// step of several components node_list is of all of them, and what is counted below is of this task's own.
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
  uint32_t reconnecting;  // Known; unless kNew `state`, `generation`, `token` say where this member is
  uint32_t state;         // MemberState
  uint64_t generation;
  int32_t child_pid;
  int32_t wait_status;         // as waitpid gives it; valid in kExited and kStopped
  uint8_t token[kTokenBytes];  // as Welcome gave it
  uint32_t node_list_bytes;    // Slurm's hostlist expression of the step's nodes
  uint32_t node_name_bytes;    // this node's NodeName
  uint32_t options_bytes;      // the value of --gang, "" for none
  uint32_t components_bytes;   // daemon/gang_job/components.h; 0: the step has one
  uint64_t submission;         // of the job, see GangJob; 0: it has none
  int64_t launched_ns;         // see GangJob; 0: not known
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

// Tail: what the process that measured has said, at most kMaxLinksText; of the node that leads the test a verdict in JSON.
inline constexpr uint32_t kMaxLinksText = 32 * 1024;
struct LinksTested {
  Header header;
  uint64_t test;
  int32_t wait_status;  // of that process; -1: it was not started
  uint32_t text_bytes;
};

struct Stopped {
  Header header;
  uint64_t generation;
  int64_t realtime_ns;
  uint32_t unkillable;  // processes that SIGKILL has ended and that are stuck in the kernel; 0: all are gone
  // From the signal that asks for last words until all processes had gone, or SIGKILL came; 0: no signal was sent.
  uint32_t last_words_ms;
};

struct Exiting {
  Header header;
  uint64_t generation;
};

// Tail: text, why it is so; at most kMaxWarmText.
inline constexpr uint32_t kMaxWarmText = 400;
enum class WarmState : uint32_t {
  kReady = 1,  // the standby for the next generation is there
  kUnfit = 2,  // there will be none: text
  kWarm = 3,   // the program of this generation was a standby
  kCold = 4,   // it was none: text
};
struct Warm {
  Header header;
  uint64_t generation;  // whose program it is, or beside whose program the standby waits
  uint32_t state;       // WarmState
  uint32_t text_bytes;
};

struct Signalled {
  Header header;
  uint32_t signal;
  uint32_t
      warn_seconds;  // the job's own --signal is this signal, so long before its end; 0: it is another one
};

struct Welcome {
  Header header;
  uint8_t token[kTokenBytes];  // shown again when reconnecting, and by libmuster
  uint32_t
      lease_ms;  // a supervisor that hears nothing on an open socket for so long kills its child; 0: never
  uint32_t reconnect_ms;  // how long a member runs on after musterd has gone
  uint32_t
      unkillable_ms;  // processes that SIGKILL has ended are stuck when nothing of them has gone for so long
};

// Carries a memfd with `environment_bytes` of NUL-terminated strings: KEY=VALUE sets, KEY?=VALUE sets what the user has not, KEY
// alone unsets.
struct Start {
  Header header;
  uint64_t generation;
  uint32_t environment_bytes;
  uint32_t rank;
};

// Before the first generation, to one task of a node: it runs the program that the variable kLinksVariable names, as
// `muster net test` in that environment, with the fabric's settings from the file that kLinksSettings names, and sends kLinksTested when that has ended. A Start, or another test, ends it.
// Carries a memfd as Start does; KEY=VALUE only.
inline constexpr char kLinksVariable[] = "MUSTER_LINKS_PROGRAM";
inline constexpr char kLinksSettings[] = "MUSTER_LINKS_SETTINGS";
struct TestLinks {
  Header header;
  uint64_t test;
  uint32_t environment_bytes;
  uint32_t full;  // 1: every pair of nodes, and long enough to see one lost packet in a thousand
};

struct Stop {
  Header header;
  uint64_t generation;
  // SIGKILL comes to a program that runs when nothing of it is left, or after so long; 0: at once. `signal` comes before, after
  // signal_after_ms. A Stop that comes again with a time changes nothing, and without one it ends the time.
  uint32_t last_words_ms;
  uint32_t signal;
  uint32_t signal_after_ms;
  uint32_t reserved;
};

struct GetsOn {
  Header header;
  uint64_t generation;
};

struct Beat {
  Header header;
  uint32_t
      leased;  // 0: members of a musterd that was restarted run on for the rest of `reconnect`, without a lease
};

// No tail in either direction. A supervisor that does not know it ignores it, and is sent kBeat as ever.
struct BeatPageHandover {
  Header header;
};

// The first bytes of a memfd of kBeatPageBytes, sealed against shrinking and against other writers than musterd, the same
// for all supervisors of a gang on a node. A lease lasts from `monotonic_ns` on.
inline constexpr uint64_t kBeatPageMagic =
    0x3145474150544542;  // "BETPAGE1" in memory on a little-endian machine
inline constexpr size_t kBeatPageBytes = 4096;
struct BeatPage {
  uint64_t magic;
  int64_t monotonic_ns;  // CLOCK_MONOTONIC of the newest beat; 0: none yet
  uint32_t leased;       // as in Beat, of any beat so far
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

// What a musterd can do beyond the first version.
inline constexpr uint32_t kKnowsShards = 1;    // Restore's `rank`, and Describe
inline constexpr uint32_t kKnowsRanges = 2;    // ReadRange
inline constexpr uint32_t kKnowsOutcomes = 4;  // AskOutcome
inline constexpr uint32_t kGrantsMemory = 8;   // AskMemory
inline constexpr uint32_t kExchanges = 16;     // Exchange, AskMissing

struct ClientWelcome {
  Header header;
  uint64_t generation;
  uint64_t restore_step;  // the checkpoint this generation starts from, kNoStep: from nothing
  uint32_t rank;
  uint32_t world_size;
  uint64_t max_shard_bytes;  // the largest shard musterd stages for this member
  // Since the second version:
  uint32_t features;      // of kKnowsShards, kKnowsRanges, kKnowsOutcomes, kGrantsMemory, kExchanges
  uint32_t reconnect_ms;  // members run on for so long when musterd has gone; 0: it does not say
};
inline constexpr size_t kFirstClientWelcome = 48;

// Carries a memfd (sealed against shrinking) with the shard in its first `bytes` bytes.
struct Save {
  Header header;
  uint64_t step;
  uint64_t bytes;
  // Since the second version:
  int64_t held_ns;  // how long the program was at it, with its wait for a staging buffer
};
inline constexpr size_t kFirstSave = 32;

inline constexpr uint32_t kOwnShard = UINT32_MAX;
struct Restore {
  Header header;
  uint64_t step;  // kNoStep: the generation's restore_step
  // Since the second version:
  uint32_t rank;  // whose shard, as of the generation that saved it; kOwnShard: this member's
  uint32_t reserved;
};
inline constexpr size_t kFirstRestore = 24;

// Asks by how many members a checkpoint was saved.
struct Describe {
  Header header;
  uint64_t step;  // kNoStep: the generation's restore_step
};

// Asks for a part of a shard.
struct ReadRange {
  Header header;
  uint64_t step;  // kNoStep: the generation's restore_step
  uint64_t offset;
  uint64_t bytes;  // at most; a part that goes beyond the shard's end is cut off there
  uint32_t rank;   // whose shard, as of the generation that saved it
  uint32_t reserved;
};

// Answered by the save's ShardDurable.
struct GiveUp {
  Header header;
  uint64_t step;
};

// Of a save whose shard was durable, and whose staging memory is in use again. Answered by the step's Committed, when it is
// known.
struct AskOutcome {
  Header header;
  uint64_t step;
};

// Carries a memfd that is to hold `bytes` bytes. Answered by MemoryAnswer with the same number.
struct AskMemory {
  Header header;
  uint64_t number;
  uint64_t bytes;
};

// A member's value under a key; answered when all members have given theirs. Tail: key, value.
inline constexpr uint32_t kMaxExchangeKey = 63;      // bytes
inline constexpr uint32_t kMaxExchangeValue = 4096;  // bytes; less where a gang has more than 2,048 members
enum class Heard : uint32_t {
  kNew = 0,
  kAgain = 1,     // musterd, or the one before it, may have heard of this call
  kAnswered = 2,  // and the member has all values: other members may still need what it gave
};
struct Exchange {
  Header header;
  uint64_t number;  // comes back with the answer
  Heard heard;
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint32_t reserved;
};

// Answered by Missing, if the coordinator can be asked. Tail: key.
struct AskMissing {
  Header header;
  uint64_t number;
  uint32_t key_bytes;
  uint32_t reserved;
};

// What the `status` of an answer says: 0 or an error. The numbers are those of enum muster_error (client/muster.h), as
// client/libmuster/wire_text.h checks.
enum StatusCode : int32_t {
  kStatusOk = 0,
  kStatusDenied = -3,
  kStatusInvalid = -4,
  kStatusNotFound = -5,
  kStatusCorrupt = -6,
  kStatusTooLarge = -7,
  kStatusBusy = -8,
  kStatusStore = -10,
  kStatusNoMemory = -11,
};

// status: 0 when there is room for it, else a StatusCode. Tail: text of the error.
struct MemoryAnswer {
  Header header;
  uint64_t number;
  int32_t status;
  uint32_t text_bytes;
};

// Carries a sealed memfd of `bytes` bytes when status is 0: for each of `members` ranks where its value ends among the values, 32
// bits, little-endian, then the values. Tail: text of the error.
struct Exchanged {
  Header header;
  uint64_t number;
  uint64_t bytes;
  uint32_t members;
  int32_t status;
  uint32_t text_bytes;
  uint32_t reserved;
};

// Tail: text, a sentence about the members that have given nothing yet.
struct Missing {
  Header header;
  uint64_t number;
  uint32_t text_bytes;
  uint32_t reserved;
};

// status: a StatusCode. Tail: text of the error.
struct ShardDurable {
  Header header;
  uint64_t step;
  int32_t status;
  uint32_t text_bytes;
};

// status: 0 when the store takes it again, else a StatusCode. Tail: text of the error.
struct ShardDelayed {
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

// Tail: text of the error.
struct Described {
  Header header;
  uint64_t step;
  uint64_t bytes;  // of all its shards
  uint32_t world_size;
  int32_t status;
  uint32_t text_bytes;
  uint32_t reserved;
};

// Carries a sealed memfd of `bytes` bytes, the shard's from `offset` on, when status is 0. Tail: text of the error.
struct RangeRead {
  Header header;
  uint64_t step;
  uint64_t offset;
  uint64_t bytes;
  uint64_t shard_bytes;  // of the whole shard
  uint64_t checkpoint;   // the same for all ranges of the same checkpoint: a step may be saved anew
  int32_t status;
  uint32_t text_bytes;
};

// First message of the muster command.
inline constexpr uint32_t kOwnUid = UINT32_MAX;
struct CommandHello {
  Header header;
  uint32_t uid;  // whose checkpoints; another user's only for root
  uint32_t reserved;
};

// Tail: key.
struct CommandOpen {
  Header header;
  uint64_t step;
  uint32_t key_bytes;
  uint32_t reserved;
};

// kCommandRead: what there is of `bytes` bytes from `offset` on, at most kMaxCommandRead. kCommandWrite: the shard is in the
// first `bytes` bytes of a memfd that is sealed against shrinking. kCommandVerify needs only the rank.
inline constexpr uint64_t kMaxCommandRead = 64 << 20;
struct CommandShard {
  Header header;
  uint64_t offset;
  uint64_t bytes;
  uint32_t rank;
  uint32_t reserved;
};

// Tail: key.
struct CommandBegin {
  Header header;
  uint64_t step;
  uint32_t world_size;
  uint32_t key_bytes;
};

struct CommandCommit {
  Header header;
};

// status: a StatusCode. Tail: text of the error.
struct CommandAnswer {
  Header header;
  uint64_t step;   // of the checkpoint
  uint64_t bytes;  // of the whole shard, or of all shards; to a hello: the largest shard that may be written
  uint32_t world_size;  // of the checkpoint
  int32_t status;
  uint32_t text_bytes;
  uint32_t reserved;
};

// No tail in either direction.
struct StepPageHandover {
  Header header;
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

// The same for a body that had `first` bytes in the first version. A packet of that version leaves what was added
// since as it is in *out: put the defaults there before.
template <typename Body>
bool ReadGrownBody(const void* packet, size_t size, size_t first, Body* out) {
  if (size < first) return false;
  memcpy(out, packet, size < sizeof(Body) ? first : sizeof(Body));
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
