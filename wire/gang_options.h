// The value of --gang, parsed alike by the plugin (at sbatch, to refuse early) and by musterd (which trusts
// nobody). libc only; allocates nothing.
#pragma once

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace muster::wire {

inline constexpr size_t kMaxName = 63;
inline constexpr size_t kMaxOptions = 1024;  // bytes of the whole value

// What a role's members mean to their gang. docs/operations.md has the table.
enum class RoleKind : uint32_t {
  kTracked = 0,  // the gang has succeeded when all tracked members have ended with 0; a failure is a fault
  kChief = 1,    // tracked, and its end with 0 is the gang's: the others are stopped then
  kService =
      2,  // never ends by itself: its failure is a fault, and it is stopped when the tracked ones are done
  kUntracked = 3,  // its failure is a fault, its end with 0 is not awaited
  kSidecar = 4,    // its failure is nobody's; stopped at the end
};

// Whether the links between the nodes are tested before the first generation.
enum class Preflight : uint32_t { kOff = 0, kQuick = 1, kFull = 2 };

struct GangOptions {
  uint32_t restarts = 3;       // user faults before the gang is given up, 0..1000
  uint32_t join_seconds = 60;  // how long all members may take to appear, 1..86400
  uint32_t spares = 0;         // nodes of the step whose tasks wait to replace a lost node's, 0..1024
  uint32_t min_nodes = 0;      // the gang goes on with so many when it has no spare, 1..65536; 0: it does not
  uint32_t hang_seconds = 0;   // no progress for so long is a hang, 1..86400; 0: learned from the steps
  uint32_t grace_seconds = 30;     // how long a drain waits for a checkpoint, 0..3600
  bool hang_off = false;           // no hang is looked for
  bool grow = false;               // a gang that has shrunk takes nodes back at its next checkpoint
  bool requeue = true;             // the job may be requeued when it cannot go on in its allocation
  bool files = false;              // directories that the program writes are its checkpoints
  bool order_by_topology = false;  // ranks follow Slurm's topology, not Slurm's order of the nodes
  Preflight preflight = Preflight::kOff;
  bool after_done = false;             // `after` is to have ended with 0, not only to run
  RoleKind kind = RoleKind::kTracked;  // as given, else KindOfRole(role)
  char role[kMaxName + 1] = "worker";
  char after[kMaxName + 1] = "";  // start after every member of that role runs; "": at once
  char name[kMaxName + 1] = "";   // key of the checkpoints; "": the job's own
};

inline constexpr char kGangKeys[] =
    "restarts=N (0..1000), join=DURATION (1s..24h), spares=N (0..1024 nodes), min=N (1..65536 nodes), "
    "grow=yes|no, hang=DURATION|off (1s..24h), grace=DURATION (0s..1h), requeue=yes|no, role=NAME, "
    "kind=tracked|chief|service|untracked|sidecar, after=ROLE[:done], name=KEY, files=yes|no, "
    "order=slurm|topology, preflight=off|quick|full";

// Bytes that hold any sentence of the functions below.
inline constexpr size_t kMaxOptionError = 640;

// What a role is when `kind` does not say: TensorFlow's and MXNet's names mean what they mean there.
inline RoleKind KindOfRole(const char* role) {
  struct Known {
    const char* role;
    RoleKind kind;
  };
  constexpr Known kKnown[] = {{"chief", RoleKind::kChief},         {"master", RoleKind::kChief},
                              {"ps", RoleKind::kService},          {"scheduler", RoleKind::kService},
                              {"server", RoleKind::kService},      {"evaluator", RoleKind::kUntracked},
                              {"tensorboard", RoleKind::kSidecar}, {"sidecar", RoleKind::kSidecar}};
  for (const Known& known : kKnown) {
    if (strcmp(role, known.role) == 0) return known.kind;
  }
  return RoleKind::kTracked;
}

inline const char* RoleKindName(RoleKind kind) {
  switch (kind) {
    case RoleKind::kTracked:
      return "tracked";
    case RoleKind::kChief:
      return "chief";
    case RoleKind::kService:
      return "service";
    case RoleKind::kUntracked:
      return "untracked";
    case RoleKind::kSidecar:
      return "sidecar";
  }
  return "tracked";
}

namespace detail {

// Letters, digits, '.', '_', '-'; not starting with '.' or '-': safe as an object's, a file's and a metric's
// name.
inline bool IsName(const char* text, size_t size) {
  if (size == 0 || size > kMaxName || text[0] == '.' || text[0] == '-') return false;
  for (size_t i = 0; i < size; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80 || (isalnum(c) == 0 && c != '.' && c != '_' && c != '-')) return false;
  }
  return true;
}

inline bool ParseNumber(const char* text, size_t size, uint32_t low, uint32_t high, uint32_t* out) {
  if (size == 0 || size > 9) return false;
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + static_cast<uint32_t>(text[i] - '0');
  }
  if (value < low || value > high) return false;
  *out = value;
  return true;
}

