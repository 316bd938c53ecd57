#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/small_files.h"
#include "base/unique_fd.h"
#include "daemon/health/findings.h"

namespace muster {
namespace {

bool Lies(const std::string& path, const std::string& mount) {
  return mount == "/" || path == mount || path.starts_with(mount + "/");
}

// Whether the file system itself is read-only, as after an error. A mount that shows a writable one read-only, as
// systemd makes for a service, is not meant.
bool ReadOnlyFileSystem(const std::string& proc_root, const std::string& path) {
  const std::string text = ReadSmallFile(proc_root + "/self/mountinfo").value_or("");
  std::string mount;
  bool read_only = false;
  for (const std::string& line : Words(text, "\n")) {
    const std::vector<std::string> words = Words(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    // ID PARENT DEV ROOT MOUNT OPTIONS... - TYPE SOURCE SUPER-OPTIONS; a later mount hides an earlier one.
    if (words.size() < 6 || words.end() - dash < 4 || !Lies(path, words[4]) ||
        words[4].size() < mount.size()) {
      continue;
    }
    mount = words[4];
    const std::vector<std::string> options = Words(*(dash + 3), ",");
    read_only = std::find(options.begin(), options.end(), "ro") != options.end();
  }
  return read_only;
}

// Writes a little to a file without a name. No fsync: on a disk that is only busy it may take very long.
int WriteError(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  // Not here, not ours to write, no such files on this file system: says nothing about the disk.
  if (!file.valid()) return errno == EIO || errno == EROFS || errno == ENOSPC || errno == EUCLEAN ? errno : 0;
  const std::array<char, 4096> block{};
  return ::pwrite(file.get(), block.data(), block.size(), 0) < 0 ? errno : 0;
}

// `vital`: Muster cannot work without room there. Elsewhere a job may have filled it, which must not drain the
// node: a job that fills /tmp would go on to do so on every spare.
void CheckDisk(const HealthOptions& options, const std::string& path, bool vital, Findings& findings) {
  findings.Checking("disk " + path);
  if (ReadOnlyFileSystem(options.proc_root, path)) {
    findings.Sick("is read-only");
    return;
  }
  struct statvfs room {};
  if (::statvfs(path.c_str(), &room) != 0) {
    const std::string what = fmt::format("could not be looked at: {}", std::strerror(errno));
    return errno == EIO || errno == ESTALE || errno == ENODEV ? findings.Sick(what) : findings.Warn(what);
  }
  const auto short_of = [&](uint64_t free, uint64_t all) {
    return all > 0 && free * 100.0 < all * static_cast<double>(options.disk_free_percent);
  };
  const auto full = [&](const std::string& what) { vital ? findings.Sick(what) : findings.Warn(what); };
  if (short_of(room.f_bavail, room.f_blocks)) {
    return full(fmt::format("has {} MiB free of {} MiB, less than {} %", room.f_bavail * room.f_frsize >> 20,
                            room.f_blocks * room.f_frsize >> 20, options.disk_free_percent));
  }
  if (short_of(room.f_favail, room.f_files)) {
    return full(fmt::format("has {} inodes free of {}, less than {} %", static_cast<uint64_t>(room.f_favail),
                            static_cast<uint64_t>(room.f_files), options.disk_free_percent));
  }
  const int error = WriteError(path);
  if (error == ENOSPC || error == EDQUOT) return full("has no room");
  // A service's view of a file system may be read-only while the file system is not.
  if (error != 0 && error != EROFS) findings.Sick(fmt::format("cannot be written: {}", std::strerror(error)));
}

}  // namespace

void CheckDisks(const HealthOptions& options, Findings& findings) {
  if (!options.state_dir.empty()) CheckDisk(options, options.state_dir, true, findings);
  for (const std::string& disk : options.disks) CheckDisk(options, disk, false, findings);
}

}  // namespace muster
