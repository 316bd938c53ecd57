#include "spank-plugin/supervisor/strings.h"

#include <stdlib.h>
#include <string.h>

namespace muster::supervisor {

Strings::~Strings() {
  free(bytes_);
}

bool Strings::Assign(const char* bytes, size_t size) {
  auto* copy = static_cast<char*>(malloc(size + 1));
  if (copy == nullptr) return false;
  if (size > 0) memcpy(copy, bytes, size);
  free(bytes_);
  bytes_ = copy;
  size_ = size;
  return true;
}

void Strings::Unset(const char* key, size_t key_size) {
  for (size_t at = 0; at < size_;) {
    const size_t size = strlen(bytes_ + at) + 1;
    if (strncmp(bytes_ + at, key, key_size) == 0 && bytes_[at + key_size] == '=') {
      memmove(bytes_ + at, bytes_ + at + size, size_ - at - size);
      size_ -= size;
    } else {
      at += size;
    }
  }
}

bool Strings::Set(const char* key, size_t key_size, const char* value) {
  Unset(key, key_size);
  const size_t value_size = strlen(value) + 1;
  auto* bytes = static_cast<char*>(realloc(bytes_, size_ + key_size + 1 + value_size));
  if (bytes == nullptr) return false;
  bytes_ = bytes;
  memcpy(bytes_ + size_, key, key_size);
  bytes_[size_ + key_size] = '=';
  memcpy(bytes_ + size_ + key_size + 1, value, value_size);
  size_ += key_size + 1 + value_size;
  return true;
}

const char* Strings::Find(const char* key, size_t key_size) const {
  for (size_t at = 0; at < size_; at += strlen(bytes_ + at) + 1) {
    if (strncmp(bytes_ + at, key, key_size) == 0 && bytes_[at + key_size] == '=')
      return bytes_ + at + key_size + 1;
  }
  return nullptr;
}

char** Strings::Array() const {
  size_t count = 1;
  for (size_t at = 0; at < size_; at += strlen(bytes_ + at) + 1) ++count;
  auto** array = static_cast<char**>(calloc(count, sizeof(char*)));
  if (array == nullptr) return nullptr;
  size_t i = 0;
  for (size_t at = 0; at < size_; at += strlen(bytes_ + at) + 1) array[i++] = bytes_ + at;
  return array;
}

}  // namespace muster::supervisor
