#include "daemon/cli/file_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace muster::cli {
namespace {

constexpr uint64_t kPart = 8 << 20;

Status ReadAll(const FilePlace& from, char* into, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(from.file.get(), into + done, bytes - done, static_cast<off_t>(from.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("read", from.name, errno);
    if (n == 0) {
      return Error{Errc::kInvalid, from.name + " ends at byte " + std::to_string(from.offset + done) +
                                       ": was it cut off meanwhile?"};
    }
    done += static_cast<uint64_t>(n);
  }
  return {};
}

Status WriteAll(const FilePlace& to, const char* data, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pwrite(to.file.get(), data + done, bytes - done, static_cast<off_t>(to.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError("write", to.name, errno);
    done += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace

Error FileError(const std::string& what, const std::string& name, int error) {
  const bool caller = error == ENOENT || error == EACCES || error == EPERM || error == EEXIST ||
                      error == ENOTDIR || error == EISDIR || error == ELOOP;
  return {caller ? Errc::kInvalid : Errc::kInternal,
          "cannot " + what + " " + name + ": " + std::strerror(error)};
}

Result<std::string> ReadBytes(const FilePlace& from, uint64_t bytes) {
  std::string data(bytes, '\0');
  if (Status status = ReadAll(from, data.data(), bytes); !status) return status.error();
  return data;
}

Status WriteBytes(const FilePlace& to, const std::string& bytes) {
  return WriteAll(to, bytes.data(), bytes.size());
}

Status CopyBytes(const FilePlace& from, const FilePlace& to, uint64_t bytes,
                 const std::function<void(uint64_t)>& copied) {
  std::string buffer(std::min(bytes, kPart), '\0');
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t part = std::min<uint64_t>(buffer.size(), bytes - done);
    if (Status status = ReadAll({from.file, from.offset + done, from.name}, buffer.data(), part); !status)
      return status;
    if (Status status = WriteAll({to.file, to.offset + done, to.name}, buffer.data(), part); !status)
      return status;
    done += part;
    copied(part);
  }
  return {};
}

}  // namespace muster::cli
