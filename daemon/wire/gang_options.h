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

struct GangOptions {
  uint32_t restarts = 3;       // user faults before the gang is given up, 0..1000
  uint32_t join_seconds = 60;  // how long all members may take to appear, 1..86400
  char role[kMaxName + 1] = "worker";
  char name[kMaxName + 1] = "";  // key of the checkpoints; "": the job's own
};

inline constexpr char kGangKeys[] = "restarts=N (0..1000), join=DURATION (1s..24h), role=NAME, name=KEY";

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
    const auto is = [&](const char* key) {
      return key_size == strlen(key) && memcmp(item, key, key_size) == 0;
    };
    bool good = false;
    unsigned bit = 0;
    if (is("restarts")) {
      bit = 1;
      good = detail::ParseNumber(value, value_size, 0, 1000, &out->restarts);
    } else if (is("join")) {
      bit = 2;
      good = detail::ParseSeconds(value, value_size, 1, 86400, &out->join_seconds);
    } else if (is("role") || is("name")) {
      bit = is("role") ? 4 : 8;
      good = detail::IsName(value, value_size);
      if (good) {
        char* to = bit == 4 ? out->role : out->name;
        memcpy(to, value, value_size);
        to[value_size] = '\0';
      }
    } else {
      snprintf(error, error_size, "--gang: unknown key '%.*s'; the keys are %s",
               static_cast<int>(key_size > 40 ? 40 : key_size), item, kGangKeys);
      return false;
    }
    if ((seen & bit) != 0) {
      snprintf(error, error_size, "--gang: '%.*s' is given twice", static_cast<int>(key_size), item);
      return false;
    }
    seen |= bit;
    if (!good) {
      snprintf(error, error_size, "--gang: '%.*s' is not a good value; the keys are %s",
               static_cast<int>(item_size > 80 ? 80 : item_size), item, kGangKeys);
      return false;
    }
  }
  return true;
}

}  // namespace muster::wire
