// Owners for what libmuster's C API hands out.
#pragma once

#include <memory>

#include "ceph/muster.h"

namespace muster::train {

struct CloseHandle {
  void operator()(muster_handle* handle) const { muster_close(handle); }
};
struct CloseRestore {
  void operator()(muster_restore* restore) const { muster_restore_close(restore); }
};
using Handle = std::unique_ptr<muster_handle, CloseHandle>;
using Restore = std::unique_ptr<muster_restore, CloseRestore>;

}  // namespace muster::train
