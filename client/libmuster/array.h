// A growable array of plain values on malloc, for a library that may not use the C++ runtime.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

namespace muster::client {

template <typename T>
class Array {
  static_assert(__is_trivially_copyable(T));

 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { free(data_); }

  // False when there is no memory; nothing has changed then.
  [[nodiscard]] bool Add(const T& value) {
    if (size_ == capacity_ && !Grow()) return false;
    data_[size_++] = value;
    return true;
  }
  // The last one takes its place.
  void Remove(size_t index) { data_[index] = data_[--size_]; }
  void Clear() { size_ = 0; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] T* begin() { return data_; }
  [[nodiscard]] T* end() { return data_ + size_; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

 private:
  bool Grow() {
    const size_t wanted = capacity_ == 0 ? 16 : capacity_ * 2;
    if (wanted > SIZE_MAX / 2 / sizeof(T)) return false;
    auto* grown = static_cast<T*>(realloc(data_, wanted * sizeof(T)));
    if (grown == nullptr) return false;
    data_ = grown;
    capacity_ = wanted;
    return true;
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace muster::client
