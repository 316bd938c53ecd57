#include "ceph/exchange/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace muster {
namespace {

using nlohmann::json;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kMaxShown = 120;  // bytes of a name in a sentence

struct Type {
  const char* name;
  uint64_t bits;
};
constexpr Type kTypes[] = {
    {"F64", 64},        {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},    {"I32", 32},
    {"I16", 16},        {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16},    {"U8", 8},
    {"BOOL", 8},        {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};

Error NotSafeTensors(const std::string& what) {
  return {Errc::kInvalid, "it is not a good safetensors file: " + what};
}

// A name of anybody's choice, in a sentence for a terminal.
std::string Shown(const std::string& name) {
  return json(name.substr(0, kMaxShown)).dump(-1, ' ', true, json::error_handler_t::replace);
}

// What the JSON library passes over in silence: keys that come twice, at the top, in a tensor or in the metadata.
// Nothing in a header is nested deeper than a tensor's lists.
class Strict {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > 3) return Fail("it is nested too deeply");
    if (event == json::parse_event_t::object_start) keys_[static_cast<size_t>(depth)].clear();
    if (event == json::parse_event_t::key &&
        !keys_[static_cast<size_t>(depth) - 1].insert(parsed.get<std::string>()).second) {
      return Fail(Shown(parsed.get<std::string>()) + " is there twice");
    }
    return wrong.empty();
  }
  std::string wrong;

 private:
  bool Fail(const std::string& what) {
    if (wrong.empty()) wrong = what;
    return false;
  }
  std::set<std::string> keys_[4];
};

Status ReadMetadata(const json& from, std::map<std::string, std::string>* metadata) {
  if (!from.is_object()) return NotSafeTensors("__metadata__ is no object");
  for (const auto& [key, value] : from.items()) {
    if (!value.is_string()) return NotSafeTensors("__metadata__ has a value that is no text");
    metadata->emplace(key, value.get<std::string>());
  }
  return {};
}

Result<SafeTensor> ReadTensor(const std::string& name, const json& from, uint64_t data_bytes) {
  const auto wrong = [&](const std::string& what) {
    return NotSafeTensors("tensor " + Shown(name) + " " + what);
  };
  const auto member = [&](const char* key) {
    const auto found = from.find(key);
    return found == from.end() ? json() : *found;
  };
  if (!from.is_object()) return wrong("is no object");
  SafeTensor tensor;
  tensor.name = name;
  const json dtype = member("dtype");
  const json shape = member("shape");
  const json offsets = member("data_offsets");
  if (!dtype.is_string()) return wrong("has no dtype");
  tensor.dtype = dtype.get<std::string>();
  const auto element = SafeTensorsBits(tensor.dtype);
  if (!element) return wrong("has the dtype " + Shown(tensor.dtype) + "; known are " + SafeTensorsTypes());
  if (!shape.is_array()) return wrong("has no shape");
  uint64_t bits = *element;
  for (const json& size : shape) {
    if (!size.is_number_unsigned()) return wrong("has a shape that is no list of sizes");
    tensor.shape.push_back(size.get<uint64_t>());
    if (__builtin_mul_overflow(bits, tensor.shape.back(), &bits))
      return wrong("has a shape that is too large");
  }
  if (bits % kBitsPerByte != 0) return wrong("ends within a byte, by its shape and dtype");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return wrong("has no data_offsets");
  }
  tensor.begin = offsets[0].get<uint64_t>();
  tensor.end = offsets[1].get<uint64_t>();
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return wrong("lies outside of the data (" + std::to_string(tensor.begin) + " to " +
                 std::to_string(tensor.end) + " of " + std::to_string(data_bytes) + " bytes)");
  }
  if (tensor.end - tensor.begin != bits / kBitsPerByte) {
    return wrong("has " + std::to_string(tensor.end - tensor.begin) + " bytes, its shape and dtype need " +
                 std::to_string(bits / kBitsPerByte));
  }
  return tensor;
}

}  // namespace

std::optional<uint64_t> SafeTensorsBits(std::string_view dtype) {
  for (const Type& type : kTypes) {
    if (dtype == type.name) return type.bits;
  }
  return std::nullopt;
}

std::string SafeTensorsTypes() {
  std::string names;
  for (const Type& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

Result<uint64_t> SafeTensorsHeaderLength(std::span<const std::byte> first, uint64_t file_bytes) {
  uint64_t length = 0;
  if (first.size() < sizeof length || file_bytes < sizeof length)
    return NotSafeTensors("it is shorter than 8 bytes");
  std::memcpy(&length, first.data(), sizeof length);
  if (length > kMaxSafeTensorsHeader) {
    return NotSafeTensors("its first 8 bytes, the length of its header, say " + std::to_string(length) +
                          "; at most " + std::to_string(kMaxSafeTensorsHeader) + " are allowed");
  }
  if (length > file_bytes - sizeof length)
    return NotSafeTensors("its header of " + std::to_string(length) + " bytes is cut off");
  return length;
}

Result<SafeTensorsHeader> ReadSafeTensorsHeader(std::string_view text, uint64_t file_bytes) {
  SafeTensorsHeader header;
  header.data_offset = kSafeTensorsLengthBytes + text.size();
  if (header.data_offset > file_bytes) return NotSafeTensors("its header is cut off");
  const uint64_t data_bytes = file_bytes - header.data_offset;
  if (text.empty() || text.front() != '{') return NotSafeTensors("its header does not begin with {");
  Strict strict;
  const json parsed = json::parse(
      text, [&](int depth, json::parse_event_t event, json& value) { return strict(depth, event, value); },
      false);
  if (!strict.wrong.empty()) return NotSafeTensors(strict.wrong);
  if (!parsed.is_object()) return NotSafeTensors("its header is not JSON");
  for (const auto& [name, value] : parsed.items()) {
    if (name == kMetadata) {
      if (Status status = ReadMetadata(value, &header.metadata); !status) return status.error();
      continue;
    }
    Result<SafeTensor> tensor = ReadTensor(name, value, data_bytes);
    if (!tensor) return tensor.error();
    header.tensors.push_back(*std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = 0;
  for (const SafeTensor& tensor : header.tensors) {
    if (tensor.begin < at) return NotSafeTensors("tensor " + Shown(tensor.name) + " overlaps another one");
    if (tensor.begin > at)
      return NotSafeTensors("the " + std::to_string(tensor.begin - at) + " bytes before tensor " +
                            Shown(tensor.name) + " belong to none");
    at = tensor.end;
  }
  if (at != data_bytes)
    return NotSafeTensors("its last " + std::to_string(data_bytes - at) + " bytes belong to no tensor");
  return header;
}

Result<std::string> MakeSafeTensorsHeader(const std::map<std::string, std::string>& metadata,
                                          const std::vector<SafeTensor>& tensors) {
  json document = json::object();
  document[kMetadata] = metadata;
  for (const SafeTensor& tensor : tensors) {
    document[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = document.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins at a multiple of 8
  if (text.size() > kMaxSafeTensorsHeader) {
    return Error{Errc::kExhausted, "the header of the safetensors file would have " +
                                       std::to_string(text.size()) + " bytes; at most " +
                                       std::to_string(kMaxSafeTensorsHeader) + " are allowed"};
  }
  const uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace muster
