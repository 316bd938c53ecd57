// What `muster net test` has said of the links between a gang's nodes. It is a process of the job's user that says it: nothing in
// it is trusted, and it is about this gang only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/gang/events.h"

namespace muster {

struct LinkTest {
  std::vector<uint32_t> nodes;  // the one that leads first
  uint64_t test = 0;            // its number
  bool good = false;            // it has found nothing, and no start has followed yet
};

// `status`: waitpid's of the process, -1: it was not started; `text`: what it has said. `nodes` took part, in that order; `names`
// of all of the gang's, by node. kInvalid: why there is no verdict, one sentence that a program of the user's may have written.
Result<gang::LinkVerdict> ReadLinkVerdict(int status, std::string_view text,
                                          const std::vector<uint32_t>& nodes,
                                          const std::vector<std::string>& names);

}  // namespace muster
