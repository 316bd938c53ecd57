// This member's side of checkpoints, through libmuster: a directory is saved, and comes back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "client/files/directory_tree.h"
#include "client/muster.h"

namespace muster::files {

struct CloseHandle {
  void operator()(muster_handle* m) const { muster_close(m); }
};
using Handle = std::unique_ptr<muster_handle, CloseHandle>;

// Codes that say nothing about a save, but that musterd is away: the library goes on when it is back.
bool IsAway(int status);

// How an attempt to save ended: kBusy is to be tried again later, the other states are not.
struct Saved {
  enum class State { kHanded, kBusy, kFailed } state = State::kFailed;
  std::string why;  // of kFailed
  Identity root;    // of what was saved
};

// Reads `name` in `top` and hands it to musterd as this member's shard of `step`; `marked` as for ListTree. Never waits for the
// store.
Saved SaveDirectory(muster_handle* m, int top, const std::string& name, uint64_t step, bool marked);

// What the generation starts from.
struct Restored {
  std::string name;   // of the directory in `top`; "" when there is none
  uint64_t step = 0;  // MUSTER_LATEST: the gang has no checkpoint
};
// Lays out what the member of this rank has saved. `status` is the muster_error of a failure.
Result<Restored> RestoreDirectory(muster_handle* m, int top, int* status);

}  // namespace muster::files
