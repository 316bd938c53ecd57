// Which of this host's addresses the other members should use.
#pragma once

#include <optional>
#include <string>

namespace muster {

// The first address of this host's name (SLURMD_NODENAME, else gethostname) that is bound to this host and is
// not a loopback one, in numbers. Debian's installer maps a host's own name to 127.0.1.1, so there may be
// none.
[[nodiscard]] std::optional<std::string> OwnNameAddress();

}  // namespace muster
