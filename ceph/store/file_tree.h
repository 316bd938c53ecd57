// Files below one directory, written so that a reader or a crash sees the old content or the new one, never a
// mixture. Paths are validated names (ceph/store/names.h); no symbolic link is ever followed below the root.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// Thread-safe; any number of processes and hosts may use the same tree.
class FileTree {
 public:
  // Opens `path`, which is made (mode 0700) when only its last component is missing.
  static Result<FileTree> Open(const std::string& path);

  // Replaces the file durably: temporary name, fsync, rename, fsync of the directory. Makes directories
  // (0700) as needed. kUnavailable: it may have been replaced all the same; with any other error it has not been.
  Status Write(const std::string& file, std::span<const std::byte> data) const;
  // A random number of 16 hexadecimal digits that the tree keeps from the first call on: all hosts get the same one.
  Result<std::string> Number() const;
  // At most into.size() bytes from the start.
  Result<size_t> Read(const std::string& file, std::span<std::byte> into) const;
  Result<std::string> ReadAll(const std::string& file) const;
  // Success also when it is not there. Removes directories that become empty, up to `keep` components.
  Status Remove(const std::string& file, size_t keep) const;
  // Paths below `directory` (with it) that begin with `prefix`, in no order; a missing directory has none.
  // Removes temporary files that writers which died have left more than a day ago.
  Result<std::vector<std::string>> List(const std::string& directory, const std::string& prefix) const;
  // Names of the directories at the top, in no order.
  Result<std::vector<std::string>> Directories() const;
  // Opens `file` for locking (made when missing).
  Result<UniqueFd> OpenLock(const std::string& file) const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  FileTree(UniqueFd root, std::string path) : root_(std::move(root)), path_(std::move(path)) {}
  Result<UniqueFd> OpenDirectory(std::string_view directory, bool create) const;
  Status WriteOnce(const std::string& file, std::span<const std::byte> data) const;
  Status ListInto(UniqueFd directory, const std::string& at, const std::string& prefix,
                  std::vector<std::string>* out) const;
  [[nodiscard]] Error Failed(const char* what, std::string_view path, int error) const;

  UniqueFd root_;
  std::string path_;
};

}  // namespace muster
