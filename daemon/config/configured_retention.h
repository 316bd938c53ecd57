// Which checkpoints the configuration keeps.
#pragma once

#include "ceph/catalog/retention.h"
#include "daemon/config/config.h"

namespace muster {

inline Retention RetentionOf(const Config& config) {
  return {static_cast<size_t>(config.keep_checkpoints), static_cast<uint64_t>(config.keep_every)};
}

}  // namespace muster
