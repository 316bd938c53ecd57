// Files of a few kilobytes that are replaced whole.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace muster {

// Writes `text` to `path`.new and renames it, so that nobody ever reads a half, and what was there stays when it fails. The mode
// is set whatever the umask. There is one writer of a path at a time. Errors, with the path and the
// reason: kNotFound, its directory is not there; kUnavailable. A crash of the host may lose it: nothing is synced.
Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode);

}  // namespace muster
