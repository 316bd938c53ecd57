// Bytes of the kinds that checkpoints are made of; equal arguments give equal bytes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>

namespace muster {

template <typename Number>
void AppendNumber(Number number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Normally distributed, as weights and gradients are: 4 bytes each.
inline std::string Float32Bytes(size_t size, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::string bytes;
  while (bytes.size() < size) AppendNumber(normal(random), &bytes);
  return bytes.substr(0, size);
}

// The same in 2 bytes each.
inline std::string Bfloat16Bytes(size_t size, uint32_t seed = 1) {
  const std::string wide = Float32Bytes(2 * size + 4, seed);
  std::string bytes;
  for (size_t at = 0; bytes.size() < size; at += 4) bytes.append(wide, at + 2, 2);
  return bytes.substr(0, size);
}

// An optimizer's state for each parameter, float32: parameters, first moments, second moments, one after another.
inline std::string AdamBytes(size_t size, uint32_t seed = 1) {
  std::string bytes = Float32Bytes(size / 3 / 4 * 4, seed) + Float32Bytes(size / 3 / 4 * 4, seed + 1);
  std::mt19937 random(seed + 2);
  std::normal_distribution<float> normal(0, 0.02F);
  while (bytes.size() < size) {
    const float gradient = normal(random);
    AppendNumber(gradient * gradient * 1e-3F, &bytes);
  }
  return bytes.substr(0, size);
}

inline std::string TextBytes(size_t size) {
  std::string bytes;
  for (int line = 0; bytes.size() < size; ++line)
    bytes += "step " + std::to_string(line) + ": loss " + std::to_string(std::exp(-line / 1000.0)) + "\n";
  return bytes.substr(0, size);
}

inline std::string NoiseBytes(size_t size, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::string bytes;
  while (bytes.size() < size) AppendNumber(random(), &bytes);
  return bytes.substr(0, size);
}

inline std::span<std::byte> BytesIn(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}
inline std::span<const std::byte> BytesIn(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace muster
