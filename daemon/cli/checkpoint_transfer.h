// Checkpoints between the store and safetensors files, and their verification. Each shows a bar on stderr while it works, and
// gives the document that the command prints (docs/operations.md).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/cli/musterd_session.h"

namespace muster::cli {

// Writes DIRECTORY/rank00000.safetensors and so on, then DIRECTORY/index.json. The directory is made when it is not there; no
// file that is there is written over. After an error none of the files is left.
Result<nlohmann::json> ExportCheckpoint(MusterdSession& session, const std::string& key, uint64_t step,
                                        const std::string& directory);

// Makes a checkpoint under the key name-NAME. Files that were exported are put in the order of their ranks, others are in the
// order in which they are given.
Result<nlohmann::json> ImportCheckpoint(MusterdSession& session, const std::string& name, uint64_t step,
                                        const std::vector<std::string>& files);

struct Verified {
  uint64_t step = 0;
  uint64_t bytes = 0;
  std::string reason;    // "": it is good
  bool removed = false;  // meanwhile, as the reason says: it is neither good nor bad
};
// Reads every byte of these checkpoints; one that is bad, or that is removed before it has all been read, is no error.
Result<std::vector<Verified>> VerifyCheckpoints(MusterdSession& session, const std::string& key,
                                                const std::vector<uint64_t>& steps);

}  // namespace muster::cli
