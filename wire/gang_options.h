// The value of --gang, parsed alike by the plugin (at sbatch, to refuse early) and by musterd (which trusts
// nobody). libc only; allocates nothing.
#pragma once

#include <ctype.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace muster::wire {

inline constexpr size_t kMaxName = 63;
inline constexpr size_t kMaxOptions = 1024;    // bytes of the whole value
inline constexpr uint32_t kMaxLastWords = 60;  // seconds

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
  bool off = false;            // "off": no gang; nothing else is given then
  uint32_t restarts = 3;       // user faults before the gang is given up, 0..1000
  uint32_t join_seconds = 60;  // how long all members may take to appear, 1..86400
  uint32_t spares = 0;         // nodes of the step whose tasks wait to replace a lost node's, 0..1024
  uint32_t min_nodes = 0;      // the gang goes on with so many when it has no spare, 1..65536; 0: it does not
  uint32_t hang_seconds = 0;   // no progress for so long is a hang, 1..86400; 0: learned from the steps
  // From a generation's start to its first step; longer is a hang, 1..86400; 0: learned from earlier starts.
  uint32_t startup_seconds = 0;
  uint32_t grace_seconds = 30;  // how long a drain waits for a checkpoint, 0..3600
  // How long members that live may go on when a fault ends their generation, 1..60, and the signal that tells them; 0: not at all.
  uint32_t last_words_seconds = 0;
  uint32_t last_words_signal = SIGTERM;
  uint8_t stop_codes[32] = {};     // a bit for each exit code by which a program asks that the gang ends
  bool hang_off = false;           // no hang is looked for
  bool grow = false;               // a gang that has shrunk takes nodes back at its next checkpoint
  bool requeue = true;             // the job may be requeued when it cannot go on in its allocation
  bool files = false;              // directories that the program writes are its checkpoints
  bool warm = false;               // a restart uses processes that have imported what the program does
  bool order_by_topology = false;  // ranks follow Slurm's topology, not Slurm's order of the nodes
  Preflight preflight = Preflight::kOff;
  bool after_done = false;             // `after` is to have ended with 0, not only to run
  RoleKind kind = RoleKind::kTracked;  // as given, else KindOfRole(role)
  char role[kMaxName + 1] = "worker";
  char after[kMaxName + 1] = "";  // start after every member of that role runs; "": at once
  char name[kMaxName + 1] = "";   // key of the checkpoints; "": the job's own
  bool name_wait = false;         // a gang that has the name is waited for
};

// Bytes that hold any sentence of the functions below.
inline constexpr size_t kMaxOptionError = 896;

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

inline bool ParseKind(const char* text, size_t size, GangOptions* out) {
  constexpr RoleKind kKinds[] = {RoleKind::kTracked, RoleKind::kChief, RoleKind::kService,
                                 RoleKind::kUntracked, RoleKind::kSidecar};
  for (const RoleKind kind : kKinds) {
    out->kind = kind;
    if (IsWord(text, size, RoleKindName(kind))) return true;
  }
  return false;
}

inline bool ParsePreflight(const char* text, size_t size, GangOptions* out) {
  out->preflight = IsWord(text, size, "quick")  ? Preflight::kQuick
                   : IsWord(text, size, "full") ? Preflight::kFull
                                                : Preflight::kOff;
  return out->preflight != Preflight::kOff || IsWord(text, size, "off");
}

// "NAME", or "NAME" with `suffix`.
inline bool ParseNameAnd(const char* text, size_t size, const char* suffix, char (&name)[kMaxName + 1],
                         bool* has_suffix) {
  const size_t extra = strlen(suffix);
  *has_suffix = size > extra && memcmp(text + size - extra, suffix, extra) == 0;
  return ParseName(text, *has_suffix ? size - extra : size, name);
}

// "ROLE" or "ROLE:done".
inline bool ParseAfter(const char* text, size_t size, GangOptions* out) {
  return ParseNameAnd(text, size, ":done", out->after, &out->after_done);
}

// "KEY" or "KEY:wait".
inline bool ParseKey(const char* text, size_t size, GangOptions* out) {
  return ParseNameAnd(text, size, ":wait", out->name, &out->name_wait);
}

