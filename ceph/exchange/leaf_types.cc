#include "ceph/exchange/leaf_types.h"

#include <charconv>
#include <sstream>
#include <utility>

#include "ceph/exchange/safetensors.h"

namespace muster {
namespace {

struct Names {
  const char* dtype;
  const char* slice;
};
constexpr Names kNames[] = {{"F64", "float64"},        {"F32", "float32"},   {"F16", "float16"},
                            {"BF16", "bfloat16"},      {"I64", "int64"},     {"I32", "int32"},
                            {"I16", "int16"},          {"I8", "int8"},       {"U64", "uint64"},
                            {"U32", "uint32"},         {"U16", "uint16"},    {"U8", "uint8"},
                            {"BOOL", "bool"},          {"C64", "complex64"}, {"F8_E4M3", "float8_e4m3fn"},
                            {"F8_E5M2", "float8_e5m2"}};
constexpr size_t kMostDims = 8;  // of a slice

// torch has these since 2.3, numpy always.
bool OnlyInNewTorch(std::string_view dtype) {
  return dtype == "U64" || dtype == "U32" || dtype == "U16";
}

// The type when it has a name and the shape makes so many bytes.
std::optional<TensorType> Named(std::string_view name, std::vector<uint64_t> shape, uint64_t bytes) {
  TensorType type{"", std::move(shape)};
  for (const Names& names : kNames) {
    if (names.slice == name) type.dtype = names.dtype;
  }
  const auto element = SafeTensorsElement(type.dtype);
  if (!element) return std::nullopt;
  uint64_t size = *element;
  for (const uint64_t length : type.shape) {
    if (__builtin_mul_overflow(size, length, &size)) return std::nullopt;
  }
  if (size != bytes) return std::nullopt;
  return type;
}

// A slice's first line: "muster-slice/1 float32 4 0 6,10 2,0 2,10".
std::optional<TensorType> OfSlice(std::string_view meta, uint64_t bytes) {
  std::istringstream line{std::string(meta.substr(0, meta.find('\n')))};
  std::string format;
  std::string dtype;
  std::string shape;
  std::string skipped;
  if (!(line >> format >> dtype >> skipped >> skipped >> skipped >> skipped >> shape) ||
      format != "muster-slice/1")
    return std::nullopt;
  std::vector<uint64_t> lengths;
  std::istringstream list(shape == "-" ? "" : shape);
  for (std::string number; std::getline(list, number, ',');) {
    uint64_t length = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), length);
    if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
    lengths.push_back(length);
  }
  return Named(dtype, std::move(lengths), bytes);
}

std::string List(const std::vector<uint64_t>& numbers) {
  std::string text;
  for (const uint64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text.empty() ? "-" : text;
}

}  // namespace

TensorType TypeOfEntry(std::string_view meta, uint64_t bytes) {
  return OfSlice(meta, bytes).value_or(TensorType{"U8", {bytes}});
}

std::optional<LeafType> LeafOfType(const TensorType& type) {
  const auto element = SafeTensorsElement(type.dtype);
  if (!element || type.shape.size() > kMostDims) return std::nullopt;
  for (const Names& names : kNames) {
    if (type.dtype != names.dtype) continue;
    return LeafType{OnlyInNewTorch(type.dtype) ? "array" : "tensor",
                    MetaOfWhole(names.slice, *element, type.shape)};
  }
  return std::nullopt;
}

std::string MetaOfWhole(std::string_view dtype, uint64_t element_bytes, const std::vector<uint64_t>& shape) {
  const std::string whole = List(shape);
  return "muster-slice/1 " + std::string(dtype) + " " + std::to_string(element_bytes) + " 0 " + whole + " " +
         List(std::vector<uint64_t>(shape.size())) + " " + whole + "\n";
}

}  // namespace muster
