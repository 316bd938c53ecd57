#include "client/files/directory_layout.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/unique_fd.h"
#include "client/files/directory_tree.h"
#include "client/files/entry_meta.h"
#include "client/files/step_name.h"

namespace muster::files {
namespace {

constexpr char kWork[] = ".layout";  // until it is whole

Error Of(const ShardEntry& entry, const Error& why) {
  return {why.code, fmt::format("entry '{}': {}", entry.name.substr(0, 300), why.message)};
}

Status WriteFile(int directory, const ShardEntry& entry, mode_t mode) {
  const UniqueFd file(
      openat(directory, entry.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return SystemError("make", entry.name);
  // What does not fit is said before the disk is full of half of it.
  if (entry.bytes > 0) {
    const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(entry.bytes));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
      errno = error;
      return SystemError("write", fmt::format("{} ({} bytes)", entry.name, entry.bytes));
    }
  }
  for (size_t at = 0; at < entry.bytes;) {
    const ssize_t put = write(file.get(), static_cast<const char*>(entry.data) + at, entry.bytes - at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return SystemError("write", entry.name);
    at += static_cast<size_t>(put);
  }
  if (fchmod(file.get(), mode) != 0) return SystemError("change the mode of", entry.name);
  return {};
}

Status WriteEntries(int work, const std::vector<ShardEntry>& entries, const EntryMeta& root) {
  std::vector<std::pair<std::string, mode_t>> directories;
  for (size_t i = 1; i < entries.size(); ++i) {
    const ShardEntry& entry = entries[i];
    if (Status status = CheckPath(entry.name); !status) return status;
    const auto meta = DecodeMeta(entry.meta);
    if (!meta) return Of(entry, meta.error());
    switch (meta->kind) {
      case Kind::kStep:
        return Of(entry, {Errc::kInvalid, "a step in a step"});
      case Kind::kDirectory:
        if (mkdirat(work, entry.name.c_str(), 0700) != 0) return SystemError("make", entry.name);
        directories.emplace_back(entry.name, meta->mode);
        break;
      case Kind::kFile:
        if (Status status = WriteFile(work, entry, meta->mode); !status) return status;
        break;
    }
  }
  // At last, and from the inside out: one may not be writable for its owner.
  for (auto at = directories.rbegin(); at != directories.rend(); ++at) {
    if (fchmodat(work, at->first.c_str(), at->second, 0) != 0)
      return SystemError("change the mode of", at->first);
  }
  if (fchmod(work, root.mode) != 0) return SystemError("change the mode of", root.name);
  return {};
}

}  // namespace

Result<std::string> LayOut(int top, uint64_t step, const std::vector<ShardEntry>& entries) {
  if (entries.empty() || entries.front().name != kStepEntry)
    return Error{Errc::kInvalid, "it was not saved from files (--gang=files=yes)"};
  const auto root = DecodeMeta(entries.front().meta);
  if (!root) return root.error();
  if (root->kind != Kind::kStep || StepOf(root->name) != step)
    return Error{Errc::kInvalid, "its first entry is not of this step's directory"};
  if (Status status = RemoveTree(top, kWork); !status) return status.error();
  if (mkdirat(top, kWork, 0700) != 0) return SystemError("make", root->name);
  const UniqueFd work(openat(top, kWork, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!work.valid()) return SystemError("open", root->name);
  if (Status status = WriteEntries(work.get(), entries, *root); !status) {
    (void)RemoveTree(top, kWork);  // its room may be what is missing
    return status.error();
  }
  if (renameat(top, kWork, top, root->name.c_str()) != 0) return SystemError("make", root->name);
  return root->name;
}

}  // namespace muster::files
