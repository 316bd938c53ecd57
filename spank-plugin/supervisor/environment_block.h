// The environment of a program as a Start carries it (wire::Start).
#pragma once

#include <stddef.h>

#include "spank-plugin/supervisor/host.h"

namespace muster::supervisor {

// One of its strings: "KEY=VALUE" sets, "KEY?=VALUE" sets what is not set yet, "KEY" unsets.
struct EnvironmentEntry {
  enum class Kind { kSet, kDefault, kUnset } kind;
  size_t key_size;
  const char* value;  // nullptr: it unsets
};
EnvironmentEntry EntryOf(const char* text);

// The bytes of a Start's environment. Empty and not ok: they could not be read.
class EnvironmentBlock {
 public:
  EnvironmentBlock() = default;
  EnvironmentBlock(const EnvironmentBlock&) = delete;
  EnvironmentBlock& operator=(const EnvironmentBlock&) = delete;
  ~EnvironmentBlock();
  // Copies `size` bytes from the memfd and checks them.
  bool Read(int fd, size_t size);
  // False: there is no memory.
  bool Copy(const EnvironmentBlock& other);
  // Applies them; false when the host refuses one.
  [[nodiscard]] bool Apply(const Host& host) const;
  // The value of what it sets; nullptr when it does not.
  [[nodiscard]] const char* Find(const char* key) const;
  // The string after `entry` (nullptr: the first one); nullptr at the end.
  [[nodiscard]] const char* Next(const char* entry) const;
  // Whether one of its strings is about this key.
  [[nodiscard]] bool Mentions(const char* key, size_t key_size) const;

 private:
  char* bytes_ = nullptr;
  size_t size_ = 0;
};

}  // namespace muster::supervisor
