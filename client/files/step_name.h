// Names of a member's step directories. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster::files {

// The step that a directory's name says: "step-12", or with zeros in front ("step-0012") as people write for sorting.
// Nothing for any other name ("step-12.tmp" is being written).
std::optional<uint64_t> StepOf(std::string_view name);

}  // namespace muster::files