using Parse = bool (*)(const char* text, size_t size, GangOptions* out);
using Same = bool (*)(const GangOptions& one, const GangOptions& other);
using Copy = void (*)(const GangOptions& from, GangOptions* to);

template <auto Field>
bool SameField(const GangOptions& one, const GangOptions& other) {
  return memcmp(&(one.*Field), &(other.*Field), sizeof(one.*Field)) == 0;
}
template <auto Field>
void CopyField(const GangOptions& from, GangOptions* to) {
  memcpy(&(to->*Field), &(from.*Field), sizeof(from.*Field));
}
template <auto Field, uint32_t Low, uint32_t High>
bool ParseNumberKey(const char* text, size_t size, GangOptions* out) {
  return ParseNumber(text, size, Low, High, &(out->*Field));
}
template <auto Field, uint32_t Low, uint32_t High>
bool ParseSecondsKey(const char* text, size_t size, GangOptions* out) {
  return ParseSeconds(text, size, Low, High, &(out->*Field));
}
template <auto Field>
bool ParseYesNoKey(const char* text, size_t size, GangOptions* out) {
  return ParseYesNo(text, size, &(out->*Field));
}
template <auto Field>
bool ParseNameKey(const char* text, size_t size, GangOptions* out) {
  return ParseName(text, size, out->*Field);
}
inline bool SameKey(const GangOptions& one, const GangOptions& other) {
  return strcmp(one.name, other.name) == 0 && one.name_wait == other.name_wait;
}
inline void CopyKey(const GangOptions& from, GangOptions* to) {
  CopyField<&GangOptions::name>(from, to);
  to->name_wait = from.name_wait;
}
inline bool ParseHang(const char* text, size_t size, GangOptions* out) {
  out->hang_off = IsWord(text, size, "off");
  return out->hang_off || ParseSeconds(text, size, 1, 86400, &out->hang_seconds);
}
inline bool SameHang(const GangOptions& one, const GangOptions& other) {
  return one.hang_off == other.hang_off && one.hang_seconds == other.hang_seconds;
}
inline void CopyHang(const GangOptions& from, GangOptions* to) {
  to->hang_off = from.hang_off;
  to->hang_seconds = from.hang_seconds;
}
inline bool ParseLastWords(const char* text, size_t size, GangOptions* out) {
  struct Known {
    const char* name;
    uint32_t signal;
  };
  constexpr Known kKnown[] = {{"TERM", SIGTERM}, {"INT", SIGINT},   {"HUP", SIGHUP},  {"QUIT", SIGQUIT},
                              {"ABRT", SIGABRT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  const auto* colon = static_cast<const char*>(memchr(text, ':', size));
  const size_t seconds = colon != nullptr ? static_cast<size_t>(colon - text) : size;
  if (!ParseSeconds(text, seconds, 1, kMaxLastWords, &out->last_words_seconds)) return false;
  if (colon == nullptr) return true;
  for (const Known& known : kKnown) {
    out->last_words_signal = known.signal;
    if (IsWord(colon + 1, size - seconds - 1, known.name)) return true;
  }
  return false;
}
inline bool SameLastWords(const GangOptions& one, const GangOptions& other) {
  return one.last_words_seconds == other.last_words_seconds &&
         one.last_words_signal == other.last_words_signal;
}
inline void CopyLastWords(const GangOptions& from, GangOptions* to) {
  to->last_words_seconds = from.last_words_seconds;
  to->last_words_signal = from.last_words_signal;
}
// "93:94".
inline bool ParseStopCodes(const char* text, size_t size, GangOptions* out) {
  for (size_t at = 0; at <= size;) {
    const auto* colon = static_cast<const char*>(memchr(text + at, ':', size - at));
    const size_t end = colon != nullptr ? static_cast<size_t>(colon - text) : size;
    uint32_t code = 0;
    if (!ParseNumber(text + at, end - at, 1, 255, &code)) return false;
    out->stop_codes[code / 8] |= static_cast<uint8_t>(1U << code % 8);
    at = end + 1;
  }
  return true;
}
inline bool ParseOrder(const char* text, size_t size, GangOptions* out) {
  out->order_by_topology = IsWord(text, size, "topology");
  return out->order_by_topology || IsWord(text, size, "slurm");
}

}  // namespace detail

// A key of --gang. One with `same` and `copy` is for the whole gang: components of a heterogeneous job may not contradict each
// other in it. The others are each component's own.
struct GangKey {
  const char* name;
  const char* values;  // "N", "yes|no"
  const char* range;   // "0..1000"; "": the values say it
  detail::Parse parse;
  detail::Same same = nullptr;
  detail::Copy copy = nullptr;
};

// A new key is a row here, its use, and its row in docs/options.md.
inline constexpr GangKey kGangKeys[] = {
    {"restarts", "N", "0..1000", detail::ParseNumberKey<&GangOptions::restarts, 0, 1000>,
     detail::SameField<&GangOptions::restarts>, detail::CopyField<&GangOptions::restarts>},
    {"join", "DURATION", "1s..24h", detail::ParseSecondsKey<&GangOptions::join_seconds, 1, 86400>,
     detail::SameField<&GangOptions::join_seconds>, detail::CopyField<&GangOptions::join_seconds>},
    {"spares", "N", "0..1024 nodes", detail::ParseNumberKey<&GangOptions::spares, 0, 1024>},
    {"min", "N", "1..65536 nodes", detail::ParseNumberKey<&GangOptions::min_nodes, 0, 65536>},
    {"grow", "yes|no", "", detail::ParseYesNoKey<&GangOptions::grow>, detail::SameField<&GangOptions::grow>,
     detail::CopyField<&GangOptions::grow>},
    {"hang", "DURATION|off", "1s..24h", detail::ParseHang, detail::SameHang, detail::CopyHang},
    {"startup", "DURATION", "1s..24h", detail::ParseSecondsKey<&GangOptions::startup_seconds, 1, 86400>,
     detail::SameField<&GangOptions::startup_seconds>, detail::CopyField<&GangOptions::startup_seconds>},
    {"grace", "DURATION", "0s..1h", detail::ParseSecondsKey<&GangOptions::grace_seconds, 0, 3600>,
     detail::SameField<&GangOptions::grace_seconds>, detail::CopyField<&GangOptions::grace_seconds>},
    {"last_words", "DURATION[:SIGNAL]", "1s..60s", detail::ParseLastWords, detail::SameLastWords,
     detail::CopyLastWords},
    {"stop_codes", "CODE[:CODE...]", "1..255", detail::ParseStopCodes,
     detail::SameField<&GangOptions::stop_codes>, detail::CopyField<&GangOptions::stop_codes>},
    {"requeue", "yes|no", "", detail::ParseYesNoKey<&GangOptions::requeue>,
     detail::SameField<&GangOptions::requeue>, detail::CopyField<&GangOptions::requeue>},
    {"role", "NAME", "", detail::ParseNameKey<&GangOptions::role>},
    {"kind", "tracked|chief|service|untracked|sidecar", "", detail::ParseKind},
    {"after", "ROLE[:done]", "", detail::ParseAfter},
    {"name", "KEY[:wait]", "", detail::ParseKey, detail::SameKey, detail::CopyKey},
    {"files", "yes|no", "", detail::ParseYesNoKey<&GangOptions::files>},
    {"order", "slurm|topology", "", detail::ParseOrder, detail::SameField<&GangOptions::order_by_topology>,
     detail::CopyField<&GangOptions::order_by_topology>},
    {"preflight", "off|quick|full", "", detail::ParsePreflight, detail::SameField<&GangOptions::preflight>,
     detail::CopyField<&GangOptions::preflight>},
    {"warm", "yes|no", "", detail::ParseYesNoKey<&GangOptions::warm>},
};
static_assert(sizeof(kGangKeys) / sizeof(kGangKeys[0]) <= 32, "ParseGangOptions has a bit for each");

// Stands in the place of all keys: the step is no gang.
inline constexpr char kOff[] = "off";

// All of them, for messages: "restarts=N (0..1000), ..., warm=yes|no, or off alone".
struct GangKeysText {
  char text[768] = "";
};
inline constexpr GangKeysText kGangKeysText = [] {
  GangKeysText all;
  size_t at = 0;
  const auto put = [&](const char* text) {
    while (*text != '\0') all.text[at++] = *text++;
  };
  for (const GangKey& key : kGangKeys) {
    if (at > 0) put(", ");
    put(key.name);
    put("=");
    put(key.values);
    if (key.range[0] == '\0') continue;
    put(" (");
    put(key.range);
    put(")");
  }
  put(", or ");
  put(kOff);
  put(" alone");
  all.text[at] = '\0';
  return all;
}();

namespace detail {

// What each value may be, but not all of them together.
inline bool CheckTogether(const GangOptions& options, char* error, size_t error_size) {
  if (options.grow && options.min_nodes == 0) {
    snprintf(
        error, error_size,
        "--gang: grow=yes needs min=N: without it the gang never has fewer nodes than it began with; the "
        "keys are %s",
        kGangKeysText.text);
    return false;
  }
  if (options.hang_off && options.startup_seconds > 0) {
    snprintf(
        error, error_size,
        "--gang: startup= with hang=off: no hang is looked for then, before the first step neither; the keys "
        "are %s",
        kGangKeysText.text);
    return false;
  }
  if (strcmp(options.after, options.role) == 0) {
    snprintf(error, error_size, "--gang: after=%s names the role itself; the keys are %s", options.after,
             kGangKeysText.text);
    return false;
  }
  return true;
}

}  // namespace detail

// Parses "key=value,..." ("" takes the defaults) or "off". On failure writes a sentence to `error` that names the bad
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
               kGangKeysText.text);
      return false;
    }
  }
  out->off = detail::IsWord(text, size, kOff);
  if (out->off) return true;
  unsigned seen = 0;
  bool kind = false;  // is given
  size_t at = 0;
  while (at < size) {
    const char* item = text + at;
    const auto* comma = static_cast<const char*>(memchr(item, ',', size - at));
    const size_t item_size = comma != nullptr ? static_cast<size_t>(comma - item) : size - at;
    at += item_size + 1;
    if (item_size == 0 || (comma != nullptr && at == size)) {
      snprintf(error, error_size, "--gang: empty item in the list; the keys are %s", kGangKeysText.text);
      return false;
    }
    const auto* equals = static_cast<const char*>(memchr(item, '=', item_size));
    const size_t key_size = equals != nullptr ? static_cast<size_t>(equals - item) : item_size;
    const char* value = equals != nullptr ? equals + 1 : item + item_size;
    const size_t value_size = static_cast<size_t>(item + item_size - value);
    const GangKey* const end = kGangKeys + sizeof(kGangKeys) / sizeof(kGangKeys[0]);
    const GangKey* key = kGangKeys;
    while (key != end && !detail::IsWord(item, key_size, key->name)) ++key;
    if (key == end && detail::IsWord(item, item_size, kOff)) {
      snprintf(error, error_size,
               "--gang: 'off' stands alone: a step that is no gang has no other keys; the keys are %s",
               kGangKeysText.text);
      return false;
    }
    if (key == end) {
      snprintf(error, error_size, "--gang: unknown key '%.*s'; the keys are %s",
               static_cast<int>(key_size > 40 ? 40 : key_size), item, kGangKeysText.text);
      return false;
    }
    const unsigned bit = 1U << static_cast<unsigned>(key - kGangKeys);
    kind |= key->parse == detail::ParseKind;
    if ((seen & bit) != 0) {
      snprintf(error, error_size, "--gang: '%.*s' is given twice", static_cast<int>(key_size), item);
      return false;
    }
    seen |= bit;
    if (!key->parse(value, value_size, out)) {
      snprintf(error, error_size, "--gang: '%.*s' is not a good value; the keys are %s",
               static_cast<int>(item_size > 80 ? 80 : item_size), item, kGangKeysText.text);
      return false;
    }
  }
  if (!kind) out->kind = KindOfRole(out->role);
  return detail::CheckTogether(*out, error, error_size);
}

// Whether a program that exits with this code asks that the gang ends.
inline bool IsStopCode(const GangOptions& options, int code) {
  return code > 0 && code < 256 && (options.stop_codes[code / 8] >> code % 8 & 1) != 0;
}

// Whether options that have been parsed can be had on `node_count` nodes, spares included; else a sentence that says
// which cannot.
inline bool CheckNodes(const GangOptions& options, uint32_t node_count, char* error, size_t error_size) {
  if (options.spares >= node_count) {
    snprintf(error, error_size, "--gang: spares=%u of %u nodes leaves none to run on", options.spares,
             node_count);
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
