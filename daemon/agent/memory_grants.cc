#include "daemon/agent/memory_grants.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/small_files.h"

namespace muster {
namespace {

// libmuster has two staging buffers; one that could not be used any more may be among them.
constexpr size_t kGrantsOfMember = 4;
constexpr uint64_t kBlock = 512;  // of st_blocks

uint64_t Less(uint64_t from, uint64_t what) {
  return from - std::min(from, what);
}

std::string Mebibytes(uint64_t bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

bool IsUnder(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

// Where its memory is counted, below where cgroups are; "" for the root of version 2. Nothing: it has gone.
std::optional<std::string> CgroupOf(const std::string& proc, pid_t pid) {
  const std::string text = ReadSmallFile(fmt::format("{}/{}/cgroup", proc, pid)).value_or("");
  std::optional<std::string> unified;
  for (const std::string& line : Words(text, "\n")) {
    // NUMBER:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    const std::vector<std::string> controllers = Words(line.substr(first + 1, second - first - 1), ",");
    // Version 1 has it where it is mounted; else version 2 has it.
    if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end())
      return "/memory" + path;
    if (controllers.empty()) unified = path;
  }
  return unified;
}

// Of a file of lines "NAME NUMBER".
uint64_t Sum(const std::string& path, std::initializer_list<std::string_view> names) {
  uint64_t sum = 0;
  const std::vector<std::string> words = Words(ReadSmallFile(path).value_or(""));
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    if (std::find(names.begin(), names.end(), words[i]) != names.end())
      sum += ParseDecimal(words[i + 1]).value_or(0);
  }
  return sum;
}

// What a cgroup's own limit leaves; nothing: it has none. The kernel takes file pages back before it kills. (Those of memfds are
// not among them.)
std::optional<uint64_t> RoomOf(const std::string& directory, uint64_t swap_free) {
  const auto read = [&](const char* name) { return ReadNumber(directory + "/memory." + name); };
  if (const auto most = read("max")) {
    const uint64_t files =
        Sum(directory + "/memory.stat", {"active_file", "inactive_file", "slab_reclaimable"});
    const uint64_t room = Less(*most, Less(read("current").value_or(0), files));
    const auto most_swap = read("swap.max");
    return room +
           (most_swap ? std::min(swap_free, Less(*most_swap, read("swap.current").value_or(0))) : swap_free);
  }
  const auto most = read("limit_in_bytes");  // version 1
  if (!most) return std::nullopt;
  const uint64_t files = Sum(directory + "/memory.stat", {"total_active_file", "total_inactive_file"});
  const uint64_t room = Less(*most, Less(read("usage_in_bytes").value_or(0), files)) + swap_free;
  const auto most_of_both = read("memsw.limit_in_bytes");
  if (!most_of_both) return room;
  return std::min(room, Less(*most_of_both, Less(read("memsw.usage_in_bytes").value_or(0), files)));
}

}  // namespace

class MemoryGrants::Share {
 public:
  explicit Share(std::optional<std::string> cgroup) : cgroup_(std::move(cgroup)) {}

 private:
  friend class MemoryGrants;
  struct Grant {
    std::shared_ptr<const UniqueFd> memory;
    ino_t inode = 0;
    uint64_t bytes = 0;
  };
  // Of MemoryGrants::mutex_.
  const std::optional<std::string> cgroup_;
  std::vector<Grant> grants_;
};

// Granted, and not taken yet.
struct MemoryGrants::Promise {
  std::optional<std::string> cgroup;
  uint64_t bytes = 0;
};

MemoryGrants::MemoryGrants(uint64_t keep_free, Roots roots)
    : keep_free_(keep_free), roots_(std::move(roots)) {}

std::shared_ptr<MemoryGrants::Share> MemoryGrants::Join(pid_t pid) {
  auto share = std::make_shared<Share>(CgroupOf(roots_.proc, pid));
  const std::lock_guard lock(mutex_);
  std::erase_if(shares_, [](const auto& weak) { return weak.expired(); });
  shares_.push_back(share);
  return share;
}

std::vector<MemoryGrants::Promise> MemoryGrants::Promises(const Share& asking, ino_t memory) const {
  std::vector<Promise> promises;
  for (const auto& weak : shares_) {
    const auto share = weak.lock();
    if (!share) continue;
    for (const Share::Grant& grant : share->grants_) {
      struct stat info {};
      if (share.get() == &asking && grant.inode == memory) continue;
      if (::fstat(grant.memory->get(), &info) != 0) continue;
      promises.push_back({share->cgroup_, Less(grant.bytes, static_cast<uint64_t>(info.st_blocks) * kBlock)});
    }
  }
  return promises;
}

Status MemoryGrants::Ask(Share& share, std::shared_ptr<const UniqueFd> memory, uint64_t bytes) {
  struct stat info {};
  // A file system of the user's could make even fstat wait for ever.
  if (::fcntl(memory->get(), F_GET_SEALS) < 0 || ::fstat(memory->get(), &info) != 0)
    return Error{Errc::kInvalid, "staging memory is a memfd"};
  const uint64_t more = Less(bytes, static_cast<uint64_t>(info.st_blocks) * kBlock);

  const std::lock_guard lock(mutex_);
  // First what has not been taken, then what there is: what is taken meanwhile counts twice, and not not at all.
  const std::vector<Promise> promises = Promises(share, info.st_ino);
  const auto promised = [&](const auto& which) {
    uint64_t sum = 0;
    for (const Promise& promise : promises) sum += which(promise) ? promise.bytes : 0;
    return sum;
  };
  const uint64_t swap = ReadMemInfo(roots_.proc, "SwapFree:").value_or(0);
  if (const auto available = ReadMemInfo(roots_.proc, "MemAvailable:")) {
    const uint64_t others = promised([](const Promise&) { return true; });
    if (more > Less(*available + swap, others + keep_free_)) {
      return Error{
          Errc::kExhausted,
          fmt::format("{} more are needed; the node has {} available, of which {} are granted to other "
                      "saves and {} are kept free (health_memory_min)",
                      Mebibytes(more), Mebibytes(*available + swap), Mebibytes(others),
                      Mebibytes(keep_free_))};
    }
  }
  for (std::string path = share.cgroup_.value_or(""); !path.empty(); path.erase(path.rfind('/'))) {
    const auto room = RoomOf(roots_.cgroup + path, swap);
    if (!room) continue;
    const uint64_t others =
        promised([&](const Promise& promise) { return promise.cgroup && IsUnder(*promise.cgroup, path); });
    if (more <= Less(*room, others)) continue;
    return Error{
        Errc::kExhausted,
        fmt::format("{} more are needed; the job's memory limit leaves {}, of which {} are granted to "
                    "other saves (cgroup {}; sbatch --mem)",
                    Mebibytes(more), Mebibytes(*room), Mebibytes(others), path)};
  }
  std::vector<Share::Grant>& grants = share.grants_;
  std::erase_if(grants, [&](const Share::Grant& grant) { return grant.inode == info.st_ino; });
  if (grants.size() == kGrantsOfMember) grants.erase(grants.begin());
  grants.push_back({std::move(memory), info.st_ino, bytes});
  return {};
}

}  // namespace muster
