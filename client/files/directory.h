// The directory that is MUSTER_CHECKPOINT_DIR of one member: below $TMPDIR, as a rule /tmp, where others write too.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster::files {

// While `fd` is open the directory is locked: nobody takes it for one that was left behind.
struct OwnDirectory {
  UniqueFd fd;
  std::string path;
};

// Opens BASE/NAME, made if it is not there; it is this user's, 0700, and no symbolic link. kDenied: it is somebody
// else's.
Result<OwnDirectory> OpenOwn(const std::string& base, const std::string& name);

// Removes the directories in `base` whose names begin with `prefix`, which are this user's and which nobody has locked:
// what tasks left behind that were killed, or whose node has lost its power. What cannot be removed stays.
void RemoveLeftBehind(const std::string& base, const std::string& prefix, const std::string& but);

// Removes BASE/NAME, if it is this user's.
Status RemoveOwn(const std::string& base, const std::string& name);

}  // namespace muster::files
