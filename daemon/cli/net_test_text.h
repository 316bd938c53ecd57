// What `muster net test` says of a verdict, with and without --json.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace muster::cli {

// musterd reads a document of wire::kMaxLinksText bytes at most, and the process's libraries may have printed warnings in front of it.
inline constexpr size_t kMaxVerdict = 24 * 1024;

// Leaves 64 entries at most in each list of a verdict, and kMaxVerdict bytes of what Print writes with --json: findings are left out last.
// `left_out` counts the entries of each list that are gone. Pure.
void Shorten(nlohmann::json& verdict);

// Of a verdict as preflight::RunTest gives it; throws as nlohmann::json does where a key is missing. Pure.
std::string VerdictText(const nlohmann::json& verdict);

}  // namespace muster::cli
