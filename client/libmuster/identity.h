// Which member of which gang this process is, as the environment says.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

namespace muster::client {

struct Identity {
  char gang[256] = "";
  char socket[108] = "";
  uint64_t generation = 0;
  uint32_t rank = 0;
  uint8_t token[wire::kTokenBytes] = {};

  // Reads MUSTER_GANG, MUSTER_GENERATION, RANK, MUSTER_TOKEN and MUSTER_SOCKET (optional). Gives a
  // muster_error and the sentence for it.
  int Read(char* error, size_t error_size);
};

}  // namespace muster::client
