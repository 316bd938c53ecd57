// The safetensors format: 8 bytes with the length of the header (little-endian), the header (JSON), the tensors' data.
// A file comes from anywhere: everything in its header is checked before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace muster {

inline constexpr uint64_t kMaxSafeTensorsHeader = 100'000'000;  // bytes, as the safetensors library has it
inline constexpr size_t kSafeTensorsLengthBytes = 8;
inline constexpr uint64_t kBitsPerByte = 8;

struct SafeTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // of its data, from the end of the header
  uint64_t end = 0;
};

struct SafeTensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafeTensor> tensors;  // in the order of their data, which they cover without holes or overlaps
  uint64_t data_offset = 0;         // in the file
};

// Bits of one element; nothing for a type that is not known. Elements of less than a byte lie side by side, without a gap.
std::optional<uint64_t> SafeTensorsBits(std::string_view dtype);
// The types that are known, between commas.
std::string SafeTensorsTypes();

// The length of the header, by the first 8 bytes of a file of `file_bytes` bytes.
Result<uint64_t> SafeTensorsHeaderLength(std::span<const std::byte> first, uint64_t file_bytes);
// kInvalid says what is wrong, and with which tensor.
Result<SafeTensorsHeader> ReadSafeTensorsHeader(std::string_view header, uint64_t file_bytes);

// The beginning of a file, length and header; the data of the tensors follows in their order. They must be as
// ReadSafeTensorsHeader gives them. kExhausted: the header would be longer than is allowed.
Result<std::string> MakeSafeTensorsHeader(const std::map<std::string, std::string>& metadata,
                                          const std::vector<SafeTensor>& tensors);

}  // namespace muster
