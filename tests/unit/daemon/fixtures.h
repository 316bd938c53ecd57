// Messages that were recorded once (fixtures/*/README.md).
#pragma once

#include <string>

namespace muster {

// The bytes of a file below tests/unit/daemon/fixtures.
std::string Fixture(const std::string& path);

}  // namespace muster
