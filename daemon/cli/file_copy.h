// Moving bytes between files, and errors that name the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster::cli {

// Where bytes are in an open file.
struct FilePlace {
  const UniqueFd& file;
  uint64_t offset = 0;
  std::string name;  // for messages
};

Error FileError(const std::string& what, const std::string& name, int error);
Result<std::string> ReadBytes(const FilePlace& from, uint64_t bytes);
Status WriteBytes(const FilePlace& to, const std::string& bytes);
// Calls `copied` with the bytes of each part.
Status CopyBytes(const FilePlace& from, const FilePlace& to, uint64_t bytes,
                 const std::function<void(uint64_t)>& copied);

}  // namespace muster::cli
