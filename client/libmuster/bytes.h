// A growable array of bytes on malloc, for a library that may not use the C++ runtime.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace muster::client {

class Bytes {
 public:
  Bytes() = default;
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { free(data_); }

  // False when there is no memory; nothing has changed then.
  [[nodiscard]] bool Append(const void* data, size_t size) {
    if (!Reserve(size)) return false;
    if (size > 0) memcpy(data_ + size_, data, size);
    size_ += size;
    return true;
  }
  [[nodiscard]] bool AppendZeros(size_t size) {
    if (!Reserve(size)) return false;
    if (size > 0) memset(data_ + size_, 0, size);
    size_ += size;
    return true;
  }
  void Truncate(size_t size) { size_ = size < size_ ? size : size_; }
  void Clear() { size_ = 0; }
  [[nodiscard]] const char* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  bool Reserve(size_t more) {
    if (more <= capacity_ - size_) return true;
    if (more > SIZE_MAX / 4 || size_ > SIZE_MAX / 4) return false;
    const size_t need = (size_ + more) * 2;
    auto* grown = static_cast<char*>(realloc(data_, need));
    if (grown == nullptr) return false;
    data_ = grown;
    capacity_ = need;
    return true;
  }

  char* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace muster::client
