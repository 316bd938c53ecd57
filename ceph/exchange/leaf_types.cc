#include "ceph/exchange/leaf_types.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "ceph/exchange/safetensors.h"

namespace muster {
namespace {

using nlohmann::json;

struct Names {
  const char* dtype;
  const char* torch;  // "": only newer ones have it
  const char* numpy;  // "": it has none
};
constexpr Names kNames[] = {
    {"F64", "float64", "<f8"},     {"F32", "float32", "<f4"},   {"F16", "float16", "<f2"},
    {"BF16", "bfloat16", ""},      {"I64", "int64", "<i8"},     {"I32", "int32", "<i4"},
    {"I16", "int16", "<i2"},       {"I8", "int8", "|i1"},       {"U64", "uint64", "<u8"},
    {"U32", "uint32", "<u4"},      {"U16", "uint16", "<u2"},    {"U8", "uint8", "|u1"},
    {"BOOL", "bool", "|b1"},       {"C64", "complex64", "<c8"}, {"F8_E4M3", "float8_e4m3fn", ""},
    {"F8_E5M2", "float8_e5m2", ""}};

// torch has these since 2.3, numpy always.
bool OnlyInNewTorch(std::string_view dtype) {
  return dtype == "U64" || dtype == "U32" || dtype == "U16";
}

// The type when it has a name and the shape makes so many bytes.
std::optional<TensorType> Named(std::string_view kind, std::string_view name, std::vector<uint64_t> shape,
                                uint64_t bytes) {
  TensorType type{"", std::move(shape)};
  for (const Names& names : kNames) {
    const std::string_view known = kind == "array" || kind == "scalar" ? names.numpy : names.torch;
    if (!known.empty() && known == name) type.dtype = names.dtype;
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
  return Named("tensor", dtype, std::move(lengths), bytes);
}

std::optional<TensorType> Declared(std::string_view kind, std::string_view meta, uint64_t bytes) {
  if (kind == "bytes") return std::nullopt;
  if (kind == "slice") return OfSlice(meta, bytes);
  const json parsed = json::parse(meta, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("dtype") || !parsed.contains("shape")) return std::nullopt;
  const json& dtype = parsed["dtype"];
  if (!dtype.is_string() || !parsed["shape"].is_array()) return std::nullopt;
  std::vector<uint64_t> shape;
  for (const json& length : parsed["shape"]) {
    if (!length.is_number_unsigned()) return std::nullopt;
    shape.push_back(length.get<uint64_t>());
  }
  return Named(kind, dtype.get<std::string>(), std::move(shape), bytes);
}

}  // namespace

TensorType TypeOfLeaf(std::string_view kind, std::string_view meta, uint64_t bytes) {
  return Declared(kind, meta, bytes).value_or(TensorType{"U8", {bytes}});
}

std::optional<LeafType> LeafOfType(const TensorType& type) {
  for (const Names& names : kNames) {
    if (type.dtype != names.dtype) continue;
    const bool array = OnlyInNewTorch(type.dtype);
    const json meta = {{"dtype", array ? names.numpy : names.torch}, {"shape", type.shape}};
    return LeafType{array ? "array" : "tensor", meta.dump()};
  }
  return std::nullopt;
}

}  // namespace muster
