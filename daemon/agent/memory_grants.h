// What the staging memory of this node's members may still take. It is charged to their jobs: a save that took more than there
// is would have the kernel's OOM killer end the training that it is to protect, and again after each restart.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace muster {

// Thread-safe. It reads /proc and the cgroups, of version 1 or 2, and takes a millisecond: for a worker.
class MemoryGrants {
 public:
  struct Roots {
    std::string proc = "/proc";
    std::string cgroup = "/sys/fs/cgroup";
  };
  // One member's memories. What it has been granted counts as long as this lives.
  class Share;

  // `keep_free`: bytes of the node that nobody is granted.
  explicit MemoryGrants(uint64_t keep_free) : MemoryGrants(keep_free, Roots()) {}
  MemoryGrants(uint64_t keep_free, Roots roots);

  // `pid`: whose cgroups the memory is charged to.
  std::shared_ptr<Share> Join(pid_t pid);
  // Whether a memfd of the member may come to hold `bytes` bytes. It is granted as a whole, though its pages are taken one by
  // one: what others have been granted and not taken yet is not there any more. kInvalid: it is no memfd. kExhausted: the
  // sentence says which limit is in the way, and how much it leaves.
  Status Ask(Share& share, std::shared_ptr<const UniqueFd> memory, uint64_t bytes);

 private:
  struct Promise;

  // Of all but the memory with this inode, which `asking` asks for again.
  std::vector<Promise> Promises(const Share& asking, ino_t memory) const;

  const uint64_t keep_free_;
  const Roots roots_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Share>> shares_;
};

}  // namespace muster
