#include "ceph/store/file_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

namespace muster {
namespace {

constexpr char kTemporary[] = ".new-";
constexpr char kNumber[] = ".number";
constexpr size_t kDigits = 16;
constexpr time_t kAbandonedSeconds = 24 * 3600;
constexpr size_t kMaxWhole = 256u << 20;  // bytes that ReadAll takes
constexpr int kWriteAttempts = 4;

Errc CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Errc::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      return Errc::kDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return Errc::kExhausted;
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
      return Errc::kUnavailable;
    default:
      return Errc::kInternal;
  }
}

// "a/b/c" -> "a/b" and "c".
std::pair<std::string_view, std::string_view> SplitLast(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {{}, path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

// Blocking only at early boot.
std::string RandomDigits() {
  uint64_t number = 0;
  while (::getrandom(&number, sizeof(number), 0) != sizeof(number)) {
  }
  char text[kDigits + 1];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

int WriteAll(int fd, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    data = data.subspan(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace

Error FileTree::Failed(const char* what, std::string_view path, int error) const {
  std::string message = std::string("cannot ") + what + " " + path_;
  if (!path.empty()) message += "/" + std::string(path);
  return {CodeOf(error), message + ": " + std::strerror(error)};
}

Result<FileTree> FileTree::Open(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return Error{Errc::kInvalid, "store directory '" + path + "' is not an absolute path"};
  }
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  FileTree tree(UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), path);
  if (!tree.root_.valid()) return tree.Failed("open the store directory", {}, errno);
  if (made) {
    const UniqueFd parent(::openat(tree.root_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent.valid() || ::fsync(parent.get()) != 0) return tree.Failed("make durable", {}, errno);
  }
  if (::faccessat(tree.root_.get(), ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0) {
    return tree.Failed("write to the store directory", {}, errno);
  }
  return tree;
}

Result<UniqueFd> FileTree::OpenDirectory(std::string_view directory, bool create) const {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd at(::openat(root_.get(), ".", kFlags));
  if (!at.valid()) return Failed("open", {}, errno);
  size_t begin = 0;
  while (begin < directory.size()) {
    const size_t end = std::min(directory.find('/', begin), directory.size());
    const std::string component(directory.substr(begin, end - begin));
    UniqueFd next(::openat(at.get(), component.c_str(), kFlags));
    if (!next.valid() && errno == ENOENT && create) {
      if (::mkdirat(at.get(), component.c_str(), 0700) == 0) {
        if (::fsync(at.get()) != 0) {
          const int error = errno;
          // Who finds it there takes it for durable.
          ::unlinkat(at.get(), component.c_str(), AT_REMOVEDIR);
          return Failed("make durable", directory.substr(0, end), error);
        }
      } else if (errno != EEXIST) {
        return Failed("make directory", directory.substr(0, end), errno);
      }
      next = UniqueFd(::openat(at.get(), component.c_str(), kFlags));
    }
    if (!next.valid()) return Failed("open", directory.substr(0, end), errno);
    at = std::move(next);
    begin = end + 1;
  }
  return at;
}

Status FileTree::Write(const std::string& file, std::span<const std::byte> data) const {
  for (int attempt = 1;; ++attempt) {
    Status status = WriteOnce(file, data);
    // A directory that Remove found empty may go away under a writer: make it again.
    if (status.ok() || status.error().code != Errc::kNotFound || attempt == kWriteAttempts) return status;
  }
}

Status FileTree::WriteOnce(const std::string& file, std::span<const std::byte> data) const {
  const auto [parent, leaf] = SplitLast(file);
  Result<UniqueFd> directory = OpenDirectory(parent, true);
  if (!directory) return directory.error();
  const std::string temporary =
      kTemporary + RandomDigits();  // not the process id: hosts may share the directory
  UniqueFd fd(::openat(directory->get(), temporary.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return Failed("create", file, errno);
  int error = WriteAll(fd.get(), data);
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error == 0 &&
      ::renameat(directory->get(), temporary.c_str(), directory->get(), std::string(leaf).c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlinkat(directory->get(), temporary.c_str(), 0);
    return Failed("write", file, error);
  }
  if (::fsync(directory->get()) == 0) return {};
  // It is there for every reader, and may be so after a power failure, or not.
  return Error{Errc::kUnavailable, Failed("make durable", file, errno).message};
}

Result<std::string> FileTree::Number() const {
  Result<std::string> number = ReadAll(kNumber);
  if (!number && number.error().code == Errc::kNotFound) {
    const std::string random = RandomDigits();
    const std::string temporary = kTemporary + random;
    if (Status status = Write(temporary, std::as_bytes(std::span(random))); !status) return status.error();
    // When several hosts link a number at once, the number of the first host stays.
    const bool made = ::linkat(root_.get(), temporary.c_str(), root_.get(), kNumber, 0) == 0;
    const int error = made ? 0 : errno;
    ::unlinkat(root_.get(), temporary.c_str(), 0);
    if (error != 0 && error != EEXIST) return Failed("make", kNumber, error);
    if (::fsync(root_.get()) != 0) return Failed("make durable", kNumber, errno);
    number = ReadAll(kNumber);
  }
  if (number &&
      (number->size() != kDigits || number->find_first_not_of("0123456789abcdef") != std::string::npos))
    return Error{Errc::kCorrupt, path_ + "/" + kNumber + " is not the number of a store"};
  return number;
}

Result<size_t> FileTree::Read(const std::string& file, std::span<std::byte> into) const {
  const auto [parent, leaf] = SplitLast(file);
  Result<UniqueFd> directory = OpenDirectory(parent, false);
  if (!directory) return directory.error();
  const UniqueFd fd(::openat(directory->get(), std::string(leaf).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Failed("read", file, errno);
  size_t got = 0;
  while (got < into.size()) {
    const ssize_t n = ::read(fd.get(), into.data() + got, into.size() - got);
    if (n < 0) {
      if (errno == EINTR) continue;
      return Failed("read", file, errno);
    }
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  return got;
}

Result<std::string> FileTree::ReadAll(const std::string& file) const {
  const auto [parent, leaf] = SplitLast(file);
  Result<UniqueFd> directory = OpenDirectory(parent, false);
  if (!directory) return directory.error();
  const UniqueFd fd(::openat(directory->get(), std::string(leaf).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return Failed("read", file, errno);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > kMaxWhole) {
    return Error{Errc::kCorrupt, path_ + "/" + file + " is no regular file of at most 256 MiB"};
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t got = 0;
  while (got < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + got, text.size() - got);
    if (n < 0) {
      if (errno == EINTR) continue;
      return Failed("read", file, errno);
    }
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

Status FileTree::Remove(const std::string& file, size_t keep) const {
  auto [parent, leaf] = SplitLast(file);
  Result<UniqueFd> directory = OpenDirectory(parent, false);
  if (!directory) {
    if (directory.error().code == Errc::kNotFound) return {};
    return directory.error();
  }
  if (::unlinkat(directory->get(), std::string(leaf).c_str(), 0) != 0 && errno != ENOENT) {
    return Failed("remove", file, errno);
  }
  // Not made durable: an object that comes back after a power failure is an orphan, and orphans are
  // collected.
  size_t depth = 1;
  for (const char c : parent) depth += c == '/' ? 1 : 0;
  while (!parent.empty() && depth > keep) {
    if (::unlinkat(root_.get(), std::string(parent).c_str(), AT_REMOVEDIR) != 0) break;
    parent = SplitLast(parent).first;
    --depth;
  }
  return {};
}

Result<std::vector<std::string>> FileTree::List(const std::string& directory,
                                                const std::string& prefix) const {
  std::vector<std::string> out;
  Result<UniqueFd> opened = OpenDirectory(directory, false);
  if (!opened) {
    if (opened.error().code == Errc::kNotFound) return out;
    return opened.error();
  }
  if (Status status = ListInto(std::move(*opened), directory, prefix, &out); !status) return status.error();
  return out;
}

Status FileTree::ListInto(UniqueFd directory, const std::string& at, const std::string& prefix,
                          std::vector<std::string>* out) const {
  const auto close = [](DIR* d) { ::closedir(d); };
  const std::unique_ptr<DIR, decltype(close)> stream(::fdopendir(directory.get()), close);
  if (!stream) return Failed("list", at, errno);
  const int fd = directory.release();  // the stream's now
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return Failed("list", at, errno);
      return {};
    }
    const std::string name = entry->d_name;
    struct stat info {};
    if (name == "." || name == ".." || ::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (name[0] == '.') {
      const bool abandoned =
          name.starts_with(kTemporary) && info.st_mtime + kAbandonedSeconds < ::time(nullptr);
      if (abandoned && S_ISREG(info.st_mode)) ::unlinkat(fd, name.c_str(), 0);
      continue;
    }
    const std::string path = at.empty() ? name : at + "/" + name;
    if (S_ISREG(info.st_mode)) {
      if (path.starts_with(prefix)) out->push_back(path);
    } else if (S_ISDIR(info.st_mode)) {
      // Only where a name with the prefix can be.
      const std::string below = path + "/";
      if (!below.starts_with(prefix) && !prefix.starts_with(below)) continue;
      UniqueFd next(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!next.valid()) {
        if (errno == ENOENT) continue;
        return Failed("list", path, errno);
      }
      if (Status status = ListInto(std::move(next), path, prefix, out); !status) return status;
    }
  }
}

Result<std::vector<std::string>> FileTree::Directories() const {
  const auto close = [](DIR* d) { ::closedir(d); };
  const int fd = ::openat(root_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, decltype(close)> stream(fd < 0 ? nullptr : ::fdopendir(fd), close);
  if (!stream) return Failed("list", ".", errno);
  std::vector<std::string> names;
  errno = 0;
  for (const dirent* entry = ::readdir(stream.get()); entry != nullptr; entry = ::readdir(stream.get())) {
    struct stat info {};
    const std::string name = entry->d_name;
    if (name[0] == '.' || ::fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISDIR(info.st_mode)) names.push_back(name);
  }
  return names;
}

Result<UniqueFd> FileTree::OpenLock(const std::string& file) const {
  const auto [parent, leaf] = SplitLast(file);
  Result<UniqueFd> directory = OpenDirectory(parent, true);
  if (!directory) return directory.error();
  UniqueFd fd(
      ::openat(directory->get(), std::string(leaf).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return Failed("open", file, errno);
  return fd;
}

}  // namespace muster
