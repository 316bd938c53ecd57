// NCCL, loaded when it is asked for.
#pragma once

#include <string>

#include "base/result.h"
#include "net/collectives/nccl_abi.h"

namespace muster::nccl {

struct Library {
  Functions functions;
  std::string name;  // "NCCL 2.27.3"
};

// `file`: as dlopen takes it, "libnccl.so.2". It stays loaded until the process ends: its threads cannot be stopped.
// kNotFound when there is no such library; kInvalid when it is too old, or lacks a function.
[[nodiscard]] Result<Library> Load(const std::string& file);

}  // namespace muster::nccl
