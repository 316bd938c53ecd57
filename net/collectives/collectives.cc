#include "net/collectives/collectives.h"

#include "net/collectives/gloo_collectives.h"

namespace muster {

Result<std::unique_ptr<Collectives>> MakeCollectives(std::string_view backend, const GroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Error{Errc::kInvalid, "collectives: rank " + std::to_string(options.rank) +
                                     " is not in a group of " + std::to_string(options.size)};
  }
  if (backend == "gloo") return MakeGlooCollectives(options);
  return Error{Errc::kInvalid,
               "collectives: no backend '" + std::string(backend) + "'; this build has: gloo"};
}

}  // namespace muster
