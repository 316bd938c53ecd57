// Slurm's hostlist expressions: "n[1-4,07],login" is n1 n2 n3 n4 n07 login, "rack[1-2]n[1-2]" is rack1n1 rack1n2 rack2n1 rack2n2.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace muster {

inline constexpr size_t kMaxHosts = 65'536;
inline constexpr size_t kMaxHostName = 255;  // bytes

// Expands an expression, in its order. kInvalid for anything malformed, for names with other characters than
// letters, digits, '.', '_', '-' or longer than kMaxHostName, and for more than kMaxHosts hosts.
Result<std::vector<std::string>> ExpandHostlist(std::string_view expression);

// The other way, in the same order: an expression that ExpandHostlist takes if it takes each name alone, as short as
// runs of numbers make it.
std::string CompressHostlist(const std::vector<std::string>& hosts);

}  // namespace muster
