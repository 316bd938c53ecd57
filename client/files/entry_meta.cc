#include "client/files/entry_meta.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "client/files/step_name.h"
#include "client/muster.h"

namespace muster::files {
namespace {

constexpr char kFormat[] = "muster-files";
constexpr int kVersion = 1;

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kStep:
      return "step";
    case Kind::kDirectory:
      return "directory";
    case Kind::kFile:
      return "file";
  }
  return "file";
}

std::optional<mode_t> ModeOf(const std::string& text) {
  if (text.empty() || text.size() > 3 || text.find_first_not_of("01234567") != text.npos) return std::nullopt;
  return static_cast<mode_t>(std::stoul(text, nullptr, 8));
}

Error Malformed(const char* what) {
  return {Errc::kInvalid, fmt::format("its metadata is malformed: {}", what)};
}

std::string Text(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

std::string Encode(const EntryMeta& meta) {
  // A step's name needs no quoting: StepOf has taken it.
  const std::string name = meta.kind == Kind::kStep ? fmt::format(R"(, "name": "{}")", meta.name) : "";
  return fmt::format(R"({{"format": "{}", "version": {}, "kind": "{}", "mode": "{:03o}"{}}})", kFormat,
                     kVersion, NameOf(meta.kind), meta.mode & 0777, name);
}

Result<EntryMeta> DecodeMeta(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || Text(json, "format") != kFormat)
    return Error{Errc::kInvalid, "it was not saved from files (--gang=files=yes)"};
  const auto version = json.find("version");
  if (version == json.end() || !version->is_number_integer()) return Malformed("no version");
  if (*version != kVersion)
    return Error{Errc::kInvalid, "it is of a version of the format that this muster-files does not know"};
  EntryMeta meta;
  const std::string kind = Text(json, "kind");
  if (kind == NameOf(Kind::kStep)) {
    meta.kind = Kind::kStep;
    meta.name = Text(json, "name");
    if (!StepOf(meta.name)) return Malformed("no step's name");
  } else if (kind == NameOf(Kind::kDirectory)) {
    meta.kind = Kind::kDirectory;
  } else if (kind != NameOf(Kind::kFile)) {
    return Malformed("an unknown kind");
  }
  const auto mode = ModeOf(Text(json, "mode"));
  if (!mode) return Malformed("no mode");
  meta.mode = *mode;
  return meta;
}

Status CheckPath(std::string_view path) {
  const auto bad = [&](const char* why) {
    return Error{Errc::kInvalid, fmt::format("'{}' cannot be in a checkpoint: {}", path.substr(0, 300), why)};
  };
  if (path.size() > MUSTER_NAME_MAX) return bad("its path in the step's directory has more than 255 bytes");
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      return Error{Errc::kInvalid, "a name with a control character in it cannot be in a checkpoint"};
    }
  }
  size_t depth = 0;
  for (size_t at = 0; at <= path.size(); ++depth) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    if (part.empty() || part == "." || part == "..") return bad("it is not the path of something below it");
    at = slash + 1;
  }
  if (depth > kMaxDepth) return bad("it is more than 32 directories deep");
  return {};
}

}  // namespace muster::files
