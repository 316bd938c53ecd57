// The metadata that the entries of a shard have which was a directory (docs/formats.md, section 6). Pure.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace muster::files {

enum class Kind { kStep, kDirectory, kFile };

struct EntryMeta {
  Kind kind = Kind::kFile;
  mode_t mode = 0644;  // permission bits, at most 0777
  std::string name;    // of kStep: the directory's
};

inline constexpr char kStepEntry[] = ".";  // the name of the entry of kind kStep, which is the first

std::string Encode(const EntryMeta& meta);
// kInvalid: it is not such metadata, or of a version that this program does not know.
Result<EntryMeta> DecodeMeta(std::string_view text);

// What a shard may name as an entry's place below its directory: relative, no empty part, no "." and "..", nothing that
// libmuster does not take as a name, not deeper than kMaxDepth.
inline constexpr size_t kMaxDepth = 32;
Status CheckPath(std::string_view path);

}  // namespace muster::files
