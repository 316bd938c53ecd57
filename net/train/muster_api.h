// libmuster's C API for C++ code in namespace muster, owned.
#pragma once

#include <memory>

// The C handle's type has the name of our namespace, which one scope cannot hold both of.
#define muster muster_handle
#include "ceph/muster.h"
#undef muster

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
