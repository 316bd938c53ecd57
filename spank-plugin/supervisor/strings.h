#pragma once

#include <stddef.h>

namespace muster::supervisor {

// Strings with their NULs, one after another.
class Strings {
 public:
  Strings() = default;
  Strings(const Strings&) = delete;
  Strings& operator=(const Strings&) = delete;
  ~Strings();
  // False: there is no memory.
  bool Assign(const char* bytes, size_t size);
  bool Set(const char* key, size_t key_size, const char* value);
  void Unset(const char* key, size_t key_size);
  [[nodiscard]] const char* Find(const char* key, size_t key_size) const;
  // With a nullptr at the end; the caller frees the array only. nullptr: there is no memory.
  [[nodiscard]] char** Array() const;
  [[nodiscard]] const char* bytes() const { return bytes_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  char* bytes_ = nullptr;
  size_t size_ = 0;
};

}  // namespace muster::supervisor
