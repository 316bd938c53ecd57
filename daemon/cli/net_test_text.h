// What `muster net test` says of a verdict without --json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace muster::cli {

// Of a verdict as preflight::RunTest gives it; throws as nlohmann::json does where a key is missing. Pure.
std::string VerdictText(const nlohmann::json& verdict);

}  // namespace muster::cli
