#include "client/files/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "client/files/directory_tree.h"

namespace muster::files {
namespace {

constexpr size_t kMaxLeftBehind = 1000;  // that are looked at

// `base` may be, or be below, a symbolic link: the user has said so.
UniqueFd OpenBase(const std::string& base) {
  return UniqueFd(open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool IsMine(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

// Whether `name` in `base` is still what is open here.
bool IsThere(int base, const std::string& name, int fd) {
  struct stat open_one {};
  struct stat named {};
  return fstat(fd, &open_one) == 0 && fstatat(base, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

}  // namespace

Result<OwnDirectory> OpenOwn(const std::string& base, const std::string& name) {
  constexpr int kTries = 10;
  OwnDirectory own;
  own.path = base + "/" + name;
  const UniqueFd parent = OpenBase(base);
  if (!parent.valid()) {
    Error error = SystemError("use", base);
    error.message += " (checkpoint directories are made below MUSTER_FILES_DIR, or TMPDIR, or /tmp)";
    return error;
  }
  for (int i = 0; i < kTries; ++i) {
    if (mkdirat(parent.get(), name.c_str(), 0700) != 0 && errno != EEXIST)
      return SystemError("make", own.path);
    own.fd.reset(openat(parent.get(), name.c_str(), kOpenDirectory));
    if (!own.fd.valid() && errno == ENOENT) continue;
    if (!own.fd.valid()) return SystemError("open", own.path);
    if (!IsMine(own.fd.get())) return Error{Errc::kDenied, own.path + " belongs to another user"};
    if (fchmod(own.fd.get(), 0700) != 0) return SystemError("change the mode of", own.path);
    // Another watcher of this user may have taken it for one that was left behind.
    if (flock(own.fd.get(), LOCK_SH) != 0) return SystemError("lock", own.path);
    if (IsThere(parent.get(), name, own.fd.get())) return own;
  }
  return Error{Errc::kConflict, own.path + " is removed again and again"};
}

void RemoveLeftBehind(const std::string& base, const std::string& prefix, const std::string& but) {
  const UniqueFd parent = OpenBase(base);
  if (!parent.valid()) return;
  const std::unique_ptr<DIR, CloseDirectory> list(fdopendir(openat(parent.get(), ".", kOpenDirectory)));
  if (!list) return;
  std::vector<std::string> found;
  while (const dirent* entry = readdir(list.get())) {
    const std::string name = entry->d_name;
    if (name.starts_with(prefix) && name != but && found.size() < kMaxLeftBehind) found.push_back(name);
  }
  for (const std::string& name : found) {
    const UniqueFd left(openat(parent.get(), name.c_str(), kOpenDirectory));
    if (!left.valid() || !IsMine(left.get()) || flock(left.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (IsThere(parent.get(), name, left.get())) (void)RemoveTree(parent.get(), name);
  }
}

Status RemoveOwn(const std::string& base, const std::string& name) {
  const UniqueFd parent = OpenBase(base);
  if (!parent.valid()) return SystemError("open", base);
  const UniqueFd own(openat(parent.get(), name.c_str(), kOpenDirectory));
  if (!own.valid()) return errno == ENOENT ? Status() : Status(SystemError("open", base + "/" + name));
  if (!IsMine(own.get())) return Error{Errc::kDenied, base + "/" + name + " belongs to another user"};
  return RemoveTree(parent.get(), name);
}

}  // namespace muster::files