// "90", "90s", "5m", "1h".
inline bool ParseSeconds(const char* text, size_t size, uint32_t low, uint32_t high, uint32_t* out) {
  uint32_t unit = 1;
  if (size > 1 && (text[size - 1] == 's' || text[size - 1] == 'm' || text[size - 1] == 'h')) {
    unit = text[size - 1] == 's' ? 1 : text[size - 1] == 'm' ? 60 : 3600;
    --size;
  }
  uint32_t count = 0;
  if (!ParseNumber(text, size, 0, 86400, &count) || count > high / unit) return false;
  if (count * unit < low) return false;
  *out = count * unit;
  return true;
}

inline bool IsWord(const char* text, size_t size, const char* word) {
  return size == strlen(word) && memcmp(text, word, size) == 0;
}

inline bool ParseYesNo(const char* text, size_t size, bool* out) {
  *out = IsWord(text, size, "yes");
  return *out || IsWord(text, size, "no");
}

inline bool ParseName(const char* text, size_t size, char (&out)[kMaxName + 1]) {
  if (!IsName(text, size)) return false;
  memcpy(out, text, size);
  out[size] = '\0';
  return true;
}

inline bool ParseKind(const char* text, size_t size, RoleKind* out) {
  constexpr RoleKind kKinds[] = {RoleKind::kTracked, RoleKind::kChief, RoleKind::kService,
                                 RoleKind::kUntracked, RoleKind::kSidecar};
  for (const RoleKind kind : kKinds) {
    *out = kind;
    if (IsWord(text, size, RoleKindName(kind))) return true;
  }
  return false;
}

inline bool ParsePreflight(const char* text, size_t size, Preflight* out) {
  *out = IsWord(text, size, "quick")  ? Preflight::kQuick
         : IsWord(text, size, "full") ? Preflight::kFull
                                      : Preflight::kOff;
  return *out != Preflight::kOff || IsWord(text, size, "off");
}

// "ROLE" or "ROLE:done".
inline bool ParseAfter(const char* text, size_t size, GangOptions* out) {
  constexpr char kDone[] = ":done";
  constexpr size_t kDoneSize = sizeof(kDone) - 1;
  out->after_done = size > kDoneSize && memcmp(text + size - kDoneSize, kDone, kDoneSize) == 0;
  return ParseName(text, out->after_done ? size - kDoneSize : size, out->after);
}

// In the order of kKeys below.
enum Key {
  kRestarts,
  kJoin,
  kSpares,
  kMin,
  kGrow,
  kHang,
  kGrace,
  kRequeue,
  kRole,
  kKind,
  kAfter,
  kName,
  kFiles,
  kOrder,
  kPreflight
};
inline int FindKey(const char* text, size_t size) {
  constexpr const char* kKeys[] = {"restarts", "join",  "spares",  "min",   "grow",
                                   "hang",     "grace", "requeue", "role",  "kind",
                                   "after",    "name",  "files",   "order", "preflight"};
  for (int i = 0; i <= kPreflight; ++i) {
    if (IsWord(text, size, kKeys[i])) return i;
  }
  return -1;
}

inline bool ParseValue(int key, const char* text, size_t size, GangOptions* out) {
  switch (key) {
    case kRestarts:
      return ParseNumber(text, size, 0, 1000, &out->restarts);
    case kJoin:
      return ParseSeconds(text, size, 1, 86400, &out->join_seconds);
    case kSpares:
      return ParseNumber(text, size, 0, 1024, &out->spares);
    case kMin:
      return ParseNumber(text, size, 0, 65536, &out->min_nodes);
    case kGrow:
      return ParseYesNo(text, size, &out->grow);
    case kHang:
      out->hang_off = IsWord(text, size, "off");
      return out->hang_off || ParseSeconds(text, size, 1, 86400, &out->hang_seconds);
    case kGrace:
      return ParseSeconds(text, size, 0, 3600, &out->grace_seconds);
    case kRequeue:
      return ParseYesNo(text, size, &out->requeue);
    case kRole:
      return ParseName(text, size, out->role);
    case kKind:
      return ParseKind(text, size, &out->kind);
    case kAfter:
      return ParseAfter(text, size, out);
    case kName:
      return ParseName(text, size, out->name);
    case kFiles:
      return ParseYesNo(text, size, &out->files);
    case kOrder:
      out->order_by_topology = IsWord(text, size, "topology");
      return out->order_by_topology || IsWord(text, size, "slurm");
    case kPreflight:
      return ParsePreflight(text, size, &out->preflight);
    default:
      return false;
  }
}

