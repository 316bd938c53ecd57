// Files of lines "key: value": muster.yaml and roce.yaml. Every key has a default, a unit and a range; an unknown key, a wrong type or
// a value out of range is an error that names the file, the line and what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace muster {

enum class KeyKind { kText, kCount, kDuration, kSize };  // durations are kept in ms, sizes in bytes

// A key, and the field that its value goes into; the field holds the default before.
struct Key {
  const char* name;
  KeyKind kind;
  std::string* text;  // one of these two
  int64_t* number;
  int64_t low;
  int64_t high;
  const char* about;
  const char* (*wrong)(const std::string&) =
      nullptr;  // of a text: what to give instead, null when it is good
};

// What a text may be.
const char* NotEmpty(const std::string& text);
const char* Anything(const std::string& text);
const char* IsPath(const std::string& text);
const char* IsPathOrNothing(const std::string& text);
const char* IsYesOrNo(const std::string& text);
// Whether all the parts between commas and spaces are good.
bool EachPart(const std::string& text, bool (*good)(const std::string&));

Key TextKey(const char* name, std::string* field, const char* about,
            const char* (*wrong)(const std::string&) = NotEmpty);
Key NumberKey(const char* name, KeyKind kind, int64_t* field, int64_t low, int64_t high, const char* about);

// As it is written in a file: with the largest unit that leaves no rest.
std::string ShowNumber(KeyKind kind, int64_t value);

// Puts the values that `text` gives into their fields. What it gives: each key that it names, with its line.
Result<std::map<std::string, int>> ParseKeys(const std::string& text, const std::string& name_for_errors,
                                             const std::vector<Key>& keys);
// A commented text with every key, its default, unit and range.
std::string KeysText(const std::vector<Key>& keys);
// Whether the path is the default one, and no file is there: the host does not have what the file would set up.
bool IsDefaultAndAbsent(const std::string& path, const std::string& default_path);
// A file of at most 1 MiB. A missing one is an error.
Result<std::string> ReadKeyFile(const std::string& path);

}  // namespace muster
