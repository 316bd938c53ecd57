// How a slice (docs/formats.md, Shard) and a tensor of a safetensors file say their types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct TensorType {
  std::string dtype;  // safetensors' name
  std::vector<uint64_t> shape;
  bool operator==(const TensorType&) const = default;
};

// The type of an entry with this metadata and so many bytes, by what it says as a slice. What safetensors has no type for
// (dates, texts, long doubles, numbers of 4 bits that have a byte each), and what is no slice, is a list of bytes.
TensorType TypeOfEntry(std::string_view meta, uint64_t bytes);

struct LeafType {
  std::string kind;  // tensor, or array where not every torch has the type
  std::string meta;  // of a slice that is the whole
};
// The leaf that a tensor becomes in a state that torch or numpy reads. Nothing: neither torch nor numpy has the type, neither has the
// type with this shape, or the tensor has more dimensions than a slice may have.
std::optional<LeafType> LeafOfType(const TensorType& type);
// The metadata of a slice that is the whole.
std::string MetaOfWhole(std::string_view dtype, uint64_t element_bytes, const std::vector<uint64_t>& shape);

}  // namespace muster