// What each value may be, but not all of them together.
inline bool CheckTogether(const GangOptions& options, char* error, size_t error_size) {
  if (options.grow && options.min_nodes == 0) {
    snprintf(
        error, error_size,
        "--gang: grow=yes needs min=N: without it the gang never has fewer nodes than it began with; the "
        "keys are %s",
        kGangKeys);
    return false;
  }
  if (strcmp(options.after, options.role) == 0) {
    snprintf(error, error_size, "--gang: after=%s names the role itself; the keys are %s", options.after,
             kGangKeys);
    return false;
  }
  return true;
}

}  // namespace detail

// Parses "key=value,..." ("" takes the defaults). On failure writes a sentence to `error` that names the bad
// part and lists the good keys, and returns false; *out is then unspecified.
inline bool ParseGangOptions(const char* text, size_t size, GangOptions* out, char* error,
                             size_t error_size) {
  *out = GangOptions{};
  if (size > kMaxOptions) {
    snprintf(error, error_size, "--gang: the value is %zu bytes long, at most %zu are taken", size,
             kMaxOptions);
    return false;
  }
  for (size_t i = 0; i < size; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) {
      snprintf(error, error_size, "--gang: control character at position %zu; the keys are %s", i + 1,
               kGangKeys);
      return false;
    }
  }
  unsigned seen = 0;
  size_t at = 0;
  while (at < size) {
    const char* item = text + at;
    const auto* comma = static_cast<const char*>(memchr(item, ',', size - at));
    const size_t item_size = comma != nullptr ? static_cast<size_t>(comma - item) : size - at;
    at += item_size + 1;
    if (item_size == 0 || (comma != nullptr && at == size)) {
      snprintf(error, error_size, "--gang: empty item in the list; the keys are %s", kGangKeys);
      return false;
    }
    const auto* equals = static_cast<const char*>(memchr(item, '=', item_size));
    const size_t key_size = equals != nullptr ? static_cast<size_t>(equals - item) : item_size;
    const char* value = equals != nullptr ? equals + 1 : item + item_size;
    const size_t value_size = static_cast<size_t>(item + item_size - value);
    const int key = detail::FindKey(item, key_size);
    if (key < 0) {
      snprintf(error, error_size, "--gang: unknown key '%.*s'; the keys are %s",
               static_cast<int>(key_size > 40 ? 40 : key_size), item, kGangKeys);
      return false;
    }
    const unsigned bit = 1U << static_cast<unsigned>(key);
    if ((seen & bit) != 0) {
      snprintf(error, error_size, "--gang: '%.*s' is given twice", static_cast<int>(key_size), item);
      return false;
    }
    seen |= bit;
    if (!detail::ParseValue(key, value, value_size, out)) {
      snprintf(error, error_size, "--gang: '%.*s' is not a good value; the keys are %s",
               static_cast<int>(item_size > 80 ? 80 : item_size), item, kGangKeys);
      return false;
    }
  }
  if ((seen & (1U << detail::kKind)) == 0) out->kind = KindOfRole(out->role);
  return detail::CheckTogether(*out, error, error_size);
}

// Whether options that have been parsed can be had on `node_count` nodes, spares included; else a sentence that says
// which cannot.
inline bool CheckNodes(const GangOptions& options, uint32_t node_count, char* error, size_t error_size) {
  if (options.spares >= node_count) {
    snprintf(error, error_size,
             "--gang: spares=%u of %u nodes leaves none to run on; ask for more nodes, or for fewer spares",
             options.spares, node_count);
    return false;
  }
  if (options.min_nodes > node_count - options.spares) {
    snprintf(error, error_size,
             "--gang: min=%u is more than the %u nodes that the gang runs on (%u, of which spares=%u wait)",
             options.min_nodes, node_count - options.spares, node_count, options.spares);
    return false;
  }
  return true;
}

}  // namespace muster::wire
