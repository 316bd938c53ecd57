// What came over the wire and goes to the program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ceph/muster.h"

namespace muster::client {

// A status that came over the wire.
inline int CheckedStatus(int32_t status) {
  return status <= MUSTER_OK && status >= MUSTER_E_DEVICE ? status : MUSTER_E_STORE;
}

// Copies a text from the wire: without control characters, cut to fit.
inline void CopyText(char* to, size_t capacity, const char* from, size_t size) {
  size_t n = 0;
  for (size_t i = 0; i < size && n + 1 < capacity; ++i) {
    to[n++] = static_cast<unsigned char>(from[i]) < 0x20 ? ' ' : from[i];
  }
  to[n] = '\0';
}

}  // namespace muster::client
