// A safetensors file as a shard: one that `muster checkpoint export` has written becomes what it was, any other a dict of
// its tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "ceph/exchange/safetensors.h"
#include "ceph/exchange/shard_export.h"
#include "ceph/exchange/shard_index.h"

namespace muster {

struct ShardImport {
  struct Piece {
    uint64_t offset = 0;  // in the shard
    uint64_t from = 0;    // in the file
    uint64_t bytes = 0;
  };
  ShardLayout layout;
  std::string structure;  // written at structure_offset; "": none
  uint64_t structure_offset = 0;
  std::vector<Piece> pieces;
  std::optional<ShardOrigin> origin;  // of an exported one
};

// kInvalid: what is wrong with the file.
Result<ShardImport> PlanImport(const SafeTensorsHeader& header);

}  // namespace muster
