#include "ceph/store/names.h"

#include <string>

namespace muster {
namespace {

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

// `partial`: the last component may be cut off, also to nothing.
bool IsName(std::string_view name, bool slashes, bool partial) {
  if (name.size() > kMaxObjectName) return false;
  size_t component = 0;
  for (const char c : name) {
    if (c == '/') {
      if (!slashes || component == 0) return false;
      component = 0;
    } else {
      if (!IsNameCharacter(c) || (component == 0 && c == '.') || ++component > kMaxNameComponent)
        return false;
    }
  }
  return partial || component > 0;
}

Error BadName(const char* what, std::string_view name) {
  std::string shown;
  for (const char c : name.substr(0, 80)) shown += c >= 0x20 && c < 0x7f ? c : '?';
  return {Errc::kInvalid,
          std::string(what) + " '" + shown +
              "' is not allowed: letters, digits, '.', '_' and '-' in parts divided by '/', no part "
              "empty or beginning with '.'"};
}

}  // namespace

Status CheckSpace(std::string_view space) {
  if (!IsName(space, false, false)) return BadName("space", space);
  return {};
}

Status CheckObjectName(const ObjectName& object) {
  if (Status status = CheckSpace(object.space); !status) return status;
  if (!IsName(object.name, true, false)) return BadName("object name", object.name);
  return {};
}

Status CheckPrefix(std::string_view prefix) {
  if (!IsName(prefix, true, true)) return BadName("prefix", prefix);
  return {};
}

}  // namespace muster
