// How a leaf of a muster-tree and a tensor of a safetensors file say their types.
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

// The type of a leaf of `kind` (tensor, array, scalar, bytes, or slice: an entry of no tree) with this metadata and so many
// bytes. What safetensors has no type for (dates, texts, long doubles), and what says none, is a list of bytes.
TensorType TypeOfLeaf(std::string_view kind, std::string_view meta, uint64_t bytes);

struct LeafType {
  std::string kind;  // tensor, or array where not every torch has the type
  std::string meta;
};
// The leaf that a tensor becomes in a state that torch or numpy reads. Nothing: neither has the type.
std::optional<LeafType> LeafOfType(const TensorType& type);

}  // namespace muster
