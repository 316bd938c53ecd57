#include "base/replace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/unique_fd.h"

namespace muster {
namespace {

// Of a full disk it takes what has room yet, and says only at the next try that there is none.
bool WriteAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode) {
  const std::string made = path + ".new";
  const UniqueFd file(::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.valid() && WriteAll(file.get(), text) && ::fchmod(file.get(), mode) == 0 &&
      ::rename(made.c_str(), path.c_str()) == 0) {
    return {};
  }
  const int error = errno;
  if (file.valid()) ::unlink(made.c_str());
  const Errc code = error == ENOENT ? Errc::kNotFound : Errc::kUnavailable;
  return Error{code, fmt::format("cannot write {}: {}", path, std::strerror(error))};
}

}  // namespace muster
