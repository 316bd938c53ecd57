#include "spank-plugin/supervisor/environment_block.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "spank-plugin/supervisor/passed_memory.h"
#include "spank-plugin/supervisor/supervisor_message.h"

namespace muster::supervisor {

EnvironmentEntry EntryOf(const char* text) {
  const char* equals = strchr(text, '=');
  if (equals == nullptr) return {EnvironmentEntry::Kind::kUnset, strlen(text), nullptr};
  const bool if_unset = equals > text && equals[-1] == '?';
  const char* end = if_unset ? equals - 1 : equals;
  return {if_unset ? EnvironmentEntry::Kind::kDefault : EnvironmentEntry::Kind::kSet,
          static_cast<size_t>(end - text), equals + 1};
}

EnvironmentBlock::~EnvironmentBlock() {
  free(bytes_);
}

bool EnvironmentBlock::Read(int fd, size_t size) {
  free(bytes_);
  bytes_ = ReadMemory(fd, 0, size);
  size_ = bytes_ != nullptr ? size : 0;
  return bytes_ != nullptr && IsEnvironment(bytes_, size_);
}

bool EnvironmentBlock::Copy(const EnvironmentBlock& other) {
  auto* bytes = static_cast<char*>(malloc(other.size_ + 1));
  if (bytes == nullptr) return false;
  if (other.size_ > 0) memcpy(bytes, other.bytes_, other.size_);
  free(bytes_);
  bytes_ = bytes;
  size_ = other.size_;
  return true;
}

bool EnvironmentBlock::Apply(const Host& host) const {
  for (size_t at = 0; at < size_;) {
    char* entry = bytes_ + at;
    at += strlen(entry) + 1;
    const EnvironmentEntry what = EntryOf(entry);
    char* end = entry + what.key_size;
    const char first = *end;
    *end = '\0';
    bool good = false;
    if (what.kind == EnvironmentEntry::Kind::kUnset) {
      good = host.unset_environment(host.context, entry);
    } else {
      const bool set = what.kind == EnvironmentEntry::Kind::kSet;
      good = (set ? host.set_environment : host.default_environment)(host.context, entry, what.value);
    }
    *end = first;
    if (!good) {
      errno = EINVAL;
      return false;
    }
  }
  return true;
}

const char* EnvironmentBlock::Next(const char* entry) const {
  const char* next = entry == nullptr ? bytes_ : entry + strlen(entry) + 1;
  return next != nullptr && next < bytes_ + size_ ? next : nullptr;
}

const char* EnvironmentBlock::Find(const char* key) const {
  const size_t size = strlen(key);
  for (const char* entry = Next(nullptr); entry != nullptr; entry = Next(entry)) {
    if (strncmp(entry, key, size) == 0 && entry[size] == '=') return entry + size + 1;
  }
  return nullptr;
}

bool EnvironmentBlock::Mentions(const char* key, size_t key_size) const {
  for (const char* entry = Next(nullptr); entry != nullptr; entry = Next(entry)) {
    if (EntryOf(entry).key_size == key_size && strncmp(entry, key, key_size) == 0) return true;
  }
  return false;
}

}  // namespace muster::supervisor
