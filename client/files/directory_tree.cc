#include "client/files/directory_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/unique_fd.h"
#include "client/files/entry_meta.h"

namespace muster::files {
namespace {

using Listing = std::unique_ptr<DIR, CloseDirectory>;

// The names in a directory, sorted; `directory` stays the caller's. Of more than `limit` one too many is given.
Result<std::vector<std::string>> NamesIn(int directory, const std::string& path, size_t limit) {
  const Listing list(fdopendir(openat(directory, ".", kOpenDirectory)));
  if (!list) return SystemError("read", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(list.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    names.emplace_back(name);
    if (names.size() > limit) break;
    errno = 0;
  }
  if (errno != 0) return SystemError("read", path);
  std::sort(names.begin(), names.end());
  return names;
}

Error Changed(const std::string& path) {
  return {Errc::kConflict, fmt::format("{} was changed while it was read", path)};
}

const char* WhatItIs(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// The mark is left out, so nothing may be in it.
Status CheckMark(int directory) {
  struct stat info {};
  if (fstatat(directory, kCommitMark, &info, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? Status() : Status(SystemError("look at", kCommitMark));
  if (S_ISREG(info.st_mode) && info.st_size == 0) return {};
  return Error{Errc::kInvalid,
               fmt::format("{} is not the empty file that closes a step, and would be lost: give it another "
                           "name, or close the step by renaming its directory",
                           kCommitMark)};
}

Status ListInto(int directory, const std::string& prefix, Tree* tree) {
  const auto names = NamesIn(directory, prefix.empty() ? "." : prefix, kMaxEntries);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    if (tree->marked && prefix.empty() && name == kCommitMark) {
      if (Status status = CheckMark(directory); !status) return status;
      continue;
    }
    TreeEntry entry;
    entry.path = prefix + name;
    if (Status status = CheckPath(entry.path); !status) return status;
    if (tree->entries.size() == kMaxEntries) {
      return Error{Errc::kInvalid,
                   fmt::format("there are more than {} files and directories in it", kMaxEntries)};
    }
    struct stat info {};
    if (fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? Changed(entry.path) : SystemError("look at", entry.path);
    entry.directory = S_ISDIR(info.st_mode);
    entry.mode = info.st_mode & 0777;
    entry.identity = Identity::Of(info);
    if (!entry.directory && !S_ISREG(info.st_mode)) {
      return Error{Errc::kInvalid, fmt::format("{} is {}; only files and directories can be in a checkpoint",
                                               entry.path, WhatItIs(info.st_mode))};
    }
    if (!entry.directory) tree->bytes += entry.identity.bytes;
    const bool enter = entry.directory;
    const std::string below = entry.path + "/";
    tree->entries.push_back(std::move(entry));
    if (!enter) continue;
    const UniqueFd child(openat(directory, name.c_str(), kOpenDirectory));
    if (!child.valid()) return SystemError("open", below);
    if (Status status = ListInto(child.get(), below, tree); !status) return status;
  }
  return {};
}

// `depth` bounds what a hostile tree costs: its directories are open one below the other.
Status EmptyBelow(int directory, const std::string& path, size_t depth) {
  constexpr size_t kDeepest = 512;
  if (depth > kDeepest) return Error{Errc::kInvalid, path + " is too deep to be removed"};
  // Every round takes away all that it lists; a directory without end is not listed at once.
  for (;;) {
    const auto names = NamesIn(directory, path, kMaxEntries);
    if (!names) return names.error();
    if (names->empty()) return {};
    for (const std::string& name : *names) {
      if (unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) continue;
      if (errno != EISDIR && errno != EPERM) return SystemError("remove", path + "/" + name);
      // A directory that its program has closed for itself is opened again: it is this user's.
      UniqueFd child(openat(directory, name.c_str(), kOpenDirectory));
      if (!child.valid() && errno == EACCES && fchmodat(directory, name.c_str(), 0700, 0) == 0)
        child.reset(openat(directory, name.c_str(), kOpenDirectory));
      if (!child.valid()) return SystemError("remove", path + "/" + name);
      (void)fchmod(child.get(), 0700);
      if (Status status = EmptyBelow(child.get(), path + "/" + name, depth + 1); !status) return status;
      if (unlinkat(directory, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
        return SystemError("remove", path + "/" + name);
    }
  }
}

}  // namespace

Error SystemError(const char* what, const std::string& path) {
  const int error = errno;
  const Errc code = error == ENOSPC || error == EDQUOT ? Errc::kExhausted : Errc::kInternal;
  return {code, fmt::format("cannot {} {}: {}", what, path, std::strerror(error))};
}

Identity Identity::Of(const struct stat& info) {
  return {info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size), info.st_mtim};
}

bool Identity::operator==(const Identity& other) const {
  return device == other.device && inode == other.inode && bytes == other.bytes &&
         modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
}

Result<Tree> ListTree(int directory, bool marked) {
  struct stat info {};
  if (fstat(directory, &info) != 0) return SystemError("look at", "it");
  Tree tree;
  tree.root = Identity::Of(info);
  tree.mode = info.st_mode & 0777;
  tree.marked = marked;
  if (Status status = ListInto(directory, "", &tree); !status) return status.error();
  return tree;
}

Status ReadFile(int directory, const TreeEntry& entry, void* to) {
  // Not blocking: it may have become a pipe since.
  const UniqueFd file(openat(directory, entry.path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return errno == ENOENT ? Changed(entry.path) : SystemError("open", entry.path);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return SystemError("look at", entry.path);
  if (!S_ISREG(info.st_mode) || !(Identity::Of(info) == entry.identity)) return Changed(entry.path);
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  for (uint64_t at = 0; at < entry.identity.bytes;) {
    const ssize_t got =
        pread(file.get(), static_cast<char*>(to) + at, entry.identity.bytes - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", entry.path);
    if (got == 0) return Changed(entry.path);
    at += static_cast<uint64_t>(got);
  }
  if (fstat(file.get(), &info) != 0 || !(Identity::Of(info) == entry.identity)) return Changed(entry.path);
  return {};
}

Status CheckUnchanged(int directory, const Tree& tree) {
  struct stat info {};
  if (fstat(directory, &info) != 0 || !(Identity::Of(info) == tree.root)) return Changed("the directory");
  for (const TreeEntry& entry : tree.entries) {
    if (!entry.directory) continue;
    if (fstatat(directory, entry.path.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        !(Identity::Of(info) == entry.identity))
      return Changed(entry.path);
  }
  return tree.marked ? CheckMark(directory) : Status();
}

Status RemoveTree(int parent, const std::string& name) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR && errno != EPERM) return SystemError("remove", name);
  if (fchmodat(parent, name.c_str(), 0700, 0) != 0 && errno == ENOENT) return {};
  const UniqueFd child(openat(parent, name.c_str(), kOpenDirectory));
  if (!child.valid()) return SystemError("remove", name);
  if (Status status = EmptyBelow(child.get(), name, 0); !status) return status;
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT)
    return SystemError("remove", name);
  return {};
}

Status Empty(int directory) {
  (void)fchmod(directory, 0700);
  return EmptyBelow(directory, ".", 0);
}

}  // namespace muster::files
