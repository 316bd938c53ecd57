// libmuster's C API, as the trainer uses it.
#pragma once

#include <memory>

#include "base/result.h"
#include "client/muster.h"
#include "net/collectives/collectives.h"

namespace muster::train {

struct CloseHandle {
  void operator()(muster_handle* handle) const { muster_close(handle); }
};
struct CloseRestore {
  void operator()(muster_restore* restore) const { muster_restore_close(restore); }
};
using Handle = std::unique_ptr<muster_handle, CloseHandle>;
using Restore = std::unique_ptr<muster_restore, CloseRestore>;

// This member's connection to its node's musterd. Null when the process was not started by Muster.
[[nodiscard]] Result<Handle> OpenMuster();

// The exchange of a gang's members, through musterd: of this generation only. Not for several threads at once, nor beside
// other calls on `handle`, which outlives it.
[[nodiscard]] Exchange ExchangeOver(muster_handle* handle);

}  // namespace muster::train
