// Taking typed members out of untrusted JSON without exceptions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace muster::json_fields {

inline const nlohmann::json* Find(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// Each gives false when the member is missing or of another type or out of range.
inline bool Take(const nlohmann::json& object, const char* key, std::string* out) {
  const nlohmann::json* member = Find(object, key);
  if (member == nullptr || !member->is_string()) return false;
  *out = member->get<std::string>();
  return true;
}

inline bool Take(const nlohmann::json& object, const char* key, uint64_t* out) {
  const nlohmann::json* member = Find(object, key);
  if (member == nullptr || !member->is_number_unsigned()) return false;
  *out = member->get<uint64_t>();
  return true;
}

inline bool Take(const nlohmann::json& object, const char* key, uint32_t* out) {
  uint64_t wide = 0;
  if (!Take(object, key, &wide) || wide > UINT32_MAX) return false;
  *out = static_cast<uint32_t>(wide);
  return true;
}

inline bool Take(const nlohmann::json& object, const char* key, int64_t* out) {
  uint64_t wide = 0;
  if (!Take(object, key, &wide) || wide > static_cast<uint64_t>(INT64_MAX)) return false;
  *out = static_cast<int64_t>(wide);
  return true;
}

}  // namespace muster::json_fields
