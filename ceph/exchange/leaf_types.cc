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
constexpr Names kNames[] = {{"F64", "float64"},
                            {"F32", "float32"},
                            {"F16", "float16"},
                            {"BF16", "bfloat16"},
                            {"I64", "int64"},
                            {"I32", "int32"},
                            {"I16", "int16"},
                            {"I8", "int8"},
                            {"U64", "uint64"},
                            {"U32", "uint32"},
                            {"U16", "uint16"},
                            {"U8", "uint8"},
                            {"BOOL", "bool"},
                            {"C64", "complex64"},
                            {"F8_E4M3", "float8_e4m3fn"},
                            {"F8_E5M2", "float8_e5m2"},
                            {"F8_E8M0", "float8_e8m0fnu"},
                            {"F8_E4M3FNUZ", "float8_e4m3fnuz"},
                            {"F8_E5M2FNUZ", "float8_e5m2fnuz"},
                            {"F4", "float4_e2m1fn_x2"}};
constexpr size_t kMostDims = 8;  // of a slice

// torch has these since 2.3, numpy always.
bool OnlyInNewTorch(std::string_view dtype) {
  return dtype == "U64" || dtype == "U32" || dtype == "U16";
}

// How many elements as safetensors counts them are one of a slice: of F4 torch has two in a byte, which is its element.
uint64_t Packed(std::string_view dtype) {
  return dtype == "F4" ? 2 : 1;
}

// The type when it has a name and the shape makes so many bytes.
std::optional<TensorType> Named(std::string_view name, std::vector<uint64_t> shape, uint64_t bytes) {
  TensorType type{"", std::move(shape)};
  for (const Names& names : kNames) {
    if (names.slice == name) type.dtype = names.dtype;
  }
  const auto element = SafeTensorsBits(type.dtype);
  if (!element) return std::nullopt;
  if (const uint64_t packed = Packed(type.dtype); packed != 1) {
    if (type.shape.empty() || __builtin_mul_overflow(type.shape.back(), packed, &type.shape.back()))
      return std::nullopt;
  }
  uint64_t bits = *element;
  for (const uint64_t length : type.shape) {
    if (__builtin_mul_overflow(bits, length, &bits)) return std::nullopt;
  }
  if (bits % kBitsPerByte != 0 || bits / kBitsPerByte != bytes) return std::nullopt;
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
  const auto element = SafeTensorsBits(type.dtype);
  if (!element || type.shape.size() > kMostDims) return std::nullopt;
  std::vector<uint64_t> shape = type.shape;
  const uint64_t packed = Packed(type.dtype);
  if (packed != 1) {
    if (shape.empty() || shape.back() % packed != 0) return std::nullopt;
    shape.back() /= packed;
  }
  for (const Names& names : kNames) {
    if (type.dtype != names.dtype) continue;
    return LeafType{OnlyInNewTorch(type.dtype) ? "array" : "tensor",
                    MetaOfWhole(names.slice, *element * packed / kBitsPerByte, shape)};
  }
  return std::nullopt;
}

std::string MetaOfWhole(std::string_view dtype, uint64_t element_bytes, const std::vector<uint64_t>& shape) {
  const std::string whole = List(shape);
  return "muster-slice/1 " + std::string(dtype) + " " + std::to_string(element_bytes) + " 0 " + whole + " " +
         List(std::vector<uint64_t>(shape.size())) + " " + whole + "\n";
}

}  // namespace muster
